"""How attempts at the tasks of one source are made and judged."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace

from roll.envs.base import Env
from roll.errors import EnvFailed, blame
from roll.registry import ENVS
from roll.rewards.base import call
from roll.rollout.episode import Attempt, EpisodeRunner
from roll.rollout.pool import Judge
from roll.types import Call, Status, Task, Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Tasks of one domain with their environment and reward."""

    name: str
    tasks: Sequence[Task]
    env: Call
    reward: Call | None
    share: float = 1.0
    judge: Judge = call
    """Who asks the reward."""

    async def attempt(self, runner: EpisodeRunner, attempt: Attempt) -> Trajectory:
        """One attempt, played and scored. Failures are data: the status says whose, the reason why."""
        try:
            env = self._make_env(attempt.task)
        except EnvFailed as error:
            reason = str(error)
            return Trajectory(
                task=attempt.task, sibling=attempt.sibling, segments=(), status=Status.ENV_FAILED, reason=reason
            )
        trajectory, reply = await runner.run(attempt, env)
        if self.reward is None or not trajectory.status.valid:
            return trajectory
        try:
            with runner.router.waits.on("rewards"):
                outcome = await self.judge(self.reward, attempt.task, reply)
        except asyncio.CancelledError:
            runner.router.tally.aborted += trajectory.num_sampled
            raise
        if outcome.score is None:
            return replace(trajectory, status=Status.REWARD_FAILED, reason=outcome.reason)
        return replace(trajectory, score=outcome.score)

    def _make_env(self, task: Task) -> Env:
        with blame(EnvFailed, f"environment {self.env.name!r} of task {task.id!r}"):
            return ENVS[self.env.name](task, **self.env.arguments)
