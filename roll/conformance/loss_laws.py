"""Laws of losses, corrections and KL estimators, and of the objective that combines them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import numpy as np
import torch

from roll.algorithms.recipe import Objective
from roll.conformance import oracle
from roll.conformance.batches import Case, tokens
from roll.conformance.exact import exact_tokens, numbers
from roll.conformance.general_laws import finite
from roll.conformance.subject import GRADIENT, Measurement, Subject, difference
from roll.types import Tokens

_INPUTS: tuple[oracle.Input, ...] = ("logprobs", "values", "entropies")
HOMOGENEOUS = frozenset(oracle.LOSSES) - {"kimi", "squared_value"}
"""Losses that are proportional to the advantages."""


def loss_measure(subject: Subject, case: Case, rows: list[int] | None) -> Measurement:
    """The loss of each token, and the gradient of their weighted sum."""
    seen, weights = _seen(case, rows)
    row: torch.Tensor = subject.function(seen, **subject.arguments)[0]
    total = torch.where(seen.trained, row, torch.zeros_like(row)).mul(weights).sum()
    weighted = {"loss": np.where(numbers(weights) != 0, numbers(row), 0.0) * numbers(weights)}
    return Measurement(rows=weighted | _gradients(seen, total), total=float(total.detach()))


def objective_measure(subject: Subject, case: Case, rows: list[int] | None) -> Measurement:
    """The gradient of the objective, and the objective itself."""
    seen, weights = _seen(case, rows)
    total: torch.Tensor = subject.function(seen, weights, subject.arguments["objective"])[0]
    return Measurement(rows=_gradients(seen, total), total=float(total.detach()))


def correction_measure(subject: Subject, case: Case, rows: list[int] | None) -> Measurement:
    """The factor of each token."""
    return Measurement(rows={"factor": numbers(subject.function(_seen(case, rows)[0], **subject.arguments))})


def one_value_per_token(subject: Subject, case: Case) -> str:
    """A loss returns a row with a gradient, and metrics that are rows without one."""
    seen = tokens(case)
    result: Any = subject.function(seen, **subject.arguments)
    kinds: list[str] = [part.__class__.__name__ for part in (result if result.__class__ is tuple else [result])]
    if kinds != ["Tensor", "dict"]:
        return f"must return the loss of each token and a dictionary of metrics (got {', '.join(kinds)})"
    row, metrics = cast(tuple[Any, dict[str, Any]], result)
    for name, values in {"the loss": row, **{f"metric {name!r}": each for name, each in metrics.items()}}.items():
        if not isinstance(values, torch.Tensor) or values.shape != seen.trained.shape:
            return f"{name} must be one value per token, shape {tuple(seen.trained.shape)}"
    if not row.requires_grad:
        return "the loss has no gradient; compute it from logprobs, or from values for a critic, without detach"
    attached = [name for name, values in metrics.items() if values.requires_grad]
    return f"metric {attached[0]!r} still carries a gradient; detach it" if attached else ""


def finite_on_policy(subject: Subject, case: Case) -> str:
    """Values and gradients are finite where all policies agree, as in the first update of a run."""
    old = case.batch.old_logprobs
    assert old is not None
    batch = replace(case.batch, sampler_logprobs=old, ref_logprobs=old)
    text = finite(subject, replace(case, logprobs=old, batch=batch))
    return f"{text} where logprobs, old, sampler and reference logprobs are equal" if text else ""


def agrees(subject: Subject, case: Case) -> str:
    """A loss equals its formula, and so does its gradient."""
    objective = oracle.plain(subject.like, **subject.arguments)
    return subject.formula_fault(case, _from_formula(case, objective, subject.whole(case)))


def is_sum_of_parts(subject: Subject, case: Case) -> str:
    """An objective is the sum of its parts."""
    objective, result = subject.arguments["objective"], subject.whole(case)
    expected = _from_formula(case, objective, result)
    exact, (_, weights) = exact_tokens(tokens(case)), _seen(case, None)
    size = float(np.abs(oracle.terms(exact, numbers(weights), objective)).sum())
    assert result.total is not None and expected.total is not None
    if not abs(result.total - expected.total) <= 1e-5 * size + 1e-12:
        return f"differs from the formula: the sum is {result.total:.6g} instead of {expected.total:.6g}"
    gradients = Measurement(rows={name: row for name, row in expected.rows.items() if name in result.rows})
    text = difference(result, gradients, case.batch.trained.numpy())
    return f"differs from the formula: {text}" if text else ""


def zero_untrained_gradient(subject: Subject, case: Case) -> str:
    """The gradient of an untrained token is exactly 0, whatever its inputs are."""
    trained = case.batch.trained.numpy()
    for name, row in subject.whole(case).rows.items():
        if name.startswith(GRADIENT) and np.any(row[~trained] != 0):
            return f"reads values at untrained tokens: their {name} is {row[~trained][row[~trained] != 0][0]}"
    return ""


def homogeneous(subject: Subject, case: Case) -> str:
    """Three times the advantages give three times the loss and its gradient."""
    if subject.like not in HOMOGENEOUS:
        return ""
    assert case.batch.advantages is not None
    larger = replace(case, batch=replace(case.batch, advantages=case.batch.advantages * 3))
    once = subject.whole(case)
    expected = Measurement(rows={name: row * 3 for name, row in once.rows.items()})
    text = difference(subject.measure(larger), expected, case.batch.trained.numpy())
    return f"is not proportional to the advantages: for three times the advantages {text}" if text else ""


def factor_agrees(subject: Subject, case: Case) -> str:
    """A correction equals its formula."""
    row = oracle.CORRECTIONS[subject.like](exact_tokens(tokens(case)), **subject.arguments)
    return subject.formula_fault(case, Measurement(rows={"factor": row}))


def constant_factor(subject: Subject, case: Case) -> str:
    """A correction is a constant per token: it carries no gradient and does not depend on the current policy."""
    seen = tokens(case)
    factor: Any = subject.function(seen, **subject.arguments)
    if not isinstance(factor, torch.Tensor) or factor.shape != seen.trained.shape:
        return f"must return one value per token, shape {tuple(seen.trained.shape)}"
    if factor.requires_grad:
        return "is not detached: the factor carries a gradient"
    shifted = replace(seen, logprobs=seen.logprobs.detach() - 1.0)
    if not torch.equal(subject.function(shifted, **subject.arguments)[seen.trained], factor[seen.trained]):
        return "depends on the current policy: a sampler's ratio uses old and sampler logprobs only"
    return ""


def estimates(function: Callable[..., Any], like: str, arguments: dict[str, Any]) -> list[str]:
    """A KL estimator is 0 without a difference, and equals its formula and derivative elsewhere."""
    points = torch.linspace(-3, 3, 61).requires_grad_()
    row: torch.Tensor = function(points, **arguments)
    (slopes,) = torch.autograd.grad(row.sum(), points)
    at_zero = float(function(torch.zeros(1), **arguments))
    faults = [] if abs(at_zero) < 1e-6 else [f"is {at_zero:.6g} where the policies agree, instead of 0"]
    if not like:
        return faults
    exact = [oracle.ESTIMATORS[like](complex(point, 1e-30)) for point in numbers(points)]
    values, derivatives = np.array([item.real for item in exact]), np.array([item.imag / 1e-30 for item in exact])
    for name, computed, expected in (("value", numbers(row), values), ("slope", numbers(slopes), derivatives)):
        if not np.abs(computed - expected).max() <= 1e-5 * np.abs(expected).max():
            worst = int(np.argmax(np.abs(computed - expected)))
            where = f"at d = {float(points[worst].detach()):.2g}"
            faults.append(
                f"{name} {computed[worst]:.6g} instead of {expected[worst]:.6g} {where}, by the formula of {like}"
            )
    return faults


def _seen(case: Case, rows: list[int] | None) -> tuple[Tokens, torch.Tensor]:
    assert case.batch.weights is not None
    return tokens(case, rows), case.batch.weights[case.batch.positions(case.rows if rows is None else rows)]


def _gradients(seen: Tokens, total: torch.Tensor) -> dict[str, Any]:
    """Gradients to the outputs of the policy and the critic; 0 for inputs that the loss does not read."""
    inputs = {name: getattr(seen, name) for name in _INPUTS}
    if total.requires_grad:
        slopes = torch.autograd.grad(total, list(inputs.values()), allow_unused=True)
    else:
        slopes = [None] * len(inputs)
    return {
        f"{GRADIENT} to {name}": np.zeros(len(tensor)) if slope is None else numbers(slope)
        for (name, tensor), slope in zip(inputs.items(), slopes, strict=True)
    }


def _from_formula(case: Case, objective: Objective, result: Measurement) -> Measurement:
    seen, weights = _seen(case, None)
    exact, factors = exact_tokens(seen), numbers(weights)
    gradients = {
        f"{GRADIENT} to {name}": oracle.gradient(exact, factors, objective, name)
        for name in _INPUTS
        if np.any(result.rows[f"{GRADIENT} to {name}"]) or name == "logprobs"
    }
    rows = {"loss": oracle.terms(exact, factors, objective)} if "loss" in result.rows else {}
    return Measurement(rows=rows | gradients, total=oracle.value(exact, factors, objective))
