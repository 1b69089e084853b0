"""The border: what a reward may be and return, and what becomes of the rest."""

import asyncio
import math
import sys
import threading
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from roll.errors import ConfigError, RewardFailed, UnknownName
from roll.registry import REWARDS
from roll.rewards.base import LARGEST, Reward, call
from roll.rewards.outcome import Ending, Fault, Outcome
from roll.types import Call, Score, Task

TASK = Task(id="t7", domain="d", answer="64")


def asked(name: str, **arguments: Any) -> Outcome:
    return asyncio.run(call(Call(name, arguments), TASK, "64"))


def found(name: str, **arguments: Any) -> Score:
    outcome = asked(name, **arguments)
    assert outcome.score is not None, outcome
    return outcome.score


def failed(name: str, **arguments: Any) -> Outcome:
    outcome = asked(name, **arguments)
    assert outcome.ending is Ending.FAILED and outcome.score is None, outcome
    assert outcome.reason.startswith(f"reward {name!r}") and "\n" not in outcome.reason, outcome
    return outcome


def given(task: Task, reply: str, *, back: Any) -> Any:
    return back


async def later(task: Task, reply: str) -> float:
    await asyncio.sleep(0)
    return 0.25


def broken(task: Task, reply: str) -> float:
    return 1 / (len(reply) - 2)  # the line that is told


def broken_inside(task: Task, reply: str) -> float:
    return Fraction("half").numerator


def long_winded(task: Task, reply: str) -> float:
    raise RuntimeError("first line\nsecond line " + "x" * 10_000)


def leaving(task: Task, reply: str) -> float:
    sys.exit(3)


def unjudgeable(task: Task, reply: str) -> float:
    raise ConfigError(f"task {task.id!r}: no answer; give it one")


def unreachable(task: Task, reply: str) -> float:
    raise RewardFailed("scorer at 127.0.0.1: no answer; start it")


def thread(task: Task, reply: str) -> int:
    return threading.get_ident() % 1000


class Counting:
    """Says how often it was started, and refuses what has not been."""

    def __init__(self, *, diary: list[str], step: float = 1.0) -> None:
        self.diary, self.step = diary, step

    async def start(self) -> None:
        await asyncio.sleep(0)
        self.diary.append("start")

    async def stop(self) -> None:
        self.diary.append("stop")

    def score(self, task: Task, reply: str) -> float:
        self.diary.append("score")
        return self.step * self.diary.count("start")


class Bare:
    async def score(self, task: Task, reply: str) -> float:
        return 0.5


class Mute:
    pass


class Offline(Bare):
    def start(self) -> None:
        raise ConnectionError("no route")


class Choosy(Bare):
    def __init__(self, *, flavour: str) -> None:
        if flavour != "sweet":
            raise ValueError(f"no {flavour}")


def test_a_reward_of_ours_is_called_by_its_short_name():
    assert found("exact").value == 1.0


@pytest.mark.parametrize(
    ("back", "value"),
    [(1, 1.0), (0.5, 0.5), (True, 1.0), (np.float32(0.5), 0.5), (np.bool_(True), 1.0), (Fraction(1, 4), 0.25)],
)
def test_numbers_become_scores(back: Any, value: float):
    score = found(f"{__name__}:given", back=back)
    assert score == Score(value) and type(score.value) is float


def test_a_score_passes_with_its_parts_as_plain_floats():
    score = found(f"{__name__}:given", back=Score(1, {"format": np.float16(0.5), "right": True}))
    assert score == Score(1.0, {"format": 0.5, "right": 1.0})
    assert {type(value) for value in (score.value, *score.parts.values())} == {float}


def test_an_async_reward_is_awaited():
    assert found(f"{__name__}:later").value == 0.25


@pytest.mark.parametrize(
    ("back", "said"),
    [
        (None, "not a number (got None)"),
        ("1.0", "not a number (got '1.0')"),
        ([1.0], "not a number (got [1.0])"),
        (1j, "not a number (got 1j)"),
        (math.nan, "(got nan)"),
        (math.inf, "(got inf)"),
        (1e30, "value is not finite and at most 1e+06 (got 1e+30)"),
        (-1.1e6, "(got -1100000.0)"),
        (10**400, "value is not finite and at most 1e+06"),
        (np.float16(np.inf), "inf)"),
        (Fraction(10**400), "value is not finite and at most 1e+06"),
        (Score(-math.inf), "(got -inf)"),
        (Score("1.0"), "value is not a number (got '1.0')"),  # pyright: ignore[reportArgumentType]
        (Score(1.0, {"x": math.nan}), "part 'x' is not finite"),
        (Score(1.0, {"x": "y"}), "part 'x' is not a number (got 'y')"),  # pyright: ignore[reportArgumentType]
        (Score(1.0, None), "parts are not numbers by name (got None)"),  # pyright: ignore[reportArgumentType]
        (Score(1.0, {1: 1.0}), "parts are not numbers by name"),  # pyright: ignore[reportArgumentType]
    ],
)
def test_anything_but_a_number_to_train_on_is_the_rewards_fault(back: Any, said: str):
    outcome = failed(f"{__name__}:given", back=back)
    assert outcome.fault is Fault.REWARD and said in outcome.reason and "on task 't7': " in outcome.reason
    assert len(outcome.reason) < 300


