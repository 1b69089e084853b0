"""Silent bugs planted on purpose: each has been shipped somewhere, and each runs without an error."""

from dataclasses import replace
from typing import Any

import torch

from roll.algorithms import advantages, losses, shaping
from roll.algorithms.objective import correction_factors, evaluate
from roll.algorithms.recipe import Objective
from roll.types import Batch, Tokens

Row = torch.Tensor
Loss = tuple[torch.Tensor, dict[str, torch.Tensor]]


def clean(tokens: Tokens) -> Tokens:
    """The tokens with zeros at untrained positions, so that a bug is detected by its own effect and not by garbage."""
    rows = ("logprobs", "old_logprobs", "sampler_logprobs", "advantages", "values", "old_values", "returns")
    return replace(tokens, **{name: torch.where(tokens.trained, getattr(tokens, name), 0.0) for name in rows})


def ratio_of(tokens: Tokens) -> Row:
    return (tokens.logprobs - tokens.old_logprobs).exp()


def row_mean(tokens: Tokens, row: Row) -> Row:
    """The mean over the trained tokens of each sequence."""
    size = int(tokens.row.max()) + 1 if len(tokens.row) else 0
    retained = torch.where(tokens.trained, row, 0.0)
    sums = torch.zeros(size).index_add(0, tokens.row, retained)
    counts = torch.zeros(size).index_add(0, tokens.row, tokens.trained.float())
    return (sums / counts.clamp(min=1))[tokens.row]


# Losses


def clipped_on_both_sides(tokens: Tokens) -> Loss:
    tokens = clean(tokens)
    return -ratio_of(tokens).clamp(0.8, 1.2) * tokens.advantages, {}


def clip_bounds_swapped(tokens: Tokens, *, clip_low: float, clip_high: float) -> Loss:
    return losses.clipped(tokens, clip_low=clip_high, clip_high=clip_low)


def dual_clip_for_positives(tokens: Tokens, *, dual_clip: float) -> Loss:
    tokens = clean(tokens)
    gain = -losses.clipped(tokens)[0]
    bound = dual_clip * tokens.advantages
    return -torch.where(tokens.advantages > 0, torch.maximum(gain, bound), gain), {}


def dual_clip_by_minimum(tokens: Tokens, *, dual_clip: float) -> Loss:
    tokens = clean(tokens)
    gain = -losses.clipped(tokens)[0]
    return -torch.where(tokens.advantages < 0, torch.minimum(gain, dual_clip * tokens.advantages), gain), {}


def ratio_against_the_sampler(tokens: Tokens) -> Loss:
    return losses.clipped(replace(tokens, old_logprobs=tokens.sampler_logprobs))


def cispo_attached(tokens: Tokens) -> Loss:
    tokens = clean(tokens)
    return -ratio_of(tokens).clamp(0.0, 1.2) * tokens.advantages * tokens.logprobs, {}


def behaviour_ratio_attached(tokens: Tokens) -> Loss:
    tokens = clean(tokens)
    policy = tokens.logprobs - tokens.logprobs.detach() + tokens.old_logprobs  # the right number, with a gradient
    return losses.clipped(tokens)[0] * (policy - tokens.sampler_logprobs).exp(), {}


def sequence_ratio_by_sum(tokens: Tokens, *, clip_low: float, clip_high: float) -> Loss:
    tokens = clean(tokens)
    size = int(tokens.row.max()) + 1 if len(tokens.row) else 0
    total = torch.zeros(size).index_add(0, tokens.row, tokens.logprobs - tokens.old_logprobs)
    ratio = total.exp()[tokens.row]
    bounded = ratio.clamp(1 - clip_low, 1 + clip_high)
    return -torch.minimum(ratio * tokens.advantages, bounded * tokens.advantages), {}


