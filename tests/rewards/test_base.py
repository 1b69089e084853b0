"""The reward adapter: allowed rewards and return values, and the handling of everything else."""

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
from roll.rewards.base import LARGEST, MAX_COMMENT, RewardAdapter, score_once
from roll.rewards.result import RewardFault, RewardResult, RewardStatus
from roll.types import Score, Span, Spec, Task

TASK = Task(id="t7", domain="d", answer="64")


def asked(name: str, **arguments: Any) -> RewardResult:
    return asyncio.run(score_once(Spec(name, arguments), TASK, "64"))


def found(name: str, **arguments: Any) -> Score:
    outcome = asked(name, **arguments)
    assert outcome.score is not None, outcome
    return outcome.score


def failed(name: str, **arguments: Any) -> RewardResult:
    outcome = asked(name, **arguments)
    assert outcome.status is RewardStatus.FAILED and outcome.score is None, outcome
    assert outcome.reason.startswith(f"reward {name!r}") and "\n" not in outcome.reason, outcome
    return outcome


def given(task: Task, response: str, *, back: Any) -> Any:
    return back


async def later(task: Task, response: str) -> float:
    await asyncio.sleep(0)
    return 0.25


def broken(task: Task, response: str) -> float:
    return 1 / (len(response) - 2)  # the reported line


def broken_inside(task: Task, response: str) -> float:
    return Fraction("half").numerator


def long_winded(task: Task, response: str) -> float:
    raise RuntimeError("first line\nsecond line " + "x" * 10_000)


def leaving(task: Task, response: str) -> float:
    sys.exit(3)


def unjudgeable(task: Task, response: str) -> float:
    raise ConfigError(f"task {task.id!r}: no answer; give it one")


def unreachable(task: Task, response: str) -> float:
    raise RewardFailed("scorer at 127.0.0.1: no answer; start it")


def thread(task: Task, response: str) -> int:
    return threading.get_ident() % 1000


def other_names(question: Task, reply: str) -> float:
    return float(reply == question.answer)


class Counting:
    """Records its calls; its score is the number of starts."""

    def __init__(self, *, diary: list[str], step: float = 1.0) -> None:
        self.diary, self.step = diary, step

    async def start(self) -> None:
        await asyncio.sleep(0)
        self.diary.append("start")

    async def stop(self) -> None:
        self.diary.append("stop")

    def score(self, task: Task, response: str) -> float:
        self.diary.append("score")
        return self.step * self.diary.count("start")


class Bare:
    async def score(self, task: Task, response: str) -> float:
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


def test_a_built_in_reward_has_a_short_name():
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


def test_task_and_response_are_passed_by_position():
    assert found(f"{__name__}:other_names").value == 1.0


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
def test_an_unusable_return_value_is_the_rewards_fault(back: Any, said: str):
    outcome = failed(f"{__name__}:given", back=back)
    assert outcome.fault is RewardFault.REWARD and said in outcome.reason and "on task 't7': " in outcome.reason
    assert len(outcome.reason) < 300


def test_the_largest_score_still_passes():
    assert found(f"{__name__}:given", back=-LARGEST).value == -1e6


def test_an_error_in_a_reward_is_reported_with_its_file_and_line():
    lines = Path(__file__).read_text().splitlines()
    line = next(number for number, text in enumerate(lines, 1) if "# the reported line" in text)
    outcome = failed(f"{__name__}:broken")
    assert outcome.fault is RewardFault.REWARD
    assert f"on task 't7': ZeroDivisionError: division by zero ({__file__}:{line}); fix" in outcome.reason


def test_an_error_in_a_library_is_reported_with_the_line_of_the_reward():
    assert f"({__file__}:" in failed(f"{__name__}:broken_inside").reason


def test_a_long_message_of_many_lines_becomes_one_short_line():
    outcome = failed(f"{__name__}:long_winded")
    assert "RuntimeError: first line second line xxx" in outcome.reason and len(outcome.reason) < 1000


def test_a_reward_that_calls_exit_ends_nothing_but_its_own_attempt():
    assert "SystemExit: 3" in failed(f"{__name__}:leaving").reason


def test_a_task_that_cannot_be_scored_fails_alone():
    outcome = failed(f"{__name__}:unjudgeable")
    assert outcome.fault is RewardFault.TASK and outcome.reason.endswith("task 't7': no answer; give it one")


