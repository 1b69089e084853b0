"""Advantages, aggregations and reward shapings as in their papers, computed per trajectory in double precision.

Untrained tokens get 0. Besides the batch, a shaping takes all rewards of the run so far, including this batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import numpy as np

from roll.conformance.exact import ExactBatch, Floats


def group_normalised(batch: ExactBatch, *, unbiased: bool = False, eps: float = 1e-6, scale: bool = True) -> Floats:
    """(R - group mean) / (group deviation + eps); 0 for equal rewards and for a group of one."""
    return _to_tokens(batch, _episode(batch, unbiased=unbiased, eps=eps, scale=scale))


def group_normalised_process(
    batch: ExactBatch, *, outcome_weight: float = 1.0, unbiased: bool = False, eps: float = 1e-6, scale: bool = True
) -> Floats:
    """Sum over the later spans of (r - mean) / (deviation + eps), each over all spans of the group; plus the outcome's.

    The outcome is R without the rewards of spans, normalised among the siblings.
    """
    spans = [{at: reward for at in positions if (reward := _span_reward(batch, at)) is not None}
             for positions in batch.positions]  # fmt: skip
    outcomes = replace(batch, rewards=batch.rewards - np.array([sum(each.values()) for each in spans]))
    episode = _episode(outcomes, unbiased=unbiased, eps=eps, scale=scale)
    result = np.zeros(len(batch.trained))
    for owner, siblings in enumerate(batch.siblings):
        keys = [(sibling, at) for sibling in siblings for at in spans[sibling]]
        rewards = np.array([spans[sibling][at] for sibling, at in keys])
        scaled = normalise(rewards, unbiased=unbiased, eps=eps, scale=scale) if keys else rewards
        for position in batch.positions[owner]:
            later = [float(number) for (sibling, at), number in zip(keys, scaled, strict=True)
                     if sibling == owner and at >= position]  # fmt: skip
            result[position] = sum(later) + outcome_weight * episode[owner]
    return result


def leave_one_out(batch: ExactBatch) -> Floats:
    """R minus the mean of the other siblings; 0 in a group of one."""
    result: list[float] = []
    for owner, siblings in enumerate(batch.siblings):
        others = [float(batch.rewards[other]) for other in siblings if other != owner]
        result.append(float(batch.rewards[owner]) - sum(others) / len(others) if others else 0.0)
    return _to_tokens(batch, result)


def batch_centred(batch: ExactBatch) -> Floats:
    """R minus the mean over all trajectories."""
    mean = sum(batch.rewards) / max(1, len(batch.rewards))
    return _to_tokens(batch, [reward - mean for reward in batch.rewards])


def group_centred_batch_scaled(batch: ExactBatch, *, unbiased: bool = False, eps: float = 1e-6) -> Floats:
    """(R - group mean) / (deviation of all rewards + eps)."""
    deviation = deviation_of(batch.rewards, unbiased=unbiased)
    centred = [float(batch.rewards[owner]) - mean for owner, mean in enumerate(group_means(batch))]
    return _to_tokens(batch, [number / (deviation + eps) if deviation > 0 else 0.0 for number in centred])


def batch_normalised(batch: ExactBatch, *, baseline: str = "none", unbiased: bool = False, eps: float = 1e-6) -> Floats:
    """Returns-to-go, minus the group mean if `baseline` is "group", whitened over the trained tokens of the batch."""
    returns = _tokenwise(batch, 1.0)
    if baseline == "group":
        returns = returns - _to_tokens(batch, group_means(batch))
    trained = returns[batch.trained]
    deviation = deviation_of(trained, unbiased=unbiased)
    if deviation == 0:
        return np.zeros(len(returns))
    return np.where(batch.trained, (returns - sum(trained) / len(trained)) / (deviation + eps), 0.0)


def gae(batch: ExactBatch, *, gamma: float = 1.0, lam: float = 1.0, bootstrap: bool = False) -> Floats:
    """A_t = delta_t + gamma lam A_{t+1}, delta_t = r_t + gamma V_{t+1} - V_t, over trained tokens alone."""
    assert batch.values is not None, "GAE needs values"
    rewards, result = token_rewards(batch), np.zeros(len(batch.trained))
    for owner, positions in enumerate(batch.positions):
        if not positions:
            continue
        next_value = float(batch.values[positions[-1]]) if bootstrap and batch.truncated[owner] else 0.0
        advantage = 0.0
        for position in reversed(positions):
            delta = rewards[position] + gamma * next_value - batch.values[position]
            advantage = delta + gamma * lam * advantage
            result[position], next_value = advantage, float(batch.values[position])
    return result


def discounted(batch: ExactBatch, *, gamma: float = 1.0, per: str = "turn", baseline: str = "none") -> Floats:
    """Returns-to-go, discounted per turn or per token, minus the mean reward of the group or the batch."""
    rewards = batch.rewards
    means = {
        "none": lambda: [0.0] * len(rewards),
        "group": lambda: group_means(batch),
        "batch": lambda: [float(sum(rewards)) / len(rewards)] * len(rewards),
    }[baseline]()
    returns = _tokenwise(batch, gamma) if per == "token" else _from_turns(batch, turn_returns(batch, gamma))
    return np.where(batch.trained, returns - _to_tokens(batch, means), 0.0)


def gigpo(
    batch: ExactBatch, *, step_weight: float = 1.0, gamma: float = 0.95, eps: float = 1e-6, scale: bool = True
) -> Floats:
    """The episode's advantage plus that of each turn's return among turns of the same group in the same state."""
    assert batch.turn_states is not None, "GiGPO needs states"
    returns = turn_returns(batch, gamma)
    same_state: dict[tuple[int, int], list[int]] = {}
    for turn, owner in enumerate(batch.turn_trajectory):
        same_state.setdefault((int(batch.group[owner]), int(batch.turn_states[turn])), []).append(turn)
    steps = np.zeros(len(returns))
    for turns in same_state.values():
        steps[turns] = normalise(returns[turns], unbiased=False, eps=eps, scale=scale)
    episode = _to_tokens(batch, _episode(batch, unbiased=False, eps=eps, scale=scale))
    return np.where(batch.trained, episode + step_weight * _from_turns(batch, steps), 0.0)


def distilled(batch: ExactBatch, *, weight: float = 1.0) -> Floats:
    """weight (log p_teacher - log p) of each token."""
    assert batch.teacher_logprobs is not None, "distillation needs a teacher"
    policy = batch.sampler_logprobs if batch.old_logprobs is None else batch.old_logprobs
    result = np.zeros(len(batch.trained))
    for position in np.flatnonzero(batch.trained):
        result[position] = weight * (batch.teacher_logprobs[position] - policy[position])
    return result


def token_mean(batch: ExactBatch) -> Floats:
    """1 / (trained tokens of the batch)."""
    num_tokens = sum(batch.trained)
    return _weights(batch, lambda positions: 1 / num_tokens)


def sequence_mean_token_mean(batch: ExactBatch) -> Floats:
    """1 / (rows with a trained token) / (trained tokens of the row)."""
    num_rows = _num_rows(batch)
    return _weights(batch, lambda positions: 1 / num_rows / len(positions))


def sequence_mean_token_sum(batch: ExactBatch) -> Floats:
    """1 / (rows with a trained token)."""
    num_rows = _num_rows(batch)
    return _weights(batch, lambda positions: 1 / num_rows)


def constant(batch: ExactBatch, *, tokens: int) -> Floats:
    """1 / (rows with a trained token) / tokens."""
    num_rows = _num_rows(batch)
    return _weights(batch, lambda positions: 1 / num_rows / tokens)


def clipped(batch: ExactBatch, past: Floats, *, low: float, high: float) -> Floats:
    """Rewards clipped to [low, high]."""
    return np.array([min(max(reward, low), high) for reward in batch.rewards])


def scaled(batch: ExactBatch, past: Floats, *, factor: float = 1.0, shift: float = 0.0) -> Floats:
    """factor R + shift."""
    return np.array([factor * reward + shift for reward in batch.rewards])


def normalised(
    batch: ExactBatch,
    past: Floats,
    *,
    mean: str = "group",
    std: str = "group",
    unbiased: bool = False,
    eps: float = 1e-6,
) -> Floats:
    """(R - mean) / (deviation + eps), each over the group, the batch, or the run; 0 where the deviation is 0."""
    result: list[float] = []
    means = group_means(batch)
    for owner, siblings in enumerate(batch.siblings):
        sources = {"group": batch.rewards[siblings], "batch": batch.rewards, "running": past}
        centre = {"none": 0.0, "group": means[owner]}.get(mean)
        centre = float(sum(sources[mean])) / len(sources[mean]) if centre is None else centre
        number = float(batch.rewards[owner]) - centre
        if std != "none":
            deviation = deviation_of(sources[std], unbiased=unbiased)
            number = number / (deviation + eps) if deviation > 0 else 0.0
        result.append(number)
    return np.array(result)


def overlong(batch: ExactBatch, past: Floats, *, max_tokens: int, buffer: int, factor: float = 1.0) -> Floats:
    """R minus 0 up to max_tokens - buffer trained tokens, minus `factor` from max_tokens on, linear between."""
    result: list[float] = []
    for reward, positions in zip(batch.rewards, batch.positions, strict=True):
        over = len(positions) - (max_tokens - buffer)
        result.append(float(reward) - factor * min(max(over / buffer, 0.0), 1.0))
    return np.array(result)


def format(batch: ExactBatch, past: Floats, *, part: str = "format", penalty: float = 1.0) -> Floats:
    """R minus `penalty` where the part of that name exists and is not 1."""
    result: list[float] = []
    for reward, value in zip(batch.rewards, batch.parts[part], strict=True):
        result.append(float(reward) - (penalty if not np.isnan(value) and value != 1 else 0.0))
    return np.array(result)


def token_rewards(batch: ExactBatch) -> Floats:
    """A turn's reward on its last trained token, or the nearest trained one before it, or after; spans; penalties."""
    result = np.zeros(len(batch.trained))
    for positions, turns in zip(batch.positions, batch.turns, strict=True):
        for turn in turns:
            until = [position for position in positions if batch.turn[position] <= turn]
            if positions:
                result[until[-1] if until else positions[0]] += batch.turn_rewards[turn]
        for position in positions:
            result[position] += _span_reward(batch, position) or 0.0
            result[position] -= 0.0 if batch.penalties is None else batch.penalties[position]
    return result