def sequence_ratio_over_observations(tokens: Tokens, *, clip_low: float, clip_high: float) -> Loss:
    tokens = clean(tokens)
    everything = replace(tokens, trained=torch.ones_like(tokens.trained))
    ratio = row_mean(everything, tokens.logprobs - tokens.old_logprobs).exp()
    bounded = ratio.clamp(1 - clip_low, 1 + clip_high)
    return -torch.minimum(ratio * tokens.advantages, bounded * tokens.advantages), {}


def geometric_clip_on_both_sides(tokens: Tokens) -> Loss:
    tokens = clean(tokens)
    ratio = row_mean(tokens, (tokens.logprobs - tokens.old_logprobs).clamp(-0.4, 0.4)).exp()
    return -ratio * tokens.advantages, {}


def topr_signs_swapped(tokens: Tokens) -> Loss:
    tokens = clean(tokens)
    weight = (tokens.logprobs - tokens.sampler_logprobs).exp().clamp(0, 1).detach()
    return -torch.where(tokens.advantages >= 0, weight, 1.0) * tokens.advantages * tokens.logprobs, {}


def raft_learns_from_negatives(tokens: Tokens) -> Loss:
    return losses.clipped(tokens)


def value_clip_by_minimum(tokens: Tokens, *, clip: float) -> Loss:
    tokens = clean(tokens)
    assert tokens.values is not None and tokens.old_values is not None and tokens.returns is not None
    near = torch.clamp(tokens.values, tokens.old_values - clip, tokens.old_values + clip)
    return 0.5 * torch.minimum((tokens.values - tokens.returns) ** 2, (near - tokens.returns) ** 2), {}


def mean_over_the_micro_batch(tokens: Tokens) -> Loss:
    return losses.policy_gradient(tokens)[0] / tokens.trained.sum().clamp(min=1), {}


def advantages_whitened_in_the_loss(tokens: Tokens) -> Loss:
    tokens = clean(tokens)
    retained = tokens.advantages[tokens.trained]
    centred = tokens.advantages - retained.sum() / max(1, len(retained))
    scaled = centred / (centred.square().mean().sqrt() + 1e-6)
    return -scaled * tokens.logprobs, {}


def masked_by_multiplication(tokens: Tokens) -> Loss:
    return -tokens.advantages * tokens.logprobs * tokens.trained, {}


def one_number_for_all(tokens: Tokens) -> Loss:
    return losses.policy_gradient(tokens)[0].sum(), {}


def without_a_gradient(tokens: Tokens) -> Loss:
    return losses.policy_gradient(tokens)[0].detach(), {}


def root_of_the_difference(tokens: Tokens) -> Loss:
    tokens = clean(tokens)
    return (tokens.logprobs - tokens.sampler_logprobs).abs().sqrt(), {}


def metric_of_the_batch(tokens: Tokens) -> Loss:
    return losses.policy_gradient(tokens)[0], {"mean": tokens.advantages.mean()}


# Corrections


def correction_of_the_current_policy(tokens: Tokens) -> Row:
    return (tokens.logprobs.detach() - tokens.sampler_logprobs).exp().clamp(max=2.0)


def correction_attached(tokens: Tokens) -> Row:
    return (tokens.logprobs - tokens.sampler_logprobs).exp().clamp(max=2.0)


def geometric_by_sum(tokens: Tokens, *, level: str, cap: float) -> Row:
    tokens = clean(tokens)
    size = int(tokens.row.max()) + 1 if len(tokens.row) else 0
    total = torch.zeros(size).index_add(0, tokens.row, tokens.old_logprobs - tokens.sampler_logprobs)
    return total.exp().clamp(max=cap)[tokens.row]


def reject_single_tokens(tokens: Tokens, *, level: str, low: float, high: float) -> Row:
    tokens = clean(tokens)
    ratio = (tokens.old_logprobs - tokens.sampler_logprobs).exp()
    return ((ratio >= low) & (ratio <= high)).float()


def truncate_instead_of_mask(tokens: Tokens, *, low: float, high: float) -> Row:
    tokens = clean(tokens)
    return (tokens.old_logprobs - tokens.sampler_logprobs).exp().clamp(low, high)


