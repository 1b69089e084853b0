"""Advantages as their papers write them: one trajectory after another, in double precision. Untrained tokens get 0."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from roll.conformance.exact import ExactBatch, Floats


def group_normalised(batch: ExactBatch, *, unbiased: bool = False, eps: float = 1e-6, scale: bool = True) -> Floats:
    """(R - mean of the siblings) / (their deviation + eps); 0 where they are all equal or there is one."""
    return _spread(batch, _episode(batch, unbiased=unbiased, eps=eps, scale=scale))


def leave_one_out(batch: ExactBatch) -> Floats:
    """R less the mean of the other siblings; 0 for an only one."""
    found: list[float] = []
    for own, siblings in enumerate(batch.siblings):
        others = [float(batch.rewards[other]) for other in siblings if other != own]
        found.append(float(batch.rewards[own]) - sum(others) / len(others) if others else 0.0)
    return _spread(batch, found)


def batch_centred(batch: ExactBatch) -> Floats:
    """R less the mean over all trajectories."""
    mean = sum(batch.rewards) / max(1, len(batch.rewards))
    return _spread(batch, [reward - mean for reward in batch.rewards])


def group_centred_batch_scaled(batch: ExactBatch, *, unbiased: bool = False, eps: float = 1e-6) -> Floats:
    """(R - mean of the siblings) / (deviation of all rewards + eps)."""
    deviation = deviation_of(batch.rewards, unbiased=unbiased)
    centred = [float(batch.rewards[own]) - mean for own, mean in enumerate(group_means(batch))]
    return _spread(batch, [number / (deviation + eps) if deviation > 0 else 0.0 for number in centred])


def batch_normalised(batch: ExactBatch, *, baseline: str = "none", unbiased: bool = False, eps: float = 1e-6) -> Floats:
    """Returns-to-go, less the mean of the siblings if asked, whitened over the trained tokens of the batch."""
    returns = _tokenwise(batch, 1.0)
    if baseline == "group":
        returns = returns - _spread(batch, group_means(batch))
    trained = returns[batch.trained]
    deviation = deviation_of(trained, unbiased=unbiased)
    if deviation == 0:
        return np.zeros(len(returns))
    return np.where(batch.trained, (returns - sum(trained) / len(trained)) / (deviation + eps), 0.0)


def gae(batch: ExactBatch, *, gamma: float = 1.0, lam: float = 1.0, bootstrap: bool = False) -> Floats:
    """A_t = delta_t + gamma lam A_{t+1}, delta_t = r_t + gamma V_{t+1} - V_t, over trained tokens alone."""
    assert batch.values is not None, "GAE needs values"
    rewards, found = token_rewards(batch), np.zeros(len(batch.trained))
    for owner, places in enumerate(batch.places):
        if not places:
            continue
        next_value = float(batch.values[places[-1]]) if bootstrap and batch.truncated[owner] else 0.0
        advantage = 0.0
        for place in reversed(places):
            delta = rewards[place] + gamma * next_value - batch.values[place]
            advantage = delta + gamma * lam * advantage
            found[place], next_value = advantage, float(batch.values[place])
    return found


def discounted(batch: ExactBatch, *, gamma: float = 1.0, per: str = "turn", baseline: str = "none") -> Floats:
    """Returns-to-go, discounted a turn or a token at a time, less the mean of the siblings' or of all rewards."""
    rewards = batch.rewards
    means = {
        "none": lambda: [0.0] * len(rewards),
        "group": lambda: group_means(batch),
        "batch": lambda: [float(sum(rewards)) / len(rewards)] * len(rewards),
    }[baseline]()
    returns = _tokenwise(batch, gamma) if per == "token" else _from_turns(batch, turn_returns(batch, gamma))
    return np.where(batch.trained, returns - _spread(batch, means), 0.0)


def gigpo(
    batch: ExactBatch, *, step_weight: float = 1.0, gamma: float = 0.95, eps: float = 1e-6, scale: bool = True
) -> Floats:
    """The episode's advantage plus that of each turn's return among turns in the same state of the same group."""
    assert batch.turn_states is not None, "GiGPO needs states"
    returns = turn_returns(batch, gamma)
    alike: dict[tuple[int, int], list[int]] = {}
    for turn, owner in enumerate(batch.turn_trajectory):
        alike.setdefault((int(batch.group[owner]), int(batch.turn_states[turn])), []).append(turn)
    steps = np.zeros(len(returns))
    for turns in alike.values():
        steps[turns] = normalise(returns[turns], unbiased=False, eps=eps, scale=scale)
    episode = _spread(batch, _episode(batch, unbiased=False, eps=eps, scale=scale))
    return np.where(batch.trained, episode + step_weight * _from_turns(batch, steps), 0.0)


