"""What several attempts at held-out tasks tell, worked by hand."""

import asyncio
import itertools
from dataclasses import dataclass, field, replace
from typing import Any, cast

import numpy as np
import pytest

from roll.rollout.episode.runner import Attempt, EpisodeRunner
from roll.rollout.source import TaskSource
from roll.rollout.validation import Validator, describe_failures, majority, pass_at, summarise
from roll.rollout.validation import answer_of as reader_of
from roll.types import Finish, Score, Segment, Spec, Status, Task, Trajectory, Turn


def last_letter(task: Task, reply: str) -> float:
    """A reward; `answer_of` is the hook that goes with it."""
    return float(reply[-1:] == task.answer)


def answer_of(reply: str) -> str | None:
    if reply == "boom":
        raise RuntimeError("no answer")
    return reply[-1:] or None


class FakeTemplate:
    def decode(self, ids: Any) -> str:
        return "".join(map(chr, ids))


@dataclass
class FakeRunner:
    template: FakeTemplate = field(default_factory=FakeTemplate)


@dataclass
class FakeSource:
    """Attempts that were made up: for each task, the replies of its siblings; None fails."""

    name: str
    replies: dict[str, list[str | None]]
    reward: Spec | None = None
    right: str = "r"
    seen: list[Attempt] = field(default_factory=list[Attempt])

    @property
    def tasks(self) -> list[Task]:
        return [Task(id=name, domain=self.name, answer=self.right) for name in self.replies]

    async def attempt(self, runner: FakeRunner, attempt: Attempt) -> Trajectory:
        self.seen.append(attempt)
        await asyncio.sleep(0)
        reply = self.replies[attempt.task.id][attempt.sibling]
        if reply is None:
            return Trajectory(task=attempt.task, sibling=attempt.sibling, segments=(), status=Status.ENV_FAILED)
        ids = np.array([ord(letter) for letter in reply], np.int32)
        turn = Turn(
            observation=np.zeros(1, np.int32),
            sampled=ids,
            sampler_logprobs=np.zeros(len(ids), np.float32),
            versions=np.zeros(len(ids), np.int32),
            finish=Finish.STOP,
        )
        return Trajectory(
            task=attempt.task,
            sibling=attempt.sibling,
            segments=(Segment(turns=(turn,)),),
            status=Status.FINISHED,
            score=Score(float(reply.strip() == self.right)),
        )


def validated(*sources: FakeSource, samples: int) -> tuple[dict[str, list[Trajectory]], int]:
    heard: list[int] = []
    validator = Validator(
        sources=cast(list[TaskSource], sources), runner=cast(EpisodeRunner, FakeRunner()), seed=0, samples=samples
    )
    found = asyncio.run(validator.run(heard.append))
    assert sum(heard) == validator.num_tasks
    return found, len(heard)


def metrics(*sources: FakeSource, samples: int) -> dict[str, float]:
    return summarise(validated(*sources, samples=samples)[0])


def test_pass_at_k_is_the_fraction_of_choices_of_k_attempts_with_a_right_one():
    for num_right, size, k in [(0, 4, 2), (1, 4, 2), (2, 5, 3), (4, 4, 1), (3, 4, 4), (1, 6, 1)]:
        choices = list(itertools.combinations([True] * num_right + [False] * (size - num_right), k))
        assert pass_at(num_right, size, k) == pytest.approx(sum(map(any, choices)) / len(choices))


def test_the_majority_is_the_answer_given_most_often_and_the_first_of_equals():
    assert majority(["a", "b", "b", None, None, None]) == 1
    assert majority(["a", "b", "a", "b"]) == 0
    assert majority([None, "b", "a"]) == 1
    assert majority([None, None]) is None


def test_one_attempt_per_task_gives_no_pass_at_k():
    found = metrics(FakeSource("math", {"a": ["r"], "b": ["w"]}), samples=1)
    assert found["validation/math/accuracy"] == found["validation/accuracy"] == 0.5
    assert not any("pass@" in name or "majority" in name for name in found)


