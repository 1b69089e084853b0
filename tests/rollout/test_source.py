"""An attempt and its judgement: a score joins it, and no score is a status with a reason, never a zero."""

import asyncio
from typing import Any, cast

import numpy as np
import pytest

from roll.rewards.base import LocalRewards
from roll.rewards.result import RewardFault, RewardResult
from roll.rollout.episode.runner import Attempt
from roll.rollout.source import TaskSource
from roll.serving.counts import IdleReasons
from roll.types import Finish, Score, Segment, Spec, Status, Task, Trajectory, Turn

TASK = Task(id="t", domain="d")
ASKED = Spec("r")
ATTEMPT = Attempt(task=TASK, sibling=1, number=0, purpose="train", seed=0)


class Runner:
    """Plays every attempt alike; is its own router."""

    def __init__(self, status: Status) -> None:
        self.status, self.router = status, self
        self.idle_reasons = IdleReasons()

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


def attempted(outcome: RewardResult, *, status: Status = Status.FINISHED, reward: Spec | None = ASKED) -> Trajectory:
    class Rewards(LocalRewards):
        async def score(self, reward: Spec, task: Task, response: str) -> RewardResult:
            assert (reward, task.id, response) == (ASKED, "t", "4 2"), "only the last response is scored"
            return outcome

    source = TaskSource(name="d", tasks=[TASK], env=Spec("single_turn"), reward=reward, rewards=Rewards())
    return asyncio.run(source.attempt(cast(Any, Runner(status)), ATTEMPT))


@pytest.mark.parametrize("status", [Status.FINISHED, Status.TRUNCATED])
def test_a_score_is_added_to_the_attempt(status: Status):
    found = attempted(RewardResult.from_score(Score(0.5, {"x": 1.0})), status=status)
    assert (found.status, found.score, found.reward) == (status, Score(0.5, {"x": 1.0}), 0.5)


@pytest.mark.parametrize(
    "outcome", [RewardResult.timeout("too long"), RewardResult.failure(RewardFault.TASK, "no answer")]
)
def test_an_attempt_without_a_score_has_failed_with_the_reason(outcome: RewardResult):
    found = attempted(outcome)
    assert (found.status, found.score, found.reason) == (Status.REWARD_FAILED, None, outcome.reason)


def test_failed_attempts_and_attempts_without_a_reward_are_not_scored():
    never = RewardResult.failure(RewardFault.REWARD, "asked")
    assert attempted(never, status=Status.ENGINE_FAILED).status is Status.ENGINE_FAILED
    assert attempted(never, reward=None).status is Status.FINISHED