def distilled(batch: ExactBatch, *, weight: float = 1.0) -> Floats:
    """weight (log p_teacher - log p) of each token."""
    assert batch.teacher_logprobs is not None, "distillation needs a teacher"
    own = batch.sampler_logprobs if batch.old_logprobs is None else batch.old_logprobs
    found = np.zeros(len(batch.trained))
    for place in np.flatnonzero(batch.trained):
        found[place] = weight * (batch.teacher_logprobs[place] - own[place])
    return found


def token_rewards(batch: ExactBatch) -> Floats:
    """A turn's reward on its last trained token, or the nearest trained one before it, or after; less penalties."""
    found = np.zeros(len(batch.trained))
    for places, turns in zip(batch.places, batch.turns, strict=True):
        for turn in turns:
            until = [place for place in places if batch.turn[place] <= turn]
            if places:
                found[until[-1] if until else places[0]] += batch.turn_rewards[turn]
        for place in places:
            found[place] -= 0.0 if batch.penalties is None else batch.penalties[place]
    return found


def turn_returns(batch: ExactBatch, gamma: float) -> Floats:
    """[turns]: each turn's reward, less the penalties of its trained tokens, plus `gamma` times the next's return."""
    rewards = batch.turn_rewards.copy()
    if batch.penalties is not None:
        for place in np.flatnonzero(batch.trained):
            rewards[batch.turn[place]] -= batch.penalties[place]
    found = np.zeros(len(rewards))
    for turns in batch.turns:
        ahead = 0.0
        for turn in reversed(turns):
            found[turn] = ahead = rewards[turn] + gamma * ahead
    return found


def group_means(batch: ExactBatch) -> list[float]:
    """The mean reward of each trajectory's group."""
    return [float(sum(batch.rewards[siblings])) / len(siblings) for siblings in batch.siblings]


def normalise(items: Floats, *, unbiased: bool, eps: float, scale: bool) -> Floats:
    """Less their mean and over their deviation plus eps; exactly 0 where they are all equal."""
    if np.all(items == items[0]):
        return np.zeros(len(items))
    centred = items - sum(items) / len(items)
    return centred / (deviation_of(items, unbiased=unbiased) + eps) if scale else centred


def deviation_of(items: Floats | Sequence[float], *, unbiased: bool) -> float:
    """The standard deviation, exactly 0 for equal items; `unbiased` divides by one less than their number."""
    if len(items) < 2 or all(item == items[0] for item in items):
        return 0.0
    mean = sum(items) / len(items)
    return float(np.sqrt(sum((item - mean) ** 2 for item in items) / (len(items) - int(unbiased))))


def _episode(batch: ExactBatch, *, unbiased: bool, eps: float, scale: bool) -> list[float]:
    """Each trajectory's reward, normalised among its siblings."""
    found: list[float] = []
    for own, siblings in enumerate(batch.siblings):
        normalised = normalise(batch.rewards[siblings], unbiased=unbiased, eps=eps, scale=scale)
        found.append(float(normalised[siblings.index(own)]))
    return found


def _tokenwise(batch: ExactBatch, gamma: float) -> Floats:
    """Returns-to-go of token rewards over the trained tokens of each trajectory."""
    rewards, found = token_rewards(batch), np.zeros(len(batch.trained))
    for places in batch.places:
        ahead = 0.0
        for place in reversed(places):
            found[place] = ahead = rewards[place] + gamma * ahead
    return found


def _spread(batch: ExactBatch, per_trajectory: Iterable[float]) -> Floats:
    """Each trajectory's number on all its trained tokens."""
    found = np.zeros(len(batch.trained))
    for places, number in zip(batch.places, per_trajectory, strict=True):
        found[places] = number
    return found


def _from_turns(batch: ExactBatch, per_turn: Floats) -> Floats:
    """Each turn's number on all its trained tokens."""
    return np.where(batch.trained, per_turn[batch.turn], 0.0)


ADVANTAGES: dict[str, Callable[..., Floats]] = {
    function.__name__: function
    for function in (
        group_normalised,
        leave_one_out,
        batch_centred,
        group_centred_batch_scaled,
        batch_normalised,
        gae,
        discounted,
        gigpo,
        distilled,
    )
}
