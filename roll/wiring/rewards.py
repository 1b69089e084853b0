"""The reward service of a run, and the check that its rewards may run code here. Imports no torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from roll.cluster.process import ProcessCluster
from roll.config.load import LoadedRun
from roll.config.reward import Reward
from roll.config.schema import Rewards, TaskSourceConfig
from roll.errors import ConfigError
from roll.registry import REWARDS
from roll.rewards.service import LocalRewards, RewardService
from roll.rollout.reward_pool import RewardPool
from roll.sandbox.level import choose as choose_level
from roll.types import Spec

_RUNS_CODE = REWARDS.locate("code")[0]


def build_reward_service(rewards: Rewards) -> RewardService:
    """A pool of worker processes, or rewards in the caller's thread. The caller starts and stops it."""
    if not rewards.workers:
        return LocalRewards(max_retries=rewards.max_retries)
    workers = ProcessCluster[LocalRewards](
        Spec("roll.rewards.service:LocalRewards"),
        rewards.workers,
        name="reward worker",
        timeout_s=rewards.timeout_s,
        timeouts={LocalRewards.start_reward.__name__: rewards.start_timeout_s},
    )
    return RewardPool(workers=workers, max_retries=rewards.max_retries)


def check_sandboxes(loaded: LoadedRun, *, training: bool = True, choose: Callable[[str], Any] = choose_level) -> None:
    """Refuse a run whose rewards execute model-written code on a machine without a sandbox, unless the file allows it.

    `choose` receives the `sandbox` option of a reward. Without `training`, only held-out tasks are checked.
    """
    held_out = ("validation.tasks", loaded.run.validation.tasks)
    sections: list[tuple[str, Sequence[TaskSourceConfig]]] = [
        *([("tasks", loaded.run.tasks)] if training else []),
        held_out,
    ]
    for above, sources in sections:
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