def test_several_attempts_give_pass_at_k_and_the_majority():
    # a: two of four right and voted for by two against one and one; b: one of four right and outvoted.
    source = FakeSource("math", {"a": ["x", "r", "r ", "y"], "b": ["w", "w", "r", "w"]})
    found = metrics(source, samples=4)
    assert found["validation/math/accuracy"] == 3 / 8
    # Of the six pairs, one is all wrong for a, and three for b.
    assert found["validation/math/pass@2"] == pytest.approx((5 / 6 + 3 / 6) / 2)
    assert found["validation/math/pass@4"] == 1.0
    assert found["validation/math/majority"] == 0.5
    assert {name for name in found if "@" in name} == {
        "validation/pass@2",
        "validation/pass@4",
        "validation/math/pass@2",
        "validation/math/pass@4",
    }


def test_metrics_are_per_source_and_over_all_tasks():
    easy, hard = FakeSource("easy", {"a": ["r", "r"]}), FakeSource("hard", {"a": ["w", "w"], "b": ["w", "v"]})
    found = metrics(easy, hard, samples=2)
    assert (found["validation/easy/majority"], found["validation/hard/majority"]) == (1.0, 0.0)
    assert found["validation/majority"] == found["validation/pass@2"] == pytest.approx(1 / 3)


def test_failed_attempts_have_no_vote_and_are_no_part_of_the_estimate():
    # a has three valid attempts, one of them right; only b has the four that pass@4 needs.
    source = FakeSource("math", {"a": [None, "w", "r", "x"], "b": ["w", "w", "w", "w"]})
    found = metrics(source, samples=4)
    assert found["validation/math/failed"] == 1.0
    assert found["validation/math/pass@2"] == pytest.approx((2 / 3 + 0) / 2)
    assert found["validation/math/pass@4"] == 0.0


def test_failed_attempts_are_counted_in_words_with_the_first_reason():
    source = FakeSource("math", {"a": [None, "w", "r", "x"]})
    results, _ = validated(source, samples=4)
    failed = replace(results["math"][0], reason="no server")
    assert describe_failures({"math": [failed, *results["math"][1:]]}) == (
        "1 of 4 held-out attempts failed and are left out of the means, the first with: no server"
    )
    assert describe_failures({"math": results["math"][1:]}) == ""


def test_attempts_at_a_task_differ_only_in_their_sibling_and_are_adjacent():
    source = FakeSource("math", {"a": ["1", "2", "3"], "b": ["4", "5", "6"]})
    found, heard = validated(source, samples=3)
    assert [(each.task.id, each.sibling) for each in found["math"]] == [(t, s) for t in "ab" for s in range(3)]
    assert {(attempt.number, attempt.purpose) for attempt in source.seen} == {(0, "validate")} and heard == 2


def test_answers_are_read_as_their_reward_reads_them():
    reader = reader_of(Spec(f"{__name__}:last_letter"))
    assert reader("because of x") == "x"  # by `answer_of` of this module
    assert (
        reader_of(Spec("weighted", {"rewards": [{"kind": "exact"}, {"kind": f"{__name__}:last_letter"}]}))("ab") == "b"
    )
    assert reader_of(None)(" r \n") == "r" and reader_of(None)("  ") is None


def test_the_hook_decides_which_answers_agree():
    # Compared by their whole text, no two responses agree, and the first, "1w", would represent all.
    replies: dict[str, list[str | None]] = {"a": ["1w", "r", " r", "2r"]}
    assert metrics(FakeSource("d", replies, Spec(f"{__name__}:last_letter")), samples=4)["validation/d/majority"] == 1.0


def test_a_hook_that_raises_fails_the_attempt_and_not_the_run():
    found, _ = validated(FakeSource("d", {"a": ["boom", "r"]}, Spec(f"{__name__}:last_letter")), samples=2)
    first, second = found["d"]
    assert first.status is Status.REWARD_FAILED and "answer_of: RuntimeError: no answer" in first.reason
    assert second.status is Status.FINISHED
    assert summarise(found)["validation/d/failed"] == 1.0
