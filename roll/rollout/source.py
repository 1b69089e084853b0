"""One source of tasks: its environment, its reward, and how attempts at its tasks are made and scored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol

from roll.envs.guarded import unusable_source
from roll.errors import ConfigError, EnvFailed
from roll.rewards.base import LocalRewards, RewardService
from roll.rollout.environments import Environments, MakeEnv, env_label, make_inline_env
from roll.rollout.episode.runner import Attempt, EpisodeRunner
from roll.rollout.episode.spans import with_span_rewards
from roll.types import Spec, Status, Task, Trajectory


class AttemptRunner(Protocol):
    """Runs whole attempts without an environment that takes turns with the policy."""

    async def run_attempt(self, runner: EpisodeRunner, attempt: Attempt) -> tuple[Trajectory, str]:
        """The unscored attempt and the text to score; uses the runner's router, template and limits."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSource:
    """Tasks of one domain with their environment and reward."""

    name: str
    tasks: Sequence[Task]
    env: Spec
    reward: Spec | None
    rewards: RewardService = field(default_factory=LocalRewards)
    make_env: MakeEnv = make_inline_env
    attempt_runner: AttemptRunner | None = None
    """Runs the attempts; None: the episode runner does, with an environment."""

    async def unusable_reason(self, envs: Environments, *, tools: bool = True) -> str:
        """Why its environment cannot be used; empty if it can. Without `tools`, the policy has no way to call any."""
        if self.attempt_runner is not None:
            return ""
        return await unusable_source(self.name, self.env, self.tasks, partial(envs.unusable_reason, tools=tools))

    async def attempt(self, runner: EpisodeRunner, attempt: Attempt) -> Trajectory:
        """One attempt, run and scored. Failures are data: the status names the failed part, the reason explains it."""
        if self.attempt_runner is not None:
            trajectory, response = await self.attempt_runner.run_attempt(runner, attempt)
        else:
            try:
                with runner.router.idle_reasons.waiting_for("environments"):
                    env = await self.make_env(self.env, attempt.task)
            except EnvFailed as error:
                reason, sibling = str(error), attempt.sibling
                return Trajectory(
                    task=attempt.task, sibling=sibling, segments=(), status=Status.ENV_FAILED, reason=reason
                )
            trajectory, response = await runner.run(attempt, env)
        if trajectory.status.valid and not trajectory.segments:
            where, fix = env_label(self.env, attempt.task), "raise rollout.max_seq_len, or shorten them"
            reason = f"{where}, starting: its first messages fill the context; {fix}"
            return replace(trajectory, status=Status.ENV_FAILED, reason=reason)
        if self.reward is None or not trajectory.status.valid:
            return trajectory
        with runner.router.idle_reasons.waiting_for("rewards"):
            outcome = await self.rewards.score(self.reward, attempt.task, response)
        if outcome.score is None:
            return replace(trajectory, status=Status.REWARD_FAILED, reason=outcome.reason)
        scored = trajectory.with_score(outcome.score)
        return with_span_rewards(scored, response, runner.template) if outcome.score.spans else scored


async def check_environments(envs: Environments, sources: Sequence[TaskSource], *, tools: bool = True) -> None:
    """Reject all sources whose environments cannot be used, before many attempts have failed.

    `tools` is whether the policy has a way to call tools.
    """
    faults = {fault: None for source in sources if (fault := await source.unusable_reason(envs, tools=tools))}
    if faults:
        raise ConfigError("\n".join(f"tasks: {fault}" for fault in faults))