# KL, and how an objective is put together


def k3_reversed(d: Row) -> Row:
    return d.exp() - d - 1


def k2_without_the_half(d: Row) -> Row:
    return d.square()


def kl_twice(tokens: Tokens, weights: Row, objective: Objective) -> Loss:
    return evaluate(tokens, weights, replace(objective, kl_coefficient=objective.kl_coefficient**2))


def entropy_as_a_penalty(tokens: Tokens, weights: Row, objective: Objective) -> Loss:
    return evaluate(tokens, weights, replace(objective, entropy=-objective.entropy))


def kl_under_the_correction(tokens: Tokens, weights: Row, objective: Objective) -> Loss:
    assert objective.correction is not None
    factor = torch.where(tokens.trained, correction_factors(tokens, objective.correction), 0.0)
    return evaluate(tokens, weights * factor, replace(objective, correction=None))


# Aggregations


def mean_over_all_tokens(batch: Batch) -> Row:
    return batch.trained.float() / max(1, batch.num_tokens)


def mask_only_in_the_advantage(batch: Batch) -> Row:
    return torch.full((batch.num_tokens,), 1 / max(1, int(batch.trained.sum())))


def mean_over_empty_rows_too(batch: Batch) -> Row:
    row = rows_of(batch)
    inside = torch.zeros(len(batch.lengths)).index_add(0, row, batch.trained.float())
    return batch.trained.float() / (len(batch.lengths) * inside.clamp(min=1))[row]


def nan_when_nothing_is_trained(batch: Batch) -> Row:
    return batch.trained.float() / batch.trained.sum()


def constant_by_the_longest_row(batch: Batch, *, tokens: int) -> Row:
    row = rows_of(batch)
    inside = torch.zeros(len(batch.lengths)).index_add(0, row, batch.trained.float())
    longest = max(batch.lengths, default=1)
    return batch.trained.float() / ((inside > 0).sum().clamp(min=1) * max(1, longest))


def rows_of(batch: Batch) -> Row:
    return torch.repeat_interleave(torch.arange(len(batch.lengths)), torch.tensor(batch.lengths))


# Advantages


