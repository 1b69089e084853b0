"""An attempt and its judgement: a score joins it, and no score is a status with a reason, never a zero."""

import asyncio
from typing import Any, cast

import numpy as np
import pytest

from roll.rewards.outcome import Fault, Outcome
from roll.rollout.episode.runner import Attempt
from roll.rollout.source import Source
from roll.serving.idle import Waits
from roll.types import Call, Finish, Score, Segment, Status, Task, Trajectory, Turn

TASK = Task(id="t", domain="d")
ASKED = Call("r")
ATTEMPT = Attempt(task=TASK, sibling=1, number=0, purpose="train", seed=0)


class Runner:
    """Plays every attempt alike; is its own router."""

    def __init__(self, status: Status) -> None:
        self.status, self.router = status, self
        self.waits = Waits(lambda: None)

    async def run(self, attempt: Attempt, env: object) -> tuple[Trajectory, str]:
        row, none = np.array([4, 2], np.int32), np.zeros(0, np.int32)
        logprobs = np.zeros(2, np.float32)
        turns = tuple(
            Turn(observation=none, sampled=ids, sampler_logprobs=logprobs, versions=row, finish=Finish.STOP)
            for ids in (row[::-1], row)
        )
        found = Trajectory(
            task=attempt.task, sibling=attempt.sibling, segments=(Segment(turns=turns),), status=self.status
        )
        return found, "4 2"


def attempted(outcome: Outcome, *, status: Status = Status.FINISHED, reward: Call | None = ASKED) -> Trajectory:
    async def judge(asked: Call, task: Task, reply: str) -> Outcome:
        assert (asked, task.id, reply) == (ASKED, "t", "4 2"), "the last reply alone is judged"
        return outcome

    source = Source(name="d", tasks=[TASK], env=Call("single_turn"), reward=reward, judge=judge)
    return asyncio.run(source.attempt(cast(Any, Runner(status)), ATTEMPT))


@pytest.mark.parametrize("status", [Status.FINISHED, Status.TRUNCATED])
def test_a_score_joins_the_attempt(status: Status):
    found = attempted(Outcome.of(Score(0.5, {"x": 1.0})), status=status)
    assert (found.status, found.score, found.reward) == (status, Score(0.5, {"x": 1.0}), 0.5)


@pytest.mark.parametrize("outcome", [Outcome.timed_out("too long"), Outcome.failed(Fault.TASK, "no answer")])
def test_where_there_is_no_score_the_attempt_has_failed_and_says_why(outcome: Outcome):
    found = attempted(outcome)
    assert (found.status, found.score, found.reason) == (Status.REWARD_FAILED, None, outcome.reason)


def test_what_has_failed_already_and_what_has_no_reward_is_not_judged():
    never = Outcome.failed(Fault.REWARD, "asked")
    assert attempted(never, status=Status.ENGINE_FAILED).status is Status.ENGINE_FAILED
    assert attempted(never, reward=None).status is Status.FINISHED
