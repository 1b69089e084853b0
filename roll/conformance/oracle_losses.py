"""Losses, corrections and KL estimators as in their papers, computed token by token in double precision.

Derivatives are taken with a complex step, so comparisons use real parts and nothing takes an absolute value. Terms that
a formula holds constant read `frozen_logprobs`. Untrained tokens get 0.
"""

from __future__ import annotations

import cmath
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from roll.conformance.exact import ExactTokens, Floats, Numbers

Number: TypeAlias = Any
"""A float, or a complex number with a derivative in its imaginary part."""


def clipped(
    tokens: ExactTokens, *, clip_low: float = 0.2, clip_high: float = 0.2, dual_clip: float | None = None
) -> Numbers:
    """min(r A, clip(r) A), at least c A where A < 0; negated."""

    def loss(position: int) -> Number:
        advantage = tokens.advantages[position]
        gain = _surrogate(_ratio(tokens, position), advantage, clip_low, clip_high)
        if dual_clip is not None and advantage < 0:
            gain = _larger(gain, dual_clip * advantage)
        return -gain

    return _each(tokens, loss)


def policy_gradient(tokens: ExactTokens) -> Numbers:
    """-A log p."""
    return _each(tokens, lambda position: -tokens.advantages[position] * tokens.logprobs[position])


def sequence_clipped(tokens: ExactTokens, *, clip_low: float = 3e-4, clip_high: float = 4e-4) -> Numbers:
    """The clipped surrogate of exp(mean of log r over the sequence), on each of its tokens."""
    result = _zeros(tokens)
    for positions in tokens.rows.values():
        ratio = cmath.exp(_mean([_log_ratio(tokens, position) for position in positions]))
        for position in positions:
            result[position] = -_surrogate(ratio, tokens.advantages[position], clip_low, clip_high)
    return result


def geometric_clipped(tokens: ExactTokens, *, clip_low: float = 0.4, clip_high: float = 0.4) -> Numbers:
    """Log-ratios bounded on the side where they would gain, averaged over the sequence; its exponential times A."""

    def bounded(position: int) -> Number:
        log_ratio, advantage = _log_ratio(tokens, position), tokens.advantages[position]
        if advantage > 0:
            return _smaller(log_ratio, clip_high)
        return _larger(log_ratio, -clip_low) if advantage < 0 else log_ratio

    result = _zeros(tokens)
    for positions in tokens.rows.values():
        ratio = cmath.exp(_mean([bounded(position) for position in positions]))
        for position in positions:
            result[position] = -ratio * tokens.advantages[position]
    return result


def cispo(tokens: ExactTokens, *, clip_low: float = 1.0, clip_high: float = 0.2) -> Numbers:
    """-sg(clip(r)) A log p."""
    return _policy_gradient(
        tokens, lambda position: _clamp(_frozen_ratio(tokens, position), 1 - clip_low, 1 + clip_high)
    )


def truncated_importance(tokens: ExactTokens, *, cap: float = 2.0) -> Numbers:
    """-sg(min(r, cap)) A log p."""
    return _policy_gradient(tokens, lambda position: min(_frozen_ratio(tokens, position), cap))


def topr(
    tokens: ExactTokens, *, positive: float = 1.0, negative: float = 1.0, low: float = 0.0, high: float = 1.0
) -> Numbers:
    """A >= 0: -positive A log p. A < 0: -negative sg(clip(p / p_sampler, low, high)) A log p."""

    def weight(position: int) -> float:
        if tokens.advantages[position] >= 0:
            return positive
        ratio = np.exp(tokens.frozen_logprobs[position] - tokens.sampler_logprobs[position])
        return negative * _clamp(ratio, low, high)

    return _policy_gradient(tokens, weight)


def raft(tokens: ExactTokens, *, clip_low: float = 0.2, clip_high: float = 0.2) -> Numbers:
    """The clipped surrogate where A > 0, 0 elsewhere."""

    def loss(position: int) -> Number:
        advantage = tokens.advantages[position]
        return -_surrogate(_ratio(tokens, position), advantage, clip_low, clip_high) if advantage > 0 else 0.0

    return _each(tokens, loss)


def kimi(tokens: ExactTokens, *, tau: float = 0.1) -> Numbers:
    """-A log p + tau / 2 (log p - log p_old)^2."""

    def loss(position: int) -> Number:
        return -tokens.advantages[position] * tokens.logprobs[position] + tau / 2 * _log_ratio(tokens, position) ** 2

    return _each(tokens, loss)


def sapo(tokens: ExactTokens, *, tau_positive: float = 1.0, tau_negative: float = 1.05) -> Numbers:
    """-4 / tau sigmoid(tau (r - 1)) A, with tau by the sign of A."""

    def loss(position: int) -> Number:
        advantage = tokens.advantages[position]
        tau = tau_positive if advantage > 0 else tau_negative
        gate = 4 / tau / (1 + cmath.exp(-tau * (_ratio(tokens, position) - 1)))
        return -gate * advantage

    return _each(tokens, loss)


