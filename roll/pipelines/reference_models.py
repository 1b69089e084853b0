"""Scores of a batch by models other than the trained one: only those that the recipe needs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from roll.algorithms.credit import with_rewards
from roll.algorithms.recipe import Need
from roll.cluster.handle import Cluster
from roll.data.collate import last_rows, shards
from roll.engines.base import HasBaseModel, HasEntropies, LogprobModel, Trainer
from roll.types import Batch


@dataclass(frozen=True, slots=True, kw_only=True)
class AuxiliaryModels:
    """The models besides the actor; None where the recipe does not need one."""

    reference: Cluster[LogprobModel] | None = None
    teacher: Cluster[Any] | None = None
    critic: Cluster[Trainer] | None = None
    reward_model: Cluster[LogprobModel] | None = None
    reward_weight: float = 1.0
    reference_is_base: bool = False
    """Whether the reference is the actor without its adapters."""

    async def start(self) -> None:
        for cluster in self.by_role().values():
            await cluster.each(LogprobModel.start)

    async def stop(self) -> None:
        for cluster in self.by_role().values():
            await cluster.each(LogprobModel.stop)

    def by_role(self) -> dict[str, Cluster[Any]]:
        """The existing clusters, by the names of their config sections."""
        clusters = {role: getattr(self, role) for role in ("reference", "teacher", "critic", "reward_model")}
        return {role: cluster for role, cluster in clusters.items() if cluster is not None}


async def score(batch: Batch, actor: Cluster[Trainer], models: AuxiliaryModels, needs: frozenset[Need]) -> Batch:
    """The batch with the per-token rows that `needs` names, and with the reward model's rewards.

    Only the actor repeats the generator's choice of experts: the other models are not what the generator sampled from.
    """
    whole, batch = batch, replace(batch, experts=None)
    if models.reward_model is not None:
        batch = await _add_model_reward(batch, models.reward_model, models.reward_weight)
    rows: dict[str, torch.Tensor] = {}
    if "entropies" in needs:
        both = await _per_token(actor, HasEntropies.logprobs_and_entropies, whole)
        rows["old_logprobs"], rows["entropies"] = both
    elif "old_logprobs" in needs:
        rows["old_logprobs"] = await _per_token(actor, Trainer.logprobs, whole)
    if models.reference_is_base:
        rows["ref_logprobs"] = await _per_token(actor, HasBaseModel.base_logprobs, batch)
    if models.reference is not None:
        rows["ref_logprobs"] = await _per_token(models.reference, LogprobModel.logprobs, batch)
    if models.teacher is not None:
        rows["teacher_logprobs"] = await _per_token(models.teacher, LogprobModel.logprobs, batch)
    if models.critic is not None:
        rows["values"] = await values_of(batch, models.critic)
    return replace(batch, experts=whole.experts, **rows)


async def values_of(batch: Batch, critic: Cluster[Any]) -> torch.Tensor:
    """[tokens] values of a model with a score head, computed in one shard per worker."""
    return await _per_token(critic, LogprobModel.values, batch)


async def _add_model_reward(batch: Batch, reward_model: Cluster[LogprobModel], weight: float) -> Batch:
    """Add the reward model's score of each complete trajectory to its reward."""
    complete = last_rows(batch)
    values = await values_of(complete, reward_model)
    ends = torch.tensor(complete.lengths).cumsum(0) - 1
    return with_rewards(batch, batch.rewards + weight * values[ends])


async def _per_token(
    cluster: Cluster[Any], method: Callable[[Any, Batch], Awaitable[torch.Tensor]], batch: Batch
) -> torch.Tensor:
    """One value per token, or several rows of them, computed in one shard per worker."""
    sharded = shards(batch, cluster.size)
    results = await cluster.scatter(method, [batch.select(rows) for rows in sharded])
    row = torch.zeros(*results[0].shape[:-1], batch.num_tokens)
    for rows, part in zip(sharded, results, strict=True):
        row[..., batch.positions(rows)] = part
    return row
