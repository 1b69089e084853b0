"""Who asks the rewards, from configuration. Imports no torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from roll.cluster.processes import ProcessCluster
from roll.config.load import Loaded
from roll.config.reward import Reward
from roll.config.schema import Rewards, Source
from roll.errors import ConfigError
from roll.registry import REWARDS
from roll.rewards.worker import RewardWorker
from roll.rollout.reward_pool import InlineRewards, RewardPool, Scorer
from roll.sandbox.level import choose as choose_level
from roll.types import Call

_RUNS_CODE = REWARDS.locate("code")[0]


def build_scorer(rewards: Rewards) -> Scorer:
    """Processes that score, or the caller's own thread; to be started and stopped."""
    if not rewards.workers:
        return InlineRewards(max_retries=rewards.max_retries)
    workers = ProcessCluster[RewardWorker](
        Call("roll.rewards.worker:RewardWorker"),
        rewards.workers,
        name="reward worker",
        limit_s=rewards.timeout_s,
        limits={RewardWorker.start.__name__: rewards.start_timeout_s},
    )
    return RewardPool(workers=workers, max_retries=rewards.max_retries)


def check_sandboxes(loaded: Loaded, *, training: bool = True, choose: Callable[[str], Any] = choose_level) -> None:
    """Refuse a run that would run what a model writes where there is no sandbox, unless it says in words that it may.

    `choose` is given what a reward says of its sandbox. Without `training` only held-out tasks are looked at.
    """
    held_out = ("validation.tasks", loaded.run.validation.tasks)
    sections: list[tuple[str, Sequence[Source]]] = [*([("tasks", loaded.run.tasks)] if training else []), held_out]
    for above, sources in sections:
        for index, source in enumerate(sources):
            key = f"{above}.{index}.reward"
            if source.reward is not None:
                check_sandbox(source.reward, place=f"{loaded.place(key)}: {key}", choose=choose)


def check_sandbox(reward: Reward, *, place: str, choose: Callable[[str], Any] = choose_level) -> None:
    """Raise, with `place` before it, why a reward cannot run code on this machine, if it has to."""
    for named in reward.asked:
        if REWARDS.locate(named.kind)[0] == _RUNS_CODE:
            try:
                choose(str(named.arguments.get("sandbox", "auto")))
            except ConfigError as error:
                raise ConfigError(f"{place}: {error}") from None