def turn_returns(batch: ExactBatch, gamma: float) -> Floats:
    """[turns]: each turn's reward, with spans and penalties of its tokens, plus `gamma` times the next return."""
    rewards = batch.turn_rewards.copy()
    for position in np.flatnonzero(batch.trained):
        rewards[batch.turn[position]] += _span_reward(batch, int(position)) or 0.0
        rewards[batch.turn[position]] -= 0.0 if batch.penalties is None else batch.penalties[position]
    result = np.zeros(len(rewards))
    for turns in batch.turns:
        ahead = 0.0
        for turn in reversed(turns):
            result[turn] = ahead = rewards[turn] + gamma * ahead
    return result


def group_means(batch: ExactBatch) -> list[float]:
    """The mean reward of each trajectory's group."""
    return [float(sum(batch.rewards[siblings])) / len(siblings) for siblings in batch.siblings]


def normalise(items: Floats, *, unbiased: bool, eps: float, scale: bool) -> Floats:
    """Minus their mean, divided by their deviation plus eps; exactly 0 if all are equal."""
    if np.all(items == items[0]):
        return np.zeros(len(items))
    centred = items - sum(items) / len(items)
    return centred / (deviation_of(items, unbiased=unbiased) + eps) if scale else centred


def deviation_of(items: Floats | Sequence[float], *, unbiased: bool) -> float:
    """The standard deviation, exactly 0 for equal items; `unbiased` divides by n - 1."""
    if len(items) < 2 or all(item == items[0] for item in items):
        return 0.0
    mean = sum(items) / len(items)
    return float(np.sqrt(sum((item - mean) ** 2 for item in items) / (len(items) - int(unbiased))))


