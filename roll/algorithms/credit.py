"""Credit assignment: from rewards to one advantage and one loss weight per token, as a recipe specifies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from roll.algorithms.kl import next_coefficient
from roll.algorithms.objective import correction_factors, kl_row
from roll.algorithms.partition import SubBatch, join, take
from roll.algorithms.recipe import Recipe
from roll.algorithms.segments import rows_of, sum_by, to_tokens
from roll.algorithms.shaping import RunningStats
from roll.algorithms.user_code import call, check_shape
from roll.config.algorithm import Kl
from roll.errors import ConfigError
from roll.registry import ADVANTAGE_WEIGHTS, ADVANTAGES, AGGREGATIONS, MASKS, SHAPINGS, Table
from roll.types import Batch, Spec, Tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class AlgorithmState:
    """State that an algorithm carries from step to step; part of every checkpoint."""

    kl_coefficient: float = 0.0
    reward_stats: RunningStats = field(default_factory=RunningStats)
    """Statistics of all unshaped rewards so far, except those of `domains`."""
    domains: Mapping[str, RunningStats] = field(default_factory=lambda: {})
    """The same for each domain that has its own recipe."""


def assign_credit(
    batch: Batch, recipe: Recipe, state: AlgorithmState
) -> tuple[Batch, AlgorithmState, dict[str, float]]:
    """The batch with `advantages`, and with `returns` if it has values; the next state; metrics.

    Needs the whole global batch: baselines and statistics cover all of it. Masked trajectories are no longer trained
    but count in baselines. A domain with its own recipe is credited as if the batch held only its trajectories, and
    the others as if it were absent; KL is measured over all.
    """
    metrics: dict[str, float] = {}
    penalties, num_trained = None, int(batch.trained.sum())
    if recipe.kl is not None:
        penalties, state, metrics = _kl_penalties(batch, recipe.kl, state)
    if recipe.domains:
        batch, state = _credit_by_domain(batch, recipe, state, penalties)
    else:
        batch, stats = _credit(batch, recipe, state.reward_stats, penalties)
        state = replace(state, reward_stats=stats)
    metrics["reward/masked"] = 1.0 - float(batch.trained.sum()) / max(1, num_trained)
    return batch, state, metrics


def with_loss_weights(batch: Batch, aggregation: Spec, domains: Mapping[str, Recipe] | None = None) -> Batch:
    """The batch of one optimizer step with `weights`: mask and denominator in one, zero on untrained tokens.

    Computed before the batch is split, so the split cannot change the sum and no mask can be forgotten. The weight of a
    domain in `domains` is multiplied in, and changes no denominator.
    """
    weights = _evaluate(AGGREGATIONS, aggregation, batch, per="token")
    weight_of = {name: domain.weight for name, domain in (domains or {}).items() if domain.weight != 1}
    if weight_of:
        weights = weights * to_tokens(batch, torch.tensor([weight_of.get(domain, 1.0) for domain in batch.domains]))
    return replace(batch, weights=torch.where(batch.trained, weights.float(), 0.0))


def minibatches(batch: Batch, count: int, *, seed: int) -> list[Batch]:
    """The batch split at random into minibatches, by whole trajectories and as evenly as possible."""
    if count == 1:
        return [batch]
    order: list[int] = (
        torch.randperm(len(batch.rewards), generator=torch.Generator().manual_seed(seed)).numpy().tolist()
    )
    owners: list[int] = batch.trajectory.numpy().tolist()
    part_of = {trajectory: position % count for position, trajectory in enumerate(order)}
    rows: list[list[int]] = [[] for _ in range(count)]
    for row, trajectory in enumerate(owners):
        rows[part_of[trajectory]].append(row)
    return [batch.select(chosen) for chosen in rows if chosen]


def _credit_by_domain(
    batch: Batch, recipe: Recipe, state: AlgorithmState, penalties: torch.Tensor | None
) -> tuple[Batch, AlgorithmState]:
    """Credit each domain that has its own recipe separately, and all others together, each with its statistics."""
    assert len(batch.domains) == len(batch.rewards), "a batch of domains has one domain per trajectory"
    rest = ""  # not the name of any domain
    names = [domain if domain in recipe.domains else rest for domain in batch.domains]
    stats = {rest: state.reward_stats, **state.domains}
    parts: list[SubBatch] = []
    for name in dict.fromkeys(names):
        part = take(batch, torch.tensor([name == each for each in names]))
        part_penalties = None if penalties is None else penalties[part.tokens]
        credited, stats[name] = _credit(
            part.batch, recipe.domains.get(name, recipe), stats.get(name, RunningStats()), part_penalties
        )
        parts.append(replace(part, batch=credited))
    return join(batch, parts), replace(state, reward_stats=stats.pop(rest), domains=stats)


def _credit(
    batch: Batch, recipe: Recipe, stats: RunningStats, penalties: torch.Tensor | None
) -> tuple[Batch, RunningStats]:
    """The batch with its credit, and the statistics with its rewards added."""
    stats = stats.after(batch.rewards)
    for part in recipe.shaping:
        batch = with_rewards(batch, _evaluate(SHAPINGS, part, batch, stats))
    if penalties is not None:
        batch = _subtract_penalties(batch, penalties)
    if "states" in recipe.needs and batch.turn_states is None:
        raise ConfigError(
            f"algorithm: {recipe.advantage.name} needs states, and an environment of this run reports none; "
            "return `state` from its steps, or choose another recipe"
        )
    advantages = _evaluate(ADVANTAGES, recipe.advantage, batch, per="token")
    advantages = torch.where(batch.trained, advantages.float(), 0.0)
    returns = None if batch.values is None else torch.where(batch.trained, advantages + batch.values, 0.0)
    if recipe.whiten:
        advantages = _whiten(advantages, batch.trained)
    if recipe.advantage_clip is not None:
        advantages = advantages.clamp(-recipe.advantage_clip, recipe.advantage_clip)
    for part in recipe.advantage_weights:
        advantages = advantages * to_tokens(batch, _evaluate(ADVANTAGE_WEIGHTS, part, batch))
    trained = _tokens_to_train(batch, recipe)
    credited = replace(batch, advantages=torch.where(trained, advantages, 0.0), returns=returns, trained=trained)
    return credited, stats


def with_rewards(batch: Batch, rewards: torch.Tensor) -> Batch:
    """The batch with other rewards; the difference goes to each trajectory's last turn."""
    last = torch.zeros_like(batch.group).scatter_reduce(
        0, batch.turn_trajectory, torch.arange(len(batch.turn_trajectory)), "amax", include_self=False
    )
    changed = batch.turn_rewards.double().index_add(0, last, rewards.double() - batch.rewards.double())
    return replace(batch, rewards=rewards.float(), turn_rewards=changed.float())


