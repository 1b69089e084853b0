"""Builds the environment workers from the configuration. Imports no torch."""

from __future__ import annotations

import sys

from roll.cluster.handle import Executor
from roll.config.schema import Run
from roll.errors import ConfigError
from roll.rollout.env_pool import WORKER, EnvPool, EnvWorkerLimits, cluster_workers, start_process
from roll.rollout.environments import Environments, InlineEnvs


def build_environments(run: Run, executor: Executor | None = None) -> Environments:
    """Environments in worker processes or in the caller's thread; the caller starts and stops them.

    With `envs.executor: ray` the workers belong to `executor`, which must be started first.
    """
    envs, limit_s = run.envs, run.rollout.env_timeout_s
    if not envs.workers:
        return InlineEnvs(start_limit=envs.max_concurrent_starts, limit_s=limit_s)
    if envs.memory_mb is not None and sys.platform != "linux":
        raise ConfigError(f"envs.memory_mb: only Linux reports the memory of a process (got {sys.platform}); remove it")
    start_worker = start_process
    if envs.executor == "ray" and executor is not None:
        start_worker = cluster_workers(executor.cluster(WORKER, envs.workers, role="envs"))
    sources = (*run.tasks, *run.validation.tasks)
    return EnvPool(
        envs.workers,
        names=sorted({source.env.kind for source in sources}),
        start_limit=envs.max_concurrent_starts,
        limit_s=limit_s,
        start_worker=start_worker,
        limits=EnvWorkerLimits(
            start_timeout_s=envs.start_timeout_s,
            grace_s=envs.grace_s,
            memory_bytes=None if envs.memory_mb is None else envs.memory_mb * 2**20,
        ),
    )
