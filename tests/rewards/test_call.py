"""The border: what a reward function may return, and what becomes of the rest."""

import asyncio
import math
import threading
from typing import Any

import numpy as np
import pytest

from roll.errors import RewardFailed, UnknownName
from roll.rewards.base import call
from roll.types import Call, Score, Task

TASK = Task(id="t7", domain="d", answer="64")


def found(name: str, **arguments: Any) -> Score:
    return asyncio.run(call(Call(name, arguments), TASK, "64"))


def given(task: Task, reply: str, *, back: Any) -> Any:
    return back


async def later(task: Task, reply: str) -> float:
    await asyncio.sleep(0)
    return 0.25


def broken(task: Task, reply: str) -> float:
    return 1 / (len(reply) - 2)


def thread(task: Task, reply: str) -> int:
    return threading.get_ident()


def test_a_reward_of_ours_is_called_by_its_short_name():
    assert found("exact").value == 1.0


@pytest.mark.parametrize(("back", "value"), [(1, 1.0), (0.5, 0.5), (True, 1.0), (np.float32(0.5), 0.5)])
def test_numbers_become_scores(back: Any, value: float):
    assert found(f"{__name__}:given", back=back) == Score(value)


def test_a_score_passes_with_its_parts():
    assert found(f"{__name__}:given", back=Score(1.0, {"format": 0.5})) == Score(1.0, {"format": 0.5})


def test_an_async_reward_is_awaited():
    assert found(f"{__name__}:later").value == 0.25


@pytest.mark.parametrize(
    "back", [None, "1.0", math.nan, math.inf, Score(-math.inf), Score(1.0, {"x": math.nan}), [1.0]]
)
def test_anything_but_a_finite_number_is_a_named_failure(back: Any):
    with pytest.raises(RewardFailed, match=r"reward '.*test_call:given' on task 't7': .*\(got .*\); return"):
        found(f"{__name__}:given", back=back)


def test_a_reward_that_raises_is_a_named_failure():
    with pytest.raises(RewardFailed, match=r"reward '.*test_call:broken' on task 't7': ZeroDivisionError"):
        found(f"{__name__}:broken")


def test_a_misspelt_reward_is_the_users_fault_not_the_trajectorys():
    with pytest.raises(UnknownName, match="did you mean 'exact'"):
        found("exakt")


def test_a_reward_runs_in_the_callers_thread():
    assert found(f"{__name__}:thread").value == threading.get_ident()
