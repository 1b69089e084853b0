"""Laws of losses, corrections, estimators of KL, and of the objective that they make up."""

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
from roll.conformance.subject import GRADIENT, Measure, Measured, Subject, difference
from roll.types import Tokens

_INPUTS: tuple[oracle.Input, ...] = ("logprobs", "values", "entropies")
HOMOGENEOUS = frozenset(oracle.LOSSES) - {"kimi", "squared_value"}
"""Losses that grow with the advantages as they do."""


def loss_measure(function: Callable[..., Any], arguments: dict[str, Any]) -> Measure:
    """The loss of each token, and the gradient of their weighed sum."""

    def measure(case: Case, rows: list[int] | None) -> Measured:
        seen, weights = _seen(case, rows)
        row: torch.Tensor = function(seen, **arguments)[0]
        total = torch.where(seen.trained, row, torch.zeros_like(row)).mul(weights).sum()
        weighed = {"loss": np.where(numbers(weights) != 0, numbers(row), 0.0) * numbers(weights)}
        return Measured(rows=weighed | _gradients(seen, total), total=float(total.detach()))

    return measure


def objective_measure(evaluate: Callable[..., Any], objective: Objective) -> Measure:
    """The gradient of the objective, and the objective itself."""

    def measure(case: Case, rows: list[int] | None) -> Measured:
        seen, weights = _seen(case, rows)
        total: torch.Tensor = evaluate(seen, weights, objective)[0]
        return Measured(rows=_gradients(seen, total), total=float(total.detach()))

    return measure


def correction_measure(function: Callable[..., Any], arguments: dict[str, Any]) -> Measure:
    """The factor of each token."""

    def measure(case: Case, rows: list[int] | None) -> Measured:
        return Measured(rows={"factor": numbers(function(_seen(case, rows)[0], **arguments))})

    return measure


def one_number_a_token(function: Callable[..., Any], arguments: dict[str, Any], case: Case) -> str:
    """A loss returns a row and metrics that are rows."""
    seen = tokens(case)
    found: Any = function(seen, **arguments)
    kinds: list[str] = [part.__class__.__name__ for part in (found if found.__class__ is tuple else [found])]
    if kinds != ["Tensor", "dict"]:
        return f"must return the loss of each token and a dictionary of metrics (got {', '.join(kinds)})"
    row, metrics = cast(tuple[Any, dict[str, Any]], found)
    for name, given in {"the loss": row, **metrics}.items():
        if given.shape != seen.trained.shape:
            return f"{name} must be one number a token, shape {tuple(seen.trained.shape)}"
    attached = [name for name, given in metrics.items() if given.requires_grad]
    return f"metric {attached[0]!r} still carries a gradient; detach it" if attached else ""


def agrees(subject: Subject, case: Case) -> str:
    """A loss of ours is its formula, and so is its gradient."""
    assert subject.like is not None
    objective = oracle.plain(subject.like, **subject.arguments)
    found = subject.whole(case)
    text = difference(found, _expected(case, objective, found), case.batch.trained.numpy())
    return f"differs from the formula of {subject.like}: {text}" if text else ""


def agrees_with(objective: Objective) -> Callable[[Subject, Case], str]:
    """An objective is the sum of its parts."""

    def law(subject: Subject, case: Case) -> str:
        found = subject.whole(case)
        expected = _expected(case, objective, found)
        exact, (_, weights) = exact_tokens(tokens(case)), _seen(case, None)
        size = float(np.abs(oracle.terms(exact, numbers(weights), objective)).sum())
        assert found.total is not None and expected.total is not None
        if not abs(found.total - expected.total) <= 1e-5 * size + 1e-12:
            return f"differs from the formula: the sum is {found.total:.6g} instead of {expected.total:.6g}"
        gradients = Measured(rows={name: row for name, row in expected.rows.items() if name in found.rows})
        text = difference(found, gradients, case.batch.trained.numpy())
        return f"differs from the formula: {text}" if text else ""

    return law


def untouched(subject: Subject, case: Case) -> str:
    """Not even the gradient of an untrained token is anything but 0, whatever garbage stands there."""
    trained = case.batch.trained.numpy()
    for name, row in subject.whole(case).rows.items():
        if name.startswith(GRADIENT) and np.any(row[~trained] != 0):
            return f"reads what stands at untrained tokens: their {name} is {row[~trained][row[~trained] != 0][0]}"
    return ""


