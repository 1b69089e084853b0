"""Who earned what: from rewards to one advantage and one weight a token, part by part as a recipe says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from roll.algorithms.kl import adapted
from roll.algorithms.moments import Moments
from roll.algorithms.objective import corrected, kl_row
from roll.algorithms.recipe import Kl, Recipe
from roll.algorithms.segments import spread, sum_by
from roll.errors import ConfigError
from roll.registry import ADVANTAGES, AGGREGATIONS, EMPHASES, MASKS, SHAPINGS, Table
from roll.types import Batch, Call, Tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """What an algorithm carries from step to step; part of every checkpoint."""

    kl_coefficient: float = 0.0
    moments: Moments = field(default_factory=Moments)
    """Of all rewards so far, as they came."""


def assign_credit(batch: Batch, recipe: Recipe, memory: Memory) -> tuple[Batch, Memory, dict[str, float]]:
    """The batch with `advantages`, and `returns` where there are values; what to remember; what to report.

    Needs the whole global batch: baselines and statistics are taken over all of it. Trajectories that a mask leaves out
    are not trained on afterwards, but count in baselines.
    """
    memory = replace(memory, moments=memory.moments.after(batch.rewards))
    batch = _shaped(batch, recipe.shaping, memory.moments)
    metrics: dict[str, float] = {}
    if recipe.kl is not None:
        batch, memory, metrics = _pulled(batch, recipe.kl, memory)
    _check_needs(batch, recipe)
    earned = _found(ADVANTAGES, recipe.advantage, (batch,), like=batch.trained)
    earned = torch.where(batch.trained, earned.float(), 0.0)
    returns = None if batch.values is None else torch.where(batch.trained, earned + batch.values, 0.0)
    if recipe.whiten:
        earned = _whitened(earned, batch.trained)
    if recipe.clip is not None:
        earned = earned.clamp(-recipe.clip, recipe.clip)
    for part in recipe.emphasis:
        earned = earned * spread(batch, _found(EMPHASES, part, (batch,), like=batch.rewards))
    kept = _kept(batch, recipe)
    metrics["reward/masked"] = 1.0 - float(kept.sum()) / max(1, int(batch.trained.sum()))
    return replace(batch, advantages=torch.where(kept, earned, 0.0), returns=returns, trained=kept), memory, metrics


def weigh(batch: Batch, aggregation: Call) -> Batch:
    """The batch of one optimizer step with `weights`: mask and denominator in one, zero where nothing is trained.

    Made before the batch is cut, so no cut can change the sum; no mask can be forgotten.
    """
    found = _found(AGGREGATIONS, aggregation, (batch,), like=batch.trained)
    return replace(batch, weights=torch.where(batch.trained, found.float(), 0.0))


def minibatches(batch: Batch, count: int, *, seed: int) -> list[Batch]:
    """The batch dealt out at random, trajectory by trajectory and as evenly as can be."""
    if count == 1:
        return [batch]
    order: list[int] = (
        torch.randperm(len(batch.rewards), generator=torch.Generator().manual_seed(seed)).numpy().tolist()
    )
    owners: list[int] = batch.trajectory.numpy().tolist()
    part_of = {trajectory: place % count for place, trajectory in enumerate(order)}
    rows: list[list[int]] = [[] for _ in range(count)]
    for row, trajectory in enumerate(owners):
        rows[part_of[trajectory]].append(row)
    return [batch.select(chosen) for chosen in rows if chosen]


def _shaped(batch: Batch, shaping: Sequence[Call], moments: Moments) -> Batch:
    """With the rewards after all shapings."""
    for part in shaping:
        batch = with_rewards(batch, _found(SHAPINGS, part, (batch, moments), like=batch.rewards))
    return batch


def with_rewards(batch: Batch, rewards: torch.Tensor) -> Batch:
    """The batch with other rewards, what changed being part of each trajectory's last turn."""
    last = torch.zeros_like(batch.group).scatter_reduce(
        0, batch.turn_trajectory, torch.arange(len(batch.turn_trajectory)), "amax", include_self=False
    )
    changed = batch.turn_rewards.double().index_add(0, last, rewards.double() - batch.rewards.double())
    return replace(batch, rewards=rewards.float(), turn_rewards=changed.float())


def _pulled(batch: Batch, kl: Kl, memory: Memory) -> tuple[Batch, Memory, dict[str, float]]:
    """With KL in the reward taken off it, and the coefficient adapted to what was measured."""
    policy = batch.sampler_logprobs if batch.old_logprobs is None else batch.old_logprobs
    row = kl_row(policy, batch.ref_logprobs, batch.trained, kl.estimator)
    mean = float(row.sum()) / max(1, int(batch.trained.sum()))
    coefficient = memory.kl_coefficient
    metrics = {"kl/reference": mean, "kl/coefficient": coefficient}
    if kl.target is not None:
        found = adapted(coefficient, mean, target=kl.target, horizon=kl.horizon, num_samples=len(batch.rewards))
        memory = replace(memory, kl_coefficient=found)
    if kl.place == "reward":
        penalties = coefficient * row
        of_trajectory = sum_by(batch.turn_trajectory[batch.turn], penalties.double(), len(batch.rewards)).float()
        batch = replace(batch, penalties=penalties, rewards=batch.rewards - of_trajectory)
    return batch, memory, metrics


def _check_needs(batch: Batch, recipe: Recipe) -> None:
    if "states" in recipe.needs and batch.turn_states is None:
        raise ConfigError(
            f"algorithm: {recipe.advantage.name} needs states, and an environment of this run names none; "
            "let its replies carry `state`, or choose another recipe"
        )


def _whitened(row: torch.Tensor, trained: torch.Tensor) -> torch.Tensor:
    chosen = row[trained].double()
    if chosen.numel() < 2:
        return torch.zeros_like(row)
    centred = row.double() - chosen.mean()
    deviation = chosen.std(unbiased=False)
    whitened = torch.where(deviation > 0, centred / deviation.clamp(min=1e-8), torch.zeros_like(centred))
    return torch.where(trained, whitened, 0.0).float()


def _kept(batch: Batch, recipe: Recipe) -> torch.Tensor:
    """[tokens] bool: trained on, after all masks and after corrections that reject."""
    kept = batch.trained
    for part in recipe.masks:
        kept = kept & spread(batch, _found(MASKS, part, (batch,), like=batch.rewards).float()).bool()
    if recipe.correction is not None and batch.old_logprobs is not None:
        kept = kept & (corrected(_as_sampled(batch), recipe.correction) > 0)
    return kept


def _as_sampled(batch: Batch) -> Tokens:
    """The batch as a correction sees it before any update."""
    assert batch.old_logprobs is not None
    row = torch.repeat_interleave(torch.arange(len(batch.lengths)), torch.tensor(batch.lengths))
    return Tokens(
        logprobs=batch.old_logprobs,
        old_logprobs=batch.old_logprobs,
        sampler_logprobs=batch.sampler_logprobs,
        advantages=torch.zeros_like(batch.sampler_logprobs),
        trained=batch.trained,
        row=row,
        trajectory=batch.trajectory[row],
        turn=batch.turn,
    )


def _found(table: Table[Any], part: Call, given: tuple[Any, ...], *, like: torch.Tensor) -> torch.Tensor:
    found = table[part.name](*given, **part.arguments)
    if not isinstance(found, torch.Tensor) or found.shape != like.shape:
        got = tuple(found.shape) if isinstance(found, torch.Tensor) else type(found).__name__
        raise ConfigError(
            f"{table.kind} {part.name}: must return a tensor of shape {tuple(like.shape)} (got {got}); fix its code"
        )
    return found
