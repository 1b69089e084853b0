"""Builds environments and rewards from the configuration, and checks that rewards may run code here.

Imports no torch.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

from roll.cluster.handle import Executor
from roll.cluster.process import ProcessCluster
from roll.cluster.replacement import FirstStart, Replacement
from roll.config.load import LoadedRun
from roll.config.reward import Reward
from roll.config.schema import Rewards, Run
from roll.errors import ConfigError
from roll.journal.events import WorkerReplaced
from roll.journal.store import Journal
from roll.registry import REWARDS
from roll.rewards.base import LocalRewards, RewardService
from roll.rollout.env_pool import WORKER, EnvPool, EnvWorkerLimits, cluster_workers, start_process
from roll.rollout.environments import Environments, InlineEnvs
from roll.rollout.reward_pool import RewardPool
from roll.sandbox.level import choose as choose_level
from roll.types import Spec

_RUNS_CODE = REWARDS.locate("code")[0]


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
            first_start=FirstStart(max_deaths=run.rollout.max_retries, setting="rollout.max_retries"),
            grace_s=envs.grace_s,
            memory_bytes=None if envs.memory_mb is None else envs.memory_mb * 2**20,
        ),
    )


def build_reward_service(rewards: Rewards) -> RewardService:
    """A pool of worker processes, or rewards in the caller's thread. The caller starts and stops it."""
    if not rewards.workers:
        return LocalRewards(max_retries=rewards.max_retries)
    workers = ProcessCluster[LocalRewards](
        Spec("roll.rewards.base:LocalRewards"),
        rewards.workers,
        name="reward worker",
        timeout_s=rewards.timeout_s,
        timeouts={LocalRewards.start_reward.__name__: rewards.start_timeout_s},
        start_timeout_s=rewards.start_timeout_s,
    )
    return RewardPool(workers=workers, max_retries=rewards.max_retries)


@contextmanager
def record_replacements(journal: Journal, rewards: RewardService, envs: Environments) -> Generator[None]:
    """Record in the journal which reward and environment workers are replaced, and why, up to the end of this block."""
    pools: list[ProcessCluster[LocalRewards] | EnvPool] = []
    pools += [rewards.workers] if isinstance(rewards, RewardPool) else []
    pools += [envs] if isinstance(envs, EnvPool) else []
    recording = True

    def record(each: Replacement) -> None:
        if recording:
            event = WorkerReplaced(worker=each.worker, reason=each.reason, seconds=each.seconds, num_updates=0)
            journal.record(event)

    for pool in pools:
        pool.replaced.send_to(record)
    try:
        yield
    finally:
        recording = False


def check_sandboxes(loaded: LoadedRun, *, training: bool = True, choose: Callable[[str], Any] = choose_level) -> None:
    """Refuse a run whose rewards execute model-written code on a machine without a sandbox, unless the file allows it.

    `choose` receives the `sandbox` option of a reward. Without `training`, only held-out tasks are checked.
    """
    tasks = loaded.run.tasks if training else ()
    for above, sources in (("tasks", tasks), ("validation.tasks", loaded.run.validation.tasks)):
        for index, source in enumerate(sources):
            key = f"{above}.{index}.reward"
            if source.reward is not None:
                check_sandbox(source.reward, where=f"{loaded.where(key)}: {key}", choose=choose)


def check_sandbox(reward: Reward, *, where: str, choose: Callable[[str], Any] = choose_level) -> None:
    """Raise `ConfigError`, located by `where`, if a reward must run code and this machine has no sandbox for it."""
    for named in reward.entries:
        if REWARDS.locate(named.kind)[0] == _RUNS_CODE:
            try:
                choose(str(named.kwargs.get("sandbox", "auto")))
            except ConfigError as error:
                raise ConfigError(f"{where}: {error}") from None
