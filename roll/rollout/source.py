"""How attempts at the tasks of one source are made and judged."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from roll.errors import ConfigError, EnvFailed
from roll.rewards.base import call
from roll.rollout.environments import Environments, MakeEnv, make_env
from roll.rollout.episode.runner import Attempt, EpisodeRunner
from roll.rollout.reward_pool import Judge
from roll.types import Call, Status, Task, Trajectory


class Player(Protocol):
    """Makes whole attempts in its own way, where no environment takes turns with the policy."""

    async def play(self, runner: EpisodeRunner, attempt: Attempt) -> tuple[Trajectory, str]:
        """The attempt, not yet scored, and what is to be scored of it, by the runner's router, template and limits."""
        ...


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
    make: MakeEnv = make_env
    """Who makes the environments."""
    player: Player | None = None
    """Who makes the attempts; None: the runner, with an environment."""

    async def unfit(self, envs: Environments, *, tools: bool = True) -> str:
        """What is wrong with its environment's arguments; empty where one of three tasks can be attempted.

        Without `tools` the policy has no way to call any.
        """
        if self.player is not None:
            return ""
        places = sorted({0, len(self.tasks) // 2, len(self.tasks) - 1})
        found = ""
        for place in places:  # a single task may be the one that does not fit
            found = await envs.unfit(self.env, self.tasks[place], tools=tools)
            if not found:
                return ""
        return f"source {self.name!r}: environment {self.env.name!r} cannot be used: {found}; mend that first"

    async def attempt(self, runner: EpisodeRunner, attempt: Attempt) -> Trajectory:
        """One attempt, played and scored. Failures are data: the status says whose, the reason why."""
        if self.player is not None:
            trajectory, reply = await self.player.play(runner, attempt)
        else:
            try:
                with runner.router.waits.on("environments"):
                    env = await self.make(self.env, attempt.task)
            except EnvFailed as error:
                reason, sibling = str(error), attempt.sibling
                return Trajectory(
                    task=attempt.task, sibling=sibling, segments=(), status=Status.ENV_FAILED, reason=reason
                )
            trajectory, reply = await runner.run(attempt, env)
        if trajectory.status.valid and not trajectory.segments:
            return replace(trajectory, status=Status.ENV_FAILED, reason=self._too_long(attempt.task))
        if self.reward is None or not trajectory.status.valid:
            return trajectory
        try:
            with runner.router.waits.on("rewards"):
                outcome = await self.judge(self.reward, attempt.task, reply)
        except asyncio.CancelledError:
            runner.router.broken_off(trajectory.num_sampled)
            raise
        if outcome.score is None:
            return replace(trajectory, status=Status.REWARD_FAILED, reason=outcome.reason)
        return trajectory.scored(outcome.score)

    def _too_long(self, task: Task) -> str:
        """An attempt without a turn is none: there was no room for a reply."""
        place = f"environment {self.env.name!r} of task {task.id!r}, starting"
        return f"{place}: what it opens with fills the context; raise rollout.context, or let it say less"


async def check_environments(envs: Environments, sources: Sequence[Source], *, tools: bool = True) -> None:
    """Refuse sources whose environments cannot be used, all of them at once, before many attempts have failed.

    `tools` says whether the policy has a way to call some.
    """
    faults = {fault: None for source in sources if (fault := await source.unfit(envs, tools=tools))}
    if faults:
        raise ConfigError("\n".join(f"tasks: {fault}" for fault in faults))
