"""Rewards to advantages: `f(batch, **kwargs) -> [tokens]` fp32, 0 on tokens that are not trained on.

They need the whole global batch. A trajectory counts once in every baseline, however many segments or tokens it has.
Siblings are found by their group id, never by their place in the tensor. Statistics are taken in double precision, so
equal rewards give an advantage of exactly zero.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import torch

from roll.algorithms.segments import (
    count_by,
    deviation_by,
    divided,
    last_of_run,
    lay_out,
    mean_by,
    owners,
    siblings,
    spread,
    spread_turns,
    suffix_sums,
    to_go,
    token_rewards,
    trained_tokens,
    turns_to_go,
)
from roll.errors import ConfigError, UnknownName
from roll.types import Batch

Baseline: TypeAlias = Literal["none", "group", "batch"]
"""Which trajectories' mean reward is taken off: no one's, the siblings', or everybody's."""


def group_normalised(batch: Batch, *, unbiased: bool = False, eps: float = 1e-6, scale: bool = True) -> torch.Tensor:
    """Each reward less its siblings' mean, over their standard deviation plus `eps` unless `scale` is off.

    A group whose rewards are all equal, and a group of one, get exactly 0. `unbiased` divides the sum of squares by one
    less than the number of siblings.
    """
    index = siblings(batch.group)
    return spread(batch, _normalised(index, batch.rewards, eps if scale else None, unbiased=unbiased))


def group_centred_batch_scaled(batch: Batch, *, unbiased: bool = False, eps: float = 1e-6) -> torch.Tensor:
    """Each reward less its siblings' mean, over the standard deviation of all rewards of the batch plus `eps`."""
    centred = batch.rewards - mean_by(siblings(batch.group), batch.rewards)
    everybody = torch.zeros_like(batch.group)
    return spread(batch, divided(centred, deviation_by(everybody, batch.rewards, unbiased=unbiased), eps))


def leave_one_out(batch: Batch) -> torch.Tensor:
    """Each reward less the mean of the other siblings' rewards; exactly 0 in a group of one."""
    index = siblings(batch.group)
    others = (count_by(index) - 1)[index]
    centred = batch.rewards - mean_by(index, batch.rewards)
    return spread(batch, centred * (others + 1) / others.clamp(min=1))


def batch_centred(batch: Batch) -> torch.Tensor:
    """Each reward less the mean over all trajectories of the batch; groups do not matter."""
    return spread(batch, batch.rewards - _baseline(batch, "batch"))


def batch_normalised(
    batch: Batch, *, baseline: Baseline = "none", unbiased: bool = False, eps: float = 1e-6
) -> torch.Tensor:
    """Token rewards summed to the end of the trajectory, less the baseline, whitened over all trained tokens.

    The deviation over the batch's trained tokens gets `eps` added; where all returns are equal the result is exactly 0.
    """
    places, owner = trained_tokens(batch)
    returns = suffix_sums(owner, token_rewards(batch).index_select(0, places), 1.0)
    returns = (returns - _baseline(batch, baseline)[owner]).float().double()  # equal ones are equal again in fp32
    centred = returns - returns.mean()
    deviation = (centred.square().sum() / max(len(returns) - int(unbiased), 1)).sqrt()
    return lay_out(batch, places, divided(centred, deviation, eps).float())


def discounted(
    batch: Batch,
    *,
    gamma: float = 1.0,
    per: Literal["turn", "token"] = "turn",
    baseline: Baseline = "none",
) -> torch.Tensor:
    """Rewards summed to the end of the trajectory, `gamma` less with each turn or with each trained token.

    Per turn, all tokens of a turn get the turn's return. The baseline is a mean of whole trajectories' undiscounted
    rewards, and the same for every token.
    """
    expected = _baseline(batch, baseline)
    if per == "turn":
        return spread_turns(batch, turns_to_go(batch, gamma) - expected[batch.turn_trajectory])
    if per == "token":
        returns = to_go(batch, token_rewards(batch), gamma) - expected[owners(batch)]
        return torch.where(batch.trained, returns, 0.0).float()
    raise UnknownName("unit of discount", per, ("turn", "token"))


def gae(batch: Batch, *, gamma: float = 1.0, lam: float = 1.0, bootstrap: bool = False) -> torch.Tensor:
    """Generalised advantage estimation along the trained tokens of a trajectory, over all its rows.

    The value after the last trained token is 0: the trajectory ended. With `bootstrap` a truncated one goes on as it
    stood, so that value is taken to be the last token's once more. Values of untrained tokens are never read.
    """
    if batch.values is None:
        raise ConfigError("gae: the batch has no values (got None); it needs a critic")
    places, owner = trained_tokens(batch)
    values = batch.values.index_select(0, places).double()
    after = torch.zeros_like(values)
    after[:-1] = values[1:]
    kept = batch.truncated & bootstrap
    after = torch.where(last_of_run(owner), torch.where(kept[owner], values, 0.0), after)
    errors = token_rewards(batch).index_select(0, places) + gamma * after - values
    return lay_out(batch, places, suffix_sums(owner, errors, gamma * lam).float())


def gigpo(
    batch: Batch, *, step_weight: float = 1.0, gamma: float = 0.95, eps: float = 1e-6, scale: bool = True
) -> torch.Tensor:
    """The group-normalised reward of the episode, plus `step_weight` times that of the step.

    A step is a turn; its reward is the return from it on, `gamma` less with each turn. Its siblings are all turns taken
    in the same state by the same group, those of its own trajectory among them; a state seen once gives exactly 0.
    """
    if batch.turn_states is None:
        raise ConfigError(
            "gigpo: the batch has no states (got None); use an environment that names the state of a turn"
        )
    added = eps if scale else None
    episode = _normalised(siblings(batch.group), batch.rewards, added)
    alike = siblings(batch.group[batch.turn_trajectory], batch.turn_states)
    step = _normalised(alike, turns_to_go(batch, gamma).float(), added)  # equal returns are equal again in fp32
    return spread_turns(batch, episode[batch.turn_trajectory] + step_weight * step)


def distilled(batch: Batch, *, weight: float = 1.0) -> torch.Tensor:
    """How much likelier the teacher finds each token than the policy did, in logprob, times `weight`.

    The policy's are the recomputed logprobs where there are any, else the sampler's.
    """
    if batch.teacher_logprobs is None:
        raise ConfigError("distilled: the batch has no teacher's logprobs (got None); it needs a teacher")
    policy = batch.sampler_logprobs if batch.old_logprobs is None else batch.old_logprobs
    return torch.where(batch.trained, weight * (batch.teacher_logprobs - policy), 0.0).float()


def _normalised(
    index: torch.Tensor, values: torch.Tensor, eps: float | None, *, unbiased: bool = False
) -> torch.Tensor:
    """Values less the mean of their index; unless `eps` is None, over the deviation."""
    centred = values - mean_by(index, values)
    return centred if eps is None else divided(centred, deviation_by(index, values, unbiased=unbiased), eps)


def _baseline(batch: Batch, name: Baseline) -> torch.Tensor:
    """[trajectories] fp64: the mean reward to compare each trajectory with."""
    if name == "none":
        return torch.zeros_like(batch.rewards, dtype=torch.float64)
    if name == "group":
        return mean_by(siblings(batch.group), batch.rewards)
    if name == "batch":
        return mean_by(torch.zeros_like(batch.group), batch.rewards)
    raise UnknownName("baseline", name, ("none", "group", "batch"))
