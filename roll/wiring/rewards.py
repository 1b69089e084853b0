"""Who asks the rewards, from configuration. Imports no torch."""

from __future__ import annotations

from roll.cluster.processes import ProcessCluster
from roll.config.schema import Rewards
from roll.rewards.worker import RewardWorker
from roll.rollout.pool import InlineRewards, RewardPool, Scorer
from roll.types import Call


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
