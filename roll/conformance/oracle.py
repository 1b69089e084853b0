"""Reference implementations of the built-in formulas, by their names in config files, and their exact derivatives.

Written from formulas, in double precision, with plain loops: slow, and unlikely to share a mistake with tensor code.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import ModuleType
from typing import Any, Literal

import numpy as np

from roll import registry
from roll.algorithms.recipe import Objective
from roll.conformance import oracle_batches, oracle_losses
from roll.conformance.exact import ExactTokens, Floats, Numbers
from roll.registry import Table
from roll.types import Spec


def _formulas(module: ModuleType, table: Table[Any]) -> dict[str, Callable[..., Any]]:
    """The formula of every name in a table, a function of the same name in `module`."""
    return {name: getattr(module, name) for name in table.targets}


LOSSES = _formulas(oracle_losses, registry.LOSSES)
CORRECTIONS = _formulas(oracle_losses, registry.CORRECTIONS)
ESTIMATORS = _formulas(oracle_losses, registry.ESTIMATORS)
AGGREGATIONS = _formulas(oracle_batches, registry.AGGREGATIONS)
ADVANTAGES = _formulas(oracle_batches, registry.ADVANTAGES)
SHAPINGS = _formulas(oracle_batches, registry.SHAPINGS)
Input = Literal["logprobs", "values", "entropies"]
"""The input to differentiate with respect to."""
_STEP = 1e-30
"""The complex step: its square vanishes relative to 1, and nothing is subtracted, so the derivative is exact."""


def rows(tokens: ExactTokens, objective: Objective) -> Numbers:
    """Each token's unweighted part of the objective: loss, correction, KL and entropy; 0 if untrained."""
    result = LOSSES[objective.loss.name](tokens, **objective.loss.kwargs)
    if objective.correction is not None:
        correction = objective.correction
        result = result * CORRECTIONS[correction.name](tokens, **correction.kwargs)
    for position in tokens.positions:
        if objective.kl is not None:
            assert tokens.ref_logprobs is not None, "KL needs a reference"
            difference = tokens.logprobs[position] - tokens.ref_logprobs[position]
            result[position] += objective.kl_coefficient * ESTIMATORS[objective.kl.name](difference)
        if objective.entropy:
            assert tokens.entropies is not None, "an entropy bonus needs entropies"
            result[position] -= objective.entropy * tokens.entropies[position]
    return result


def value(tokens: ExactTokens, weights: Floats, objective: Objective) -> float:
    """The scalar that an optimizer step minimises."""
    return float(np.sum(terms(tokens, weights, objective)))


def terms(tokens: ExactTokens, weights: Floats, objective: Objective) -> Floats:
    """The summands of the objective: one weighted value per token."""
    return np.where(tokens.trained, np.real(rows(tokens, objective)) * weights, 0.0)


def gradient(tokens: ExactTokens, weights: Floats, objective: Objective, to: Input = "logprobs") -> Floats:
    """The derivative of the objective with respect to one of its inputs, per token; 0 if untrained.

    No sequence's loss depends on another sequence, so the n-th trained tokens of all sequences are shifted at once.
    """
    result = np.zeros(len(tokens.trained))
    inputs: Numbers | None = getattr(tokens, to)
    assert inputs is not None, f"no {to} to take a derivative to"
    by_row = tokens.rows
    for number in range(max((len(positions) for positions in by_row.values()), default=0)):
        chosen = {row: positions[number] for row, positions in by_row.items() if number < len(positions)}
        shifted = inputs.astype(np.complex128)
        for position in chosen.values():
            shifted[position] += 1j * _STEP
        slopes = np.imag(rows(replace(tokens, **{to: shifted}), objective)) / _STEP * weights
        for row, position in chosen.items():
            result[position] = sum(slopes[other] for other in by_row[row])
    return result


def plain(name: str, **arguments: Any) -> Objective:
    """The objective that consists of one loss only."""
    return Objective(loss=Spec(name, arguments))
