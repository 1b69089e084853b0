"""Who makes the environments, from configuration. Imports no torch."""

from __future__ import annotations

import sys

from roll.config.schema import Run
from roll.errors import ConfigError
from roll.rollout.env_pool import EnvPool, HostLimits
from roll.rollout.environments import Environments, InlineEnvs


def build_environments(run: Run) -> Environments:
    """Processes full of environments, or the caller's own thread; to be started and stopped."""
    envs, limit_s = run.envs, run.rollout.env_timeout_s
    if not envs.workers:
        return InlineEnvs(start_limit=envs.start_limit, limit_s=limit_s)
    if envs.memory_mb is not None and sys.platform != "linux":
        raise ConfigError(f"envs.memory_mb: only Linux says what a process holds (got {sys.platform}); leave it out")
    sources = (*run.tasks, *run.validation.tasks)
    return EnvPool(
        envs.workers,
        names=sorted({source.env.kind for source in sources}),
        start_limit=envs.start_limit,
        limit_s=limit_s,
        limits=HostLimits(
            open_s=envs.start_timeout_s,
            grace_s=envs.grace_s,
            memory=None if envs.memory_mb is None else envs.memory_mb * 2**20,
        ),
    )
