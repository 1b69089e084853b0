"""Who makes the environments, from configuration. Imports no torch."""

from __future__ import annotations

import sys

from roll.cluster.handle import Executor
from roll.config.schema import Run
from roll.errors import ConfigError
from roll.rollout.env_pool import WORKER, EnvPool, HostLimits, members_of, open_process
from roll.rollout.environments import Environments, InlineEnvs


def build_environments(run: Run, executor: Executor | None = None) -> Environments:
    """Processes full of environments, or the caller's own thread; to be started and stopped.

    With `envs.executor` ray they are workers of `executor`, which is to be started before them; without one here.
    """
    envs, limit_s = run.envs, run.rollout.env_timeout_s
    if not envs.workers:
        return InlineEnvs(start_limit=envs.start_limit, limit_s=limit_s)
    if envs.memory_mb is not None and sys.platform != "linux":
        raise ConfigError(f"envs.memory_mb: only Linux says what a process holds (got {sys.platform}); leave it out")
    open_host = open_process
    if envs.executor == "ray" and executor is not None:
        open_host = members_of(executor.cluster(WORKER, envs.workers, role="envs"))
    sources = (*run.tasks, *run.validation.tasks)
    return EnvPool(
        envs.workers,
        names=sorted({source.env.kind for source in sources}),
        start_limit=envs.start_limit,
        limit_s=limit_s,
        open_host=open_host,
        limits=HostLimits(
            open_s=envs.start_timeout_s,
            grace_s=envs.grace_s,
            memory=None if envs.memory_mb is None else envs.memory_mb * 2**20,
        ),
    )