def test_an_unreachable_dependency_is_an_infrastructure_failure():
    outcome = failed(f"{__name__}:unreachable")
    assert outcome.fault is RewardFault.INFRASTRUCTURE and "scorer at 127.0.0.1: no answer" in outcome.reason


def test_a_misspelt_reward_is_the_users_fault_not_the_trajectorys():
    with pytest.raises(UnknownName, match="did you mean 'exact'"):
        asked("exakt")


def test_a_reward_runs_in_the_callers_thread():
    assert found(f"{__name__}:thread").value == threading.get_ident() % 1000


def test_a_class_is_started_before_and_stopped_after_its_scores():
    diary: list[str] = []

    async def use() -> list[RewardResult]:
        made = RewardAdapter.load(Spec(f"{__name__}:Counting", {"diary": diary, "step": 0.5}))
        assert await made.start() is None
        outcomes = [await made.score(TASK, "64") for _ in range(2)]
        await made.stop()
        return outcomes

    assert asyncio.run(use()) == [RewardResult.from_score(Score(0.5))] * 2
    assert diary == ["start", "score", "score", "stop"]


def test_a_class_needs_neither_start_nor_stop_and_may_score_in_its_own_time():
    assert found(f"{__name__}:Bare").value == 0.5


def test_a_class_that_cannot_start_has_no_score_and_may_have_one_later():
    outcome = failed(f"{__name__}:Offline")
    assert outcome.fault is RewardFault.INFRASTRUCTURE
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
def test_an_object_that_cannot_be_a_reward_is_a_config_error(name: str, arguments: dict[str, Any], said: str):
    with pytest.raises(ConfigError, match=said):
        asked(f"{__name__}:{name}", **arguments)


def test_options_of_a_class_are_checked_without_importing_it():
    name = f"{__name__}:Counting"
    assert REWARDS.faults(name, {"diary": [], "step": 1.0}) == []
    assert REWARDS.faults(name, {"step": 1.0}) == [
        (
            "",
            f"reward {name!r} needs 'diary'; add it, "
            "or change its definition: it is called as f(task, response, **arguments)",
        )
    ]
    assert [key for key, _ in REWARDS.faults(name, {"diary": [], "stride": 1.0})] == ["stride"]


def test_a_comment_stays_with_its_score_and_a_long_one_says_where_it_is_cut():
    name = f"{__name__}:given"
    assert found(name, back=Score(1.0, {}, " because ")) == Score(1.0, {}, "because")
    comment = found(name, back=Score(1.0, {}, "x" * 9000)).comment
    assert len(comment) == MAX_COMMENT and comment.endswith("x [cut: 9000 characters]")
    assert found(name, back=Score(1.0, {}, "half \ud83d a pair")).comment == "half ? a pair"  # the journal takes UTF-8
    assert "comment is not text (got 3)" in failed(name, back=Score(1.0, {}, 3)).reason  # type: ignore[arg-type]


def test_spans_are_rewards_of_parts_of_the_response():
    score = found(f"{__name__}:given", back=Score(1.0, spans=((0, 1, 0.5), [np.int64(1), 2, np.float32(0.25)])))  # type: ignore[arg-type]
    assert score.spans == (Span(0, 1, 0.5), Span(1, 2, 0.25)) and score.total == 1.75
    assert all(type(number) in (int, float) for span in score.spans for number in span)


@pytest.mark.parametrize(
    ("spans", "problem"),
    [
        (((0, 3, 1.0),), "a span is not within the response (got 0 to 3 of 2 characters)"),
        (((-1, 1, 1.0),), "a span is not within the response (got -1 to 1 of 2 characters)"),
        (((1, 1, 1.0),), "a span is not within the response (got 1 to 1 of 2 characters)"),
        (((0, 1.5, 1.0),), "a span is not within the response (got 0 to 1.5 of 2 characters)"),
        (((0, 1, math.nan),), "the value of span 0 to 1 is not finite"),
        (((0, 1),), "a span is not (start, end, value) (got (0, 1))"),
        ("ab", "spans are not a tuple (got 'ab')"),
    ],
)
def test_a_span_that_is_not_part_of_the_response_is_a_failure_in_one_line(spans: Any, problem: str):
    outcome = failed(f"{__name__}:given", back=Score(1.0, spans=spans))
    assert problem in outcome.reason and outcome.fault is RewardFault.REWARD