def _span_reward(batch: ExactBatch, position: int) -> float | None:
    """Reward of the spans that end at this token; None if none does."""
    reward = np.nan if batch.span_rewards is None else batch.span_rewards[position]
    return None if np.isnan(reward) else float(reward)


def _episode(batch: ExactBatch, *, unbiased: bool, eps: float, scale: bool) -> list[float]:
    """Each trajectory's reward, normalised among its siblings."""
    result: list[float] = []
    for owner, siblings in enumerate(batch.siblings):
        normalised = normalise(batch.rewards[siblings], unbiased=unbiased, eps=eps, scale=scale)
        result.append(float(normalised[siblings.index(owner)]))
    return result


def _tokenwise(batch: ExactBatch, gamma: float) -> Floats:
    """Returns-to-go of token rewards over the trained tokens of each trajectory."""
    rewards, result = token_rewards(batch), np.zeros(len(batch.trained))
    for positions in batch.positions:
        ahead = 0.0
        for position in reversed(positions):
            result[position] = ahead = rewards[position] + gamma * ahead
    return result


def _to_tokens(batch: ExactBatch, per_trajectory: Iterable[float]) -> Floats:
    """Each trajectory's value on all its trained tokens."""
    result = np.zeros(len(batch.trained))
    for positions, number in zip(batch.positions, per_trajectory, strict=True):
        result[positions] = number
    return result


def _from_turns(batch: ExactBatch, per_turn: Floats) -> Floats:
    """Each turn's value on all its trained tokens."""
    return np.where(batch.trained, per_turn[batch.turn], 0.0)


def _weights(batch: ExactBatch, weight: Callable[[list[int]], float]) -> Floats:
    result = np.zeros(len(batch.trained))
    for positions in batch.row_positions:
        if positions:
            result[positions] = weight(positions)
    return result


def _num_rows(batch: ExactBatch) -> int:
    return sum(bool(positions) for positions in batch.row_positions)
