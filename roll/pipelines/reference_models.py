"""What other models say of a batch before it is learned from. Each is asked only where the recipe needs it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from roll.algorithms.credit import with_rewards
from roll.algorithms.recipe import Need
from roll.cluster.handle import Cluster
from roll.data.collate import last_rows, shards
from roll.engines.base import Adapted, Scorer, Trainer
from roll.types import Batch


@dataclass(frozen=True, slots=True, kw_only=True)
class Models:
    """Those beside the actor; None where nobody needs it."""

    reference: Cluster[Scorer] | None = None
    teacher: Cluster[Scorer] | None = None
    critic: Cluster[Trainer] | None = None
    reward_model: Cluster[Scorer] | None = None
    reward_weight: float = 1.0
    based: bool = False
    """Whether the reference is the actor itself, without its adapters."""

    async def start(self) -> None:
        for cluster in self.by_role().values():
            await cluster.each(Scorer.start)

    async def stop(self) -> None:
        for cluster in self.by_role().values():
            await cluster.each(Scorer.stop)

    def by_role(self) -> dict[str, Cluster[Any]]:
        """Those that there are, by the names of their sections."""
        named = {role: getattr(self, role) for role in ("reference", "teacher", "critic", "reward_model")}
        return {role: cluster for role, cluster in named.items() if cluster is not None}


async def score(batch: Batch, actor: Cluster[Trainer], models: Models, needs: frozenset[Need]) -> Batch:
    """The batch with the rows that `needs` name."""
    if models.reward_model is not None:
        batch = await _judged(batch, models.reward_model, models.reward_weight)
    rows: dict[str, torch.Tensor] = {}
    if "old_logprobs" in needs:
        rows["old_logprobs"] = await _asked(actor, Trainer.logprobs, batch)
    if models.based:
        rows["ref_logprobs"] = await _asked(actor, Adapted.base_logprobs, batch)
    if models.reference is not None:
        rows["ref_logprobs"] = await _asked(models.reference, Scorer.logprobs, batch)
    if models.teacher is not None:
        rows["teacher_logprobs"] = await _asked(models.teacher, Scorer.logprobs, batch)
    if models.critic is not None:
        rows["values"] = await _asked(models.critic, Scorer.values, batch)
    return replace(batch, **rows)


async def _judged(batch: Batch, judge: Cluster[Scorer], weight: float) -> Batch:
    """With the reward model's score of each whole trajectory added to its reward."""
    whole = last_rows(batch)
    values = await _asked(judge, Scorer.values, whole)
    ends = torch.tensor(whole.lengths).cumsum(0) - 1
    return with_rewards(batch, batch.rewards + weight * values[ends])


async def _asked(
    cluster: Cluster[Any], method: Callable[[Any, Batch], Awaitable[torch.Tensor]], batch: Batch
) -> torch.Tensor:
    """One number a token, each worker having seen its share."""
    dealt = shards(batch, cluster.size)
    found = await cluster.scatter(method, [batch.select(rows) for rows in dealt])
    row = torch.zeros(batch.num_tokens)
    for rows, part in zip(dealt, found, strict=True):
        row[batch.places(rows)] = part
    return row
