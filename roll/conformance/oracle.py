"""What ours should compute, by the names that config files use, and the derivative of all of it.

Written from formulas, in double precision, with plain loops: slow, and hard to get wrong the way tensor code is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

import numpy as np

from roll.algorithms.recipe import Objective
from roll.conformance import oracle_losses
from roll.conformance.exact import ExactTokens, Floats, Numbers
from roll.types import Call

LOSSES: dict[str, Callable[..., Numbers]] = {
    function.__name__: function
    for function in (
        oracle_losses.clipped,
        oracle_losses.policy_gradient,
        oracle_losses.sequence_clipped,
        oracle_losses.geometric_clipped,
        oracle_losses.cispo,
        oracle_losses.truncated_importance,
        oracle_losses.topr,
        oracle_losses.raft,
        oracle_losses.kimi,
        oracle_losses.sapo,
        oracle_losses.decoupled,
        oracle_losses.squared_value,
    )
}
CORRECTIONS: dict[str, Callable[..., Floats]] = {
    function.__name__: function for function in (oracle_losses.truncate, oracle_losses.mask, oracle_losses.reject)
}
ESTIMATORS: dict[str, Callable[..., Any]] = {
    function.__name__: function for function in (oracle_losses.k1, oracle_losses.k2, oracle_losses.k3)
}
Input = Literal["logprobs", "values", "entropies"]
"""What a derivative is taken with respect to."""
_STEP = 1e-30
"""Of the complex step: its square vanishes beside 1, and nothing is subtracted, so the derivative is exact."""


def rows(tokens: ExactTokens, objective: Objective) -> Numbers:
    """What each token adds to the objective before it is weighed: loss, correction, KL and entropy; 0 if untrained."""
    found = LOSSES[objective.loss.name](tokens, **objective.loss.arguments)
    if objective.correction is not None:
        correction = objective.correction
        found = found * CORRECTIONS[correction.name](tokens, **correction.arguments)
    for place in tokens.places:
        if objective.kl is not None:
            assert tokens.ref_logprobs is not None, "KL needs a reference"
            difference = tokens.logprobs[place] - tokens.ref_logprobs[place]
            found[place] += objective.kl_coefficient * ESTIMATORS[objective.kl.name](difference)
        if objective.entropy:
            assert tokens.entropies is not None, "an entropy bonus needs entropies"
            found[place] -= objective.entropy * tokens.entropies[place]
    return found


def value(tokens: ExactTokens, weights: Floats, objective: Objective) -> float:
    """The number that an optimizer step makes smaller."""
    return float(np.sum(terms(tokens, weights, objective)))


def terms(tokens: ExactTokens, weights: Floats, objective: Objective) -> Floats:
    """What the objective is the sum of: one weighed number a token."""
    return np.where(tokens.trained, np.real(rows(tokens, objective)) * weights, 0.0)


def gradient(tokens: ExactTokens, weights: Floats, objective: Objective, to: Input = "logprobs") -> Floats:
    """The derivative of the objective with respect to one of its inputs, token by token; 0 where untrained.

    No sequence's loss depends on another sequence, so the n-th trained tokens of all sequences are moved at once.
    """
    found = np.zeros(len(tokens.trained))
    given: Numbers | None = getattr(tokens, to)
    assert given is not None, f"no {to} to take a derivative to"
    inside = tokens.rows
    for number in range(max((len(places) for places in inside.values()), default=0)):
        moved = {row: places[number] for row, places in inside.items() if number < len(places)}
        shifted = given.astype(np.complex128)
        for place in moved.values():
            shifted[place] += 1j * _STEP
        slopes = np.imag(rows(replace(tokens, **{to: shifted}), objective)) / _STEP * weights
        for row, place in moved.items():
            found[place] = sum(slopes[other] for other in inside[row])
    return found


def plain(name: str, **arguments: Any) -> Objective:
    """The objective that is one loss and nothing else."""
    return Objective(loss=Call(name, arguments))