def _kl_penalties(
    batch: Batch, kl: Kl, state: AlgorithmState
) -> tuple[torch.Tensor | None, AlgorithmState, dict[str, float]]:
    """The penalty per token if KL is part of the reward, and the state with the coefficient adapted to the KL."""
    policy = batch.sampler_logprobs if batch.old_logprobs is None else batch.old_logprobs
    row = kl_row(policy, batch.ref_logprobs, batch.trained, kl.estimator.spec)
    mean = float(row.sum()) / max(1, int(batch.trained.sum()))
    coefficient = state.kl_coefficient
    metrics = {"kl/reference": mean, "kl/coefficient": coefficient}
    if kl.target is not None:
        changed = next_coefficient(
            coefficient, mean, target=kl.target, horizon=kl.horizon, num_samples=len(batch.rewards)
        )
        state = replace(state, kl_coefficient=changed)
    return coefficient * row if kl.apply_to == "reward" else None, state, metrics


def _subtract_penalties(batch: Batch, penalties: torch.Tensor) -> Batch:
    """The batch with penalties subtracted from the rewards of their trajectories."""
    of_trajectory = sum_by(batch.turn_trajectory[batch.turn], penalties.double(), len(batch.rewards)).float()
    return replace(batch, penalties=penalties, rewards=batch.rewards - of_trajectory)


def _whiten(row: torch.Tensor, trained: torch.Tensor) -> torch.Tensor:
    chosen = row[trained].double()
    if chosen.numel() < 2:
        return torch.zeros_like(row)
    centred = row.double() - chosen.mean()
    deviation = chosen.std(unbiased=False)
    whitened = torch.where(deviation > 0, centred / deviation.clamp(min=1e-8), torch.zeros_like(centred))
    return torch.where(trained, whitened, 0.0).float()


def _tokens_to_train(batch: Batch, recipe: Recipe) -> torch.Tensor:
    """[tokens] bool: tokens left after all masks and all corrections that reject."""
    trained = batch.trained
    for part in recipe.masks:
        trained = trained & to_tokens(batch, _evaluate(MASKS, part, batch).float()).bool()
    if recipe.correction is not None and batch.old_logprobs is not None:
        trained = trained & (correction_factors(_before_update(batch), recipe.correction) > 0)
    return trained


def _before_update(batch: Batch) -> Tokens:
    """The tokens of the batch as a correction sees them before any update."""
    assert batch.old_logprobs is not None
    row = rows_of(batch)
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


def _evaluate(table: Table[Any], part: Spec, batch: Batch, *args: Any, per: str = "trajectory") -> torch.Tensor:
    like = batch.trained if per == "token" else batch.rewards
    return check_shape(table, part, call(table, part, batch, *args), like, per=per)
