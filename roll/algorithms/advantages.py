"""Advantages from rewards: `f(batch, **kwargs) -> [tokens]` fp32, 0 on tokens that are not trained.

They need the whole global batch. A trajectory counts once in every baseline, however many segments or tokens it has.
Siblings are matched by group id, never by position. Statistics are in double precision, so equal rewards give an
advantage of exactly zero.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import torch

from roll.algorithms.segments import (
    count_by,
    deviation_by,
    divide_or_zero,
    last_of_run,
    locate_trained,
    mean_by,
    owners,
    scatter,
    siblings,
    spans_of,
    suffix_sums,
    sum_by,
    sum_to_go,
    to_tokens,
    token_rewards,
    turn_returns,
    turns_to_tokens,
)
from roll.errors import ConfigError, UnknownName
from roll.types import Batch

Baseline: TypeAlias = Literal["none", "group", "batch"]
"""Which mean reward to subtract: none, that of the group, or that of the batch."""


def group_normalised(batch: Batch, *, unbiased: bool = False, eps: float = 1e-6, scale: bool = True) -> torch.Tensor:
    """Reward minus the group mean, divided by the group's standard deviation plus `eps` unless `scale` is false.

    Groups with equal rewards, and groups of one, get exactly 0. `unbiased` divides the sum of squares by n - 1.
    """
    index = siblings(batch.group)
    return to_tokens(batch, _normalise(index, batch.rewards, eps if scale else None, unbiased=unbiased))


def group_normalised_process(
    batch: Batch, *, outcome_weight: float = 1.0, unbiased: bool = False, eps: float = 1e-6, scale: bool = True
) -> torch.Tensor:
    """Sum of the group-normalised rewards of the spans that end at the token or later, plus the normalised outcome.

    The rewards of all spans of a group are normalised together, as `group_normalised` does with rewards. The outcome
    is the trajectory's reward without its spans; it is normalised in the same way, times `outcome_weight`.
    """
    divisor_eps = eps if scale else None
    owner, ends = owners(batch), spans_of(batch).nonzero().squeeze(1)
    spans = batch.rewards.new_zeros(0) if batch.span_rewards is None else batch.span_rewards[ends]
    outcome = batch.rewards - sum_by(owner[ends], spans.double(), len(batch.rewards))
    index = siblings(batch.group)
    whole = _normalise(index, outcome.float(), divisor_eps, unbiased=unbiased)  # fp32 makes equal outcomes equal again
    normalised = _normalise(siblings(index[owner[ends]]), spans, divisor_eps, unbiased=unbiased)
    later = sum_to_go(batch, scatter(batch, ends, normalised.double()), 1.0)
    return torch.where(batch.trained, later + outcome_weight * whole[owner], 0.0).float()


def group_centred_batch_scaled(batch: Batch, *, unbiased: bool = False, eps: float = 1e-6) -> torch.Tensor:
    """Reward minus the group mean, divided by the standard deviation of all rewards of the batch plus `eps`."""
    centred = batch.rewards - mean_by(siblings(batch.group), batch.rewards)
    whole_batch = torch.zeros_like(batch.group)
    return to_tokens(batch, divide_or_zero(centred, deviation_by(whole_batch, batch.rewards, unbiased=unbiased), eps))


def leave_one_out(batch: Batch) -> torch.Tensor:
    """Reward minus the mean reward of the other siblings; exactly 0 in a group of one."""
    index = siblings(batch.group)
    others = (count_by(index) - 1)[index]
    centred = batch.rewards - mean_by(index, batch.rewards)
    return to_tokens(batch, centred * (others + 1) / others.clamp(min=1))


def batch_centred(batch: Batch) -> torch.Tensor:
    """Reward minus the mean over all trajectories of the batch, regardless of groups."""
    return to_tokens(batch, batch.rewards - _baseline(batch, "batch"))


def batch_normalised(
    batch: Batch, *, baseline: Baseline = "none", unbiased: bool = False, eps: float = 1e-6
) -> torch.Tensor:
    """Token rewards summed to the end of the trajectory, minus the baseline, whitened over all trained tokens.

    `eps` is added to the deviation over the batch's trained tokens; equal returns give exactly 0.
    """
    positions, owner = locate_trained(batch)
    returns = suffix_sums(owner, token_rewards(batch).index_select(0, positions), 1.0)
    returns = (returns - _baseline(batch, baseline)[owner]).float().double()  # fp32 makes equal returns equal again
    centred = returns - returns.mean()
    deviation = (centred.square().sum() / max(len(returns) - int(unbiased), 1)).sqrt()
    return scatter(batch, positions, divide_or_zero(centred, deviation, eps).float())


def discounted(
    batch: Batch,
    *,
    gamma: float = 1.0,
    per: Literal["turn", "token"] = "turn",
    baseline: Baseline = "none",
) -> torch.Tensor:
    """Rewards summed to the end of the trajectory, discounted by `gamma` per turn or per trained token.

    Per turn, all tokens of a turn get the turn's return. The baseline is a mean of whole trajectories' undiscounted
    rewards, equal for every token.
    """
    expected = _baseline(batch, baseline)
    if per == "turn":
        return turns_to_tokens(batch, turn_returns(batch, gamma) - expected[batch.turn_trajectory])
    if per == "token":
        returns = sum_to_go(batch, token_rewards(batch), gamma) - expected[owners(batch)]
        return torch.where(batch.trained, returns, 0.0).float()
    raise UnknownName("unit of discount", per, ("turn", "token"))


def gae(batch: Batch, *, gamma: float = 1.0, lam: float = 1.0, bootstrap: bool = False) -> torch.Tensor:
    """Generalised advantage estimation along the trained tokens of a trajectory, over all its rows.

    The value after the last trained token is 0, because the trajectory ended. With `bootstrap` a truncated trajectory
    uses its last token's value there instead. Values of untrained tokens are never read.
    """
    if batch.values is None:
        raise ConfigError("gae: the batch has no values (got None); it needs a critic")
    positions, owner = locate_trained(batch)
    values = batch.values.index_select(0, positions).double()
    after = torch.zeros_like(values)
    after[:-1] = values[1:]
    bootstrapped = batch.truncated & bootstrap
    after = torch.where(last_of_run(owner), torch.where(bootstrapped[owner], values, 0.0), after)
    errors = token_rewards(batch).index_select(0, positions) + gamma * after - values
    return scatter(batch, positions, suffix_sums(owner, errors, gamma * lam).float())


def gigpo(
    batch: Batch, *, step_weight: float = 1.0, gamma: float = 0.95, eps: float = 1e-6, scale: bool = True
) -> torch.Tensor:
    """Group-normalised reward of the episode, plus `step_weight` times the group-normalised return of the step.

    A step is a turn; its return is discounted by `gamma` per turn. Its siblings are all turns of the same group in the
    same state, including other turns of its trajectory; a state seen once gives exactly 0.
    """
    if batch.turn_states is None:
        raise ConfigError("gigpo: the batch has no states (got None); use an environment that reports states")
    divisor_eps = eps if scale else None
    episode = _normalise(siblings(batch.group), batch.rewards, divisor_eps)
    same_state = siblings(batch.group[batch.turn_trajectory], batch.turn_states)
    step = _normalise(same_state, turn_returns(batch, gamma).float(), divisor_eps)  # fp32 makes equal returns equal
    return turns_to_tokens(batch, episode[batch.turn_trajectory] + step_weight * step)


def distilled(batch: Batch, *, weight: float = 1.0) -> torch.Tensor:
    """Teacher's logprob minus the policy's, per token, times `weight`.

    The policy's logprobs are the recomputed ones where present, otherwise the sampler's.
    """
    if batch.teacher_logprobs is None:
        raise ConfigError("distilled: the batch has no teacher logprobs (got None); it needs a teacher")
    policy = batch.sampler_logprobs if batch.old_logprobs is None else batch.old_logprobs
    return torch.where(batch.trained, weight * (batch.teacher_logprobs - policy), 0.0).float()


def _normalise(index: torch.Tensor, values: torch.Tensor, eps: float | None, *, unbiased: bool = False) -> torch.Tensor:
    """Values minus the mean of their index, divided by its deviation plus `eps`; not divided where `eps` is None."""
    centred = values - mean_by(index, values)
    return centred if eps is None else divide_or_zero(centred, deviation_by(index, values, unbiased=unbiased), eps)


def _baseline(batch: Batch, name: Baseline) -> torch.Tensor:
    """[trajectories] fp64: the mean reward to compare each trajectory with."""
    if name == "none":
        return torch.zeros_like(batch.rewards, dtype=torch.float64)
    if name == "group":
        return mean_by(siblings(batch.group), batch.rewards)
    if name == "batch":
        return mean_by(torch.zeros_like(batch.group), batch.rewards)
    raise UnknownName("baseline", name, ("none", "group", "batch"))