def decoupled(
    tokens: ExactTokens, *, clip_low: float = 0.2, clip_high: float = 0.2, cap: float | None = None
) -> Numbers:
    """The clipped surrogate around the proximal policy, times min(p_old / p_sampler, cap)."""

    def loss(position: int) -> Number:
        behaviour = np.exp(tokens.old_logprobs[position] - tokens.sampler_logprobs[position])
        gain = _surrogate(_ratio(tokens, position), tokens.advantages[position], clip_low, clip_high)
        return -gain * (behaviour if cap is None else min(behaviour, cap))

    return _each(tokens, loss)


def squared_value(tokens: ExactTokens, *, clip: float | None = None) -> Numbers:
    """(V - R)^2 / 2, or the larger of it and that of V clipped to within `clip` of the old value."""
    values, old_values, returns = tokens.values, tokens.old_values, tokens.returns
    assert values is not None and returns is not None, "a critic's loss needs values and returns"

    def loss(position: int) -> Number:
        value, target = values[position], returns[position]
        free = (value - target) ** 2 / 2
        if clip is None:
            return free
        assert old_values is not None, "a clip of values needs the old ones"
        old = old_values[position]
        return _larger(free, (_clamp(value, old - clip, old + clip) - target) ** 2 / 2)

    return _each(tokens, loss)


def truncate(tokens: ExactTokens, *, level: str = "token", cap: float = 2.0) -> Floats:
    """min(rho, cap)."""
    return _by_level(tokens, level, lambda rho: min(rho, cap))


def mask(tokens: ExactTokens, *, level: str = "token", low: float = 0.5, high: float = 2.0) -> Floats:
    """rho where low <= rho <= high, else 0."""
    return _by_level(tokens, level, lambda rho: rho if low <= rho <= high else 0.0)


def reject(tokens: ExactTokens, *, level: str = "sequence", low: float = 0.5, high: float = 2.0) -> Floats:
    """1 where low <= rho <= high, else 0."""
    return _by_level(tokens, level, lambda rho: 1.0 if low <= rho <= high else 0.0)


def k1(difference: Number) -> Number:
    """log p - log q."""
    return difference


def k2(difference: Number) -> Number:
    """(log p - log q)^2 / 2."""
    return difference**2 / 2


def k3(difference: Number) -> Number:
    """q / p - 1 - log(q / p), which is never negative."""
    return cmath.exp(-difference) + difference - 1


def _by_level(tokens: ExactTokens, level: str, rule: Callable[[float], float]) -> Floats:
    """`rule` applied to the ratio p_old / p_sampler of each trained token at this `level`."""
    sets = {
        "token": lambda: [[position] for position in tokens.positions],
        "turn": lambda: list(tokens.turns.values()),
        "sequence": lambda: list(tokens.rows.values()),
        "geometric": lambda: list(tokens.rows.values()),
    }[level]()
    result = np.zeros(len(tokens.trained))
    for positions in sets:
        total = sum(float(tokens.old_logprobs[position] - tokens.sampler_logprobs[position]) for position in positions)
        result[positions] = rule(float(np.exp(total / len(positions) if level == "geometric" else total)))
    return result


def _each(tokens: ExactTokens, loss: Callable[[int], Number]) -> Numbers:
    result = _zeros(tokens)
    for position in tokens.positions:
        result[position] = loss(position)
    return result


def _policy_gradient(tokens: ExactTokens, weight: Callable[[int], float]) -> Numbers:
    """-weight A log p, with a constant weight."""
    return _each(tokens, lambda position: -weight(position) * tokens.advantages[position] * tokens.logprobs[position])


def _zeros(tokens: ExactTokens) -> Numbers:
    return np.zeros(len(tokens.trained), np.complex128)


def _log_ratio(tokens: ExactTokens, position: int) -> Number:
    return tokens.logprobs[position] - tokens.old_logprobs[position]


def _ratio(tokens: ExactTokens, position: int) -> Number:
    return cmath.exp(_log_ratio(tokens, position))


def _frozen_ratio(tokens: ExactTokens, position: int) -> float:
    return float(np.exp(tokens.frozen_logprobs[position] - tokens.old_logprobs[position]))


def _surrogate(ratio: Number, advantage: float, clip_low: float, clip_high: float) -> Number:
    """min(r A, clip(r) A)."""
    return _smaller(ratio * advantage, _clamp(ratio, 1 - clip_low, 1 + clip_high) * advantage)


def _mean(items: Sequence[Number]) -> Number:
    return sum(items) / len(items)


def _smaller(left: Number, right: Number) -> Number:
    return left if left.real <= right.real else right


def _larger(left: Number, right: Number) -> Number:
    return left if left.real >= right.real else right


def _clamp(number: Number, low: float, high: float) -> Number:
    return _smaller(_larger(number, low), high)