def groups_by_row_order(batch: Batch) -> Row:
    """Treats four adjacent trajectories as siblings."""
    return advantages.group_normalised(replace(batch, group=torch.arange(len(batch.rewards)) // 4))


def normalised_after_duplication(batch: Batch) -> Row:
    """A trajectory counts once per row."""
    rewards, group = batch.rewards[batch.trajectory], batch.group[batch.trajectory]
    each = replace(batch, rewards=rewards, group=group, trajectory=torch.arange(len(rewards)))
    return advantages.group_normalised(each)


def biased_for_unbiased(batch: Batch, *, unbiased: bool) -> Row:
    return advantages.group_normalised(batch, unbiased=not unbiased)


def nan_in_a_group_of_one(batch: Batch, *, unbiased: bool) -> Row:
    result = torch.zeros(len(batch.rewards))
    for own in batch.group.unique():
        rewards = batch.rewards[batch.group == own]
        centred = rewards - rewards.mean()
        result[batch.group == own] = centred / ((centred.square().sum() / (len(rewards) - 1)).sqrt() + 1e-6)
    return spread(batch, result)


def equal_rewards_amplified(batch: Batch) -> Row:
    """Means in single precision are off in the last digit, and are then divided by eps alone."""
    result = torch.zeros(len(batch.rewards))
    for own in batch.group.unique():
        rewards = batch.rewards[batch.group == own]
        mean = rewards.cumsum(0)[-1] * (1 / torch.tensor(float(len(rewards))))
        deviation = (rewards - mean).square().mean().sqrt()
        result[batch.group == own] = (rewards - mean) / (deviation + 1e-8)
    return spread(batch, result)


def rewards_in_half_precision(batch: Batch) -> Row:
    return advantages.group_normalised(replace(batch, rewards=batch.rewards.bfloat16().float()))


def leave_one_out_with_itself(batch: Batch) -> Row:
    return advantages.group_normalised(batch, scale=False)


def batch_deviation_of_each_group(batch: Batch) -> Row:
    return advantages.group_normalised(batch)


def whitened_over_all_tokens(batch: Batch) -> Row:
    return advantages.batch_normalised(replace(batch, trained=torch.ones_like(batch.trained), penalties=None))


def gae_past_the_last_trained_token(batch: Batch) -> Row:
    """The next value is that of the next token, trained or not."""
    assert batch.values is not None
    values = torch.nan_to_num(batch.values, nan=1.0, posinf=1.0, neginf=1.0).clamp(-5, 5)
    after = torch.cat([values[1:], torch.zeros(1)])
    last = last_trained(batch)
    return advantages.gae(batch) + torch.where(last, after, 0.0)


def gae_anew_in_every_row(batch: Batch) -> Row:
    size = len(batch.lengths)
    owner = batch.trajectory
    each = replace(
        batch,
        trajectory=torch.arange(size),
        group=batch.group[owner],
        rewards=batch.rewards[owner],
        truncated=batch.truncated[owner],
        turn_trajectory=first_row_of_turns(batch),
    )
    return advantages.gae(each)


def gae_bootstraps_unasked(batch: Batch) -> Row:
    return advantages.gae(batch, bootstrap=True)


def outcome_on_an_observation(batch: Batch, *, per: str) -> Row:
    """A turn's reward goes to its last token; an observation after the response loses it."""
    if not batch.num_tokens:
        return torch.zeros(0)
    ends = torch.full((len(batch.turn_rewards),), -1)
    ends[batch.turn] = torch.arange(batch.num_tokens)
    rewards = torch.where((ends >= 0) & batch.trained[ends.clamp(min=0)], batch.turn_rewards, 0.0)
    return advantages.discounted(replace(batch, turn_rewards=rewards), per="token")


def discount_per_token(batch: Batch, *, gamma: float) -> Row:
    return advantages.discounted(batch, gamma=gamma, per="token")


def states_across_tasks(batch: Batch) -> Row:
    """Siblings of a step come from all groups; those of the episode are right."""
    episode = advantages.group_normalised(batch)
    mixed = replace(batch, group=torch.zeros_like(batch.group))
    return episode + advantages.gigpo(mixed) - advantages.group_normalised(mixed)


def distilled_the_other_way(batch: Batch) -> Row:
    return -advantages.distilled(batch)


def spread(batch: Batch, per_trajectory: Row) -> Row:
    return torch.where(batch.trained, per_trajectory[batch.trajectory][rows_of(batch)], 0.0)


def last_trained(batch: Batch) -> Row:
    """Whether a token is the last trained one of its trajectory."""
    owner = batch.trajectory[rows_of(batch)]
    places = torch.arange(batch.num_tokens)
    last = torch.full((len(batch.rewards),), -1)
    last[owner[batch.trained]] = places[batch.trained]
    return places == last[owner]


def first_row_of_turns(batch: Batch) -> Row:
    result = torch.zeros_like(batch.turn_trajectory)
    rows = torch.arange(len(batch.lengths))
    for turn, owner in enumerate(batch.turn_trajectory.tolist()):
        result[turn] = rows[batch.trajectory == owner][0]
    result[batch.turn] = rows_of(batch)
    return result


# Shapings


def deviation_of_the_batch(batch: Batch, moments: Any, *, mean: str, std: str) -> Row:
    return shaping.normalised(batch, moments, mean="group", std="batch")


def overlong_by_all_tokens(batch: Batch, moments: Any, *, max_tokens: int, buffer: int) -> Row:
    everything = replace(batch, trained=torch.ones_like(batch.trained))
    return shaping.overlong(everything, moments, max_tokens=max_tokens, buffer=buffer)


def no_part_is_no_format(batch: Batch, moments: Any) -> Row:
    return batch.rewards - (batch.parts["format"] != 1).float()