def homogeneous(subject: Subject, case: Case) -> str:
    """Three times the advantages give three times the loss and the gradient."""
    if subject.like not in HOMOGENEOUS:
        return ""
    assert case.batch.advantages is not None
    larger = replace(case, batch=replace(case.batch, advantages=case.batch.advantages * 3))
    once = subject.whole(case)
    expected = Measured(rows={name: row * 3 for name, row in once.rows.items()})
    text = difference(subject.measure(larger, None), expected, case.batch.trained.numpy())
    return f"is not proportional to the advantages: for three times as much {text}" if text else ""


def factor_agrees(subject: Subject, case: Case) -> str:
    """A correction of ours is its formula."""
    assert subject.like is not None
    row = oracle.CORRECTIONS[subject.like](exact_tokens(tokens(case)), **subject.arguments)
    text = difference(subject.whole(case), Measured(rows={"factor": row}), case.batch.trained.numpy())
    return f"differs from the formula of {subject.like}: {text}" if text else ""


def detached(function: Callable[..., Any], arguments: dict[str, Any], case: Case) -> str:
    """A correction is a constant: one number a token, no part of the gradient, nothing of the current policy."""
    seen = tokens(case)
    factor: Any = function(seen, **arguments)
    if not isinstance(factor, torch.Tensor) or factor.shape != seen.trained.shape:
        return f"must return one number a token, shape {tuple(seen.trained.shape)}"
    if factor.requires_grad:
        return "is not detached: the factor carries a gradient"
    moved = replace(seen, logprobs=seen.logprobs.detach() - 1.0)
    if not torch.equal(function(moved, **arguments)[seen.trained], factor[seen.trained]):
        return "depends on the current policy: only old and sampler logprobs are a sampler's ratio"
    return ""


def estimates(function: Callable[..., Any], like: str | None, arguments: dict[str, Any]) -> list[str]:
    """An estimator of KL is 0 without a difference, and its formula and derivative elsewhere."""
    points = torch.linspace(-3, 3, 61).requires_grad_()
    row: torch.Tensor = function(points, **arguments)
    (slopes,) = torch.autograd.grad(row.sum(), points)
    at_zero = float(function(torch.zeros(1), **arguments))
    found = [] if abs(at_zero) < 1e-6 else [f"is {at_zero:.6g} where the policies agree, instead of 0"]
    if like is None:
        return found
    exact = [oracle.ESTIMATORS[like](complex(point, 1e-30)) for point in numbers(points)]
    values, derivatives = np.array([item.real for item in exact]), np.array([item.imag / 1e-30 for item in exact])
    for name, given, expected in (("value", numbers(row), values), ("slope", numbers(slopes), derivatives)):
        if not np.abs(given - expected).max() <= 1e-5 * np.abs(expected).max():
            worst = int(np.argmax(np.abs(given - expected)))
            where = f"at d = {float(points[worst].detach()):.2g}"
            found.append(
                f"{name} {given[worst]:.6g} instead of {expected[worst]:.6g} {where}, by the formula of {like}"
            )
    return found


def _seen(case: Case, rows: list[int] | None) -> tuple[Tokens, torch.Tensor]:
    assert case.batch.weights is not None
    return tokens(case, rows), case.batch.weights[case.batch.places(case.rows if rows is None else rows)]


def _gradients(seen: Tokens, total: torch.Tensor) -> dict[str, Any]:
    """With respect to whatever the policy and the critic say; 0 where the loss does not ask."""
    inputs = {name: getattr(seen, name) for name in _INPUTS}
    if total.requires_grad:
        found = torch.autograd.grad(total, list(inputs.values()), allow_unused=True)
    else:
        found = [None] * len(inputs)
    return {
        f"{GRADIENT} to {name}": np.zeros(len(given)) if slope is None else numbers(slope)
        for (name, given), slope in zip(inputs.items(), found, strict=True)
    }


def _expected(case: Case, objective: Objective, found: Measured) -> Measured:
    seen, weights = _seen(case, None)
    exact, factors = exact_tokens(seen), numbers(weights)
    gradients = {
        f"{GRADIENT} to {name}": oracle.gradient(exact, factors, objective, name)
        for name in _INPUTS
        if np.any(found.rows[f"{GRADIENT} to {name}"]) or name == "logprobs"
    }
    rows = {"loss": oracle.terms(exact, factors, objective)} if "loss" in found.rows else {}
    return Measured(rows=rows | gradients, total=oracle.value(exact, factors, objective))