def test_the_largest_score_still_passes():
    assert found(f"{__name__}:given", back=-LARGEST).value == -1e6


def test_a_reward_that_raises_is_told_with_the_line_of_its_file():
    lines = Path(__file__).read_text().splitlines()
    line = next(number for number, text in enumerate(lines, 1) if "# the line that is told" in text)
    outcome = failed(f"{__name__}:broken")
    assert outcome.fault is Fault.REWARD
    assert f"on task 't7': ZeroDivisionError: division by zero ({__file__}:{line}); mend" in outcome.reason


def test_what_a_library_raises_is_told_with_the_line_of_the_reward_that_called_it():
    assert f"({__file__}:" in failed(f"{__name__}:broken_inside").reason


def test_a_long_message_of_many_lines_becomes_one_short_line():
    outcome = failed(f"{__name__}:long_winded")
    assert "RuntimeError: first line second line xxx" in outcome.reason and len(outcome.reason) < 1000


def test_a_reward_that_calls_exit_ends_nothing_but_its_own_attempt():
    assert "SystemExit: 3" in failed(f"{__name__}:leaving").reason


def test_a_task_that_cannot_be_judged_is_its_own_fault_and_not_the_runs():
    outcome = failed(f"{__name__}:unjudgeable")
    assert outcome.fault is Fault.TASK and outcome.reason.endswith("task 't7': no answer; give it one")


def test_what_a_reward_reaches_for_in_vain_is_infrastructure():
    outcome = failed(f"{__name__}:unreachable")
    assert outcome.fault is Fault.INFRASTRUCTURE and "scorer at 127.0.0.1: no answer" in outcome.reason


def test_a_misspelt_reward_is_the_users_fault_not_the_trajectorys():
    with pytest.raises(UnknownName, match="did you mean 'exact'"):
        asked("exakt")


def test_a_reward_runs_in_the_callers_thread():
    assert found(f"{__name__}:thread").value == threading.get_ident() % 1000


def test_a_class_is_started_before_and_stopped_after_its_scores():
    diary: list[str] = []

    async def use() -> list[Outcome]:
        made = Reward.made(Call(f"{__name__}:Counting", {"diary": diary, "step": 0.5}))
        assert await made.start() is None
        outcomes = [await made.score(TASK, "64") for _ in range(2)]
        await made.stop()
        return outcomes

    assert asyncio.run(use()) == [Outcome.of(Score(0.5))] * 2
    assert diary == ["start", "score", "score", "stop"]


def test_a_class_needs_neither_start_nor_stop_and_may_score_in_its_own_time():
    assert found(f"{__name__}:Bare").value == 0.5


def test_a_class_that_cannot_start_has_no_score_and_may_have_one_later():
    outcome = failed(f"{__name__}:Offline")
    assert outcome.fault is Fault.INFRASTRUCTURE
    assert "could not start: ConnectionError: no route" in outcome.reason


@pytest.mark.parametrize(
    ("name", "arguments", "said"),
    [
        ("Mute", {}, "has no method `score`"),
        ("Choosy", {"flavour": "sour"}, "cannot be made: ValueError: no sour"),
        ("Choosy", {"taste": "sweet"}, "cannot be made: TypeError"),
        ("LARGEST", {}, "is no function"),
    ],
)
def test_what_can_be_no_reward_at_all_is_the_users_to_mend(name: str, arguments: dict[str, Any], said: str):
    with pytest.raises(ConfigError, match=said):
        asked(f"{__name__}:{name}", **arguments)


def test_options_of_a_class_are_checked_without_importing_it():
    name = f"{__name__}:Counting"
    assert REWARDS.faults(name, {"diary": [], "step": 1.0}) == []
    assert REWARDS.faults(name, {"step": 1.0}) == [("", f"reward {name!r} needs 'diary'; add it")]
    assert [key for key, _ in REWARDS.faults(name, {"diary": [], "stride": 1.0})] == ["stride"]
