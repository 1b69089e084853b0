"""Who earned what: from rewards to one advantage and one weight a token, part by part as a recipe says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from roll.algorithms.kl import adapted
from roll.algorithms.objective import corrected, kl_row
from roll.algorithms.partition import Part, joined, parted
from roll.algorithms.recipe import Kl, Recipe
from roll.algorithms.running_stats import Moments
from roll.algorithms.segments import spread, sum_by
from roll.algorithms.user_code import asked, place_of
from roll.errors import ConfigError
from roll.registry import ADVANTAGES, AGGREGATIONS, EMPHASES, MASKS, SHAPINGS, Table
from roll.types import Batch, Call, Tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """What an algorithm carries from step to step; part of every checkpoint."""

    kl_coefficient: float = 0.0
    moments: Moments = field(default_factory=Moments)
    """Of all rewards so far, as they came; without those of the domains below."""
    domains: Mapping[str, Moments] = field(default_factory=lambda: {})
    """The same of each domain that gives credit in a way of its own."""
    policies: Mapping[str, Memory] = field(default_factory=lambda: {})
    """That of each policy, where a run has several; then there is nothing else."""


def assign_credit(batch: Batch, recipe: Recipe, memory: Memory) -> tuple[Batch, Memory, dict[str, float]]:
    """The batch with `advantages`, and `returns` where there are values; what to remember; what to report.

    Needs the whole global batch: baselines and statistics are taken over all of it. Trajectories that a mask leaves out
    are not trained on afterwards, but count in baselines. A domain with a recipe of its own is credited as if its
    trajectories were all there are, and the others as if it were not there; KL is measured over all.
    """
    metrics: dict[str, float] = {}
    penalties, num_trained = None, int(batch.trained.sum())
    if recipe.kl is not None:
        penalties, memory, metrics = _pulled(batch, recipe.kl, memory)
    if recipe.domains:
        batch, memory = _by_domain(batch, recipe, memory, penalties)
    else:
        batch, moments = _credited(batch, recipe, memory.moments, penalties)
        memory = replace(memory, moments=moments)
    metrics["reward/masked"] = 1.0 - float(batch.trained.sum()) / max(1, num_trained)
    return batch, memory, metrics


def weigh(batch: Batch, aggregation: Call, domains: Mapping[str, Recipe] | None = None) -> Batch:
    """The batch of one optimizer step with `weights`: mask and denominator in one, zero where nothing is trained.

    Made before the batch is cut, so no cut can change the sum; no mask can be forgotten. The weight of a domain of
    `domains` is multiplied in, and changes no denominator.
    """
    found = _found(AGGREGATIONS, aggregation, (batch,), like=batch.trained)
    weight_of = {name: own.weight for name, own in (domains or {}).items() if own.weight != 1}
    if weight_of:
        found = found * spread(batch, torch.tensor([weight_of.get(domain, 1.0) for domain in batch.domains]))
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


def _by_domain(batch: Batch, recipe: Recipe, memory: Memory, penalties: torch.Tensor | None) -> tuple[Batch, Memory]:
    """Each domain with a recipe of its own credited apart, and all others together, with moments of their own."""
    assert len(batch.domains) == len(batch.rewards), "a batch of domains says which each trajectory is of"
    rest = ""  # no domain is called that
    names = [domain if domain in recipe.domains else rest for domain in batch.domains]
    moments = {rest: memory.moments, **memory.domains}
    parts: list[Part] = []
    for name in dict.fromkeys(names):
        part = parted(batch, torch.tensor([name == each for each in names]))
        own = None if penalties is None else penalties[part.tokens]
        credited, moments[name] = _credited(
            part.batch, recipe.domains.get(name, recipe), moments.get(name, Moments()), own
        )
        parts.append(replace(part, batch=credited))
    return joined(batch, parts), replace(memory, moments=moments.pop(rest), domains=moments)


def _credited(batch: Batch, recipe: Recipe, moments: Moments, penalties: torch.Tensor | None) -> tuple[Batch, Moments]:
    """The batch with its credit, and the moments with its rewards."""
    moments = moments.after(batch.rewards)
    batch = _shaped(batch, recipe.shaping, moments)
    if penalties is not None:
        batch = _penalised(batch, penalties)
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
    return replace(batch, advantages=torch.where(kept, earned, 0.0), returns=returns, trained=kept), moments


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


def _pulled(batch: Batch, kl: Kl, memory: Memory) -> tuple[torch.Tensor | None, Memory, dict[str, float]]:
    """What KL in the reward takes off each token, and the coefficient adapted to what was measured."""
    policy = batch.sampler_logprobs if batch.old_logprobs is None else batch.old_logprobs
    row = kl_row(policy, batch.ref_logprobs, batch.trained, kl.estimator)
    mean = float(row.sum()) / max(1, int(batch.trained.sum()))
    coefficient = memory.kl_coefficient
    metrics = {"kl/reference": mean, "kl/coefficient": coefficient}
    if kl.target is not None:
        found = adapted(coefficient, mean, target=kl.target, horizon=kl.horizon, num_samples=len(batch.rewards))
        memory = replace(memory, kl_coefficient=found)
    return coefficient * row if kl.place == "reward" else None, memory, metrics


def _penalised(batch: Batch, penalties: torch.Tensor) -> Batch:
    """With penalties taken off the rewards of their trajectories."""
    of_trajectory = sum_by(batch.turn_trajectory[batch.turn], penalties.double(), len(batch.rewards)).float()
    return replace(batch, penalties=penalties, rewards=batch.rewards - of_trajectory)


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
    found = asked(table, part, *given)
    if not isinstance(found, torch.Tensor) or found.shape != like.shape:
        got = tuple(found.shape) if isinstance(found, torch.Tensor) else type(found).__name__
        raise ConfigError(
            f"{table.kind} {part.name}: must return a tensor of shape {tuple(like.shape)} (got {got}); "
            f"fix its code{place_of(table, part)}"
        )
    return found
