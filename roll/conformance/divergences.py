"""Checks of distillation: `check_divergence("reverse_kl", temperature=2.0)` returns the faults of a loss, one per line.

A random ragged batch goes through a step: from the logits of student and teacher to the loss, and to its gradient. Both
are compared with the formula in double precision, computed token by token; derivatives are taken with a complex step.
"""

from __future__ import annotations

import cmath
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch

from roll.algorithms.distillation import Distillation, TeacherTokens, distillation_rows, most_likely
from roll.conformance.exact import Floats, numbers
from roll.data.collate import supervised
from roll.types import Batch, Spec

SEEDS = (0, 1, 2, 3)
VOCAB = 11
_TOLERANCE = 1e-5
"""Relative to the largest value, or to 1: the error that single precision may cause."""
_TINY = 1e-30
Number: TypeAlias = Any
"""A float, or a complex number with a derivative in its imaginary part."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DistillationCase:
    """A random batch with the logits of both models; those at position t are about token t + 1."""

    batch: Batch
    student: torch.Tensor
    """[tokens, vocab] fp32"""
    teacher: torch.Tensor
    top_k: int | None
    """Most likely tokens of the teacher that the loss reads; None: all."""


DistillationStep: TypeAlias = Callable[[DistillationCase, Distillation], tuple[torch.Tensor, torch.Tensor]]
"""The loss of the batch, and [tokens, vocab] its gradient to the student's logits."""


def package_step(case: DistillationCase, objective: Distillation) -> tuple[torch.Tensor, torch.Tensor]:
    """The step of `roll distill` without a model."""
    assert case.batch.weights is not None, "a supervised batch has weights"
    at = case.batch.trained.nonzero().squeeze(-1)
    student = case.student.clone().requires_grad_()
    teacher: torch.Tensor | TeacherTokens = case.teacher[at - 1]
    if case.top_k is not None:
        ids, logprobs = most_likely(case.teacher[at - 1], objective.temperature, case.top_k)
        teacher = TeacherTokens(ids=ids, logprobs=logprobs)
    rows = distillation_rows(student[at - 1], case.batch.ids[at], teacher, objective)
    loss = (rows[0] * case.batch.weights[at]).sum()
    return loss.detach(), torch.autograd.grad(loss, student)[0]


def check_divergence(
    function: str | Callable[..., Any],
    *,
    like: str | None = None,
    step: DistillationStep = package_step,
    top_k: int | None = None,
    temperature: float = 1.0,
    sft_weight: float = 0.0,
    **arguments: Any,
) -> list[str]:
    """Faults of a divergence, by name or as a function of a module, `like` a built-in one; or of another `step`."""
    name = function if isinstance(function, str) else f"{function.__module__}:{function.__name__}"
    formula = like or name
    objective = Distillation(
        divergence=Spec(name, arguments), temperature=temperature, sft_weight=sft_weight, vocab=VOCAB
    )
    for seed in SEEDS:
        case = distillation_case(seed, top_k)
        loss, gradient = step(case, objective)
        expected, slopes = _by_formula(case, objective, formula)
        for what, result, exact in (
            ("loss", numbers(loss)[None], np.array([expected])),
            ("gradient", numbers(gradient), slopes),
        ):
            if text := _difference(result, exact):
                return [f"{name}: {what} differs from the formula of {formula}: {text} [batch {seed}]"]
    return []


def distillation_case(seed: int, top_k: int | None) -> DistillationCase:
    """Six rows, some with two responses of one to seven tokens, each after a prompt of one to four."""
    draw = np.random.default_rng(seed)

    def part(most: int) -> list[int]:
        return draw.integers(0, VOCAB, int(draw.integers(1, most))).tolist()

    batch = supervised([[part(5), part(8), *([part(4), part(6)] if row % 2 else [])] for row in range(6)])
    logits = [torch.tensor(draw.normal(0, 2, (batch.num_tokens, VOCAB)), dtype=torch.float32) for _ in range(2)]
    return DistillationCase(batch=batch, student=logits[0], teacher=logits[1], top_k=top_k)


def row_loss(
    student: Sequence[Number], teacher: Sequence[float], token: int, objective: Distillation, options: tuple[str, Any]
) -> Number:
    """The loss of one token from the logits before it; `options` are the formula and the top-k."""
    formula, top_k = options
    q, p = (_softmax(logits, objective.temperature) for logits in (student, teacher))
    if top_k is not None:
        order = sorted(range(len(p)), key=lambda index: -teacher[index])
        q, p = (
            [row[index] for index in order[:top_k]] + ([sum(row[i] for i in order[top_k:])] if order[top_k:] else [])
            for row in (q, p)
        )
    divergence = FORMULAS[formula](p, q, **objective.divergence.kwargs) * objective.temperature**2
    surprise = -cmath.log(_softmax(student, 1.0)[token])
    return (1 - objective.sft_weight) * divergence + objective.sft_weight * surprise


def _by_formula(case: DistillationCase, objective: Distillation, formula: str) -> tuple[float, Floats]:
    """The mean loss over the trained tokens, and its gradient, logit by logit."""
    ids: list[int] = case.batch.ids.numpy().tolist()
    student, teacher = numbers(case.student), numbers(case.teacher)
    total, gradient = 0.0, np.zeros_like(student)
    positions = _trained_positions(case.batch)
    for position in positions:
        before, target = student[position - 1].tolist(), teacher[position - 1].tolist()

        def loss(row: list[Number], position: int = position, target: list[float] = target) -> Number:
            return row_loss(row, target, ids[position], objective, (formula, case.top_k))

        total += complex(loss(before)).real / len(positions)
        for index in range(len(before)):
            moved = [value + (1j * _TINY if each == index else 0) for each, value in enumerate(before)]
            gradient[position - 1, index] += complex(loss(moved)).imag / _TINY / len(positions)
    return total, gradient


def _trained_positions(batch: Batch) -> list[int]:
    trained: list[bool] = batch.trained.numpy().tolist()
    return [position for position, mark in enumerate(trained) if mark]


def _difference(result: Floats, expected: Floats) -> str:
    errors = np.abs(result - expected)
    if np.all(errors <= _TOLERANCE * max(1.0, float(np.abs(expected).max()))):
        return ""
    worst = np.unravel_index(int(np.argmax(np.where(np.isnan(errors), np.inf, errors))), errors.shape)
    return f"{result[worst]:.6g} instead of {expected[worst]:.6g}"


def _softmax(logits: Sequence[Number], temperature: float) -> list[Number]:
    largest = max(complex(value).real for value in logits)
    powers = [cmath.exp((value - largest) / temperature) for value in logits]
    total = sum(powers)
    return [power / total for power in powers]


def _kl(left: Sequence[Number], right: Sequence[Number]) -> Number:
    return sum(a * (cmath.log(a) - cmath.log(b)) for a, b in zip(left, right, strict=True))


def _mix(left: Sequence[Number], right: Sequence[Number], share: float) -> list[Number]:
    return [share * a + (1 - share) * b for a, b in zip(left, right, strict=True)]


def _jensen_shannon(p: Sequence[Number], q: Sequence[Number], *, weight: float = 0.5) -> Number:
    middle = _mix(p, q, weight)
    return weight * _kl(p, middle) + (1 - weight) * _kl(q, middle)


def _reverse_kl(p: Sequence[Number], q: Sequence[Number]) -> Number:
    return _kl(q, p)


def _skewed_forward_kl(p: Sequence[Number], q: Sequence[Number], *, skew: float = 0.1) -> Number:
    return _kl(p, _mix(p, q, skew))


def _skewed_reverse_kl(p: Sequence[Number], q: Sequence[Number], *, skew: float = 0.1) -> Number:
    return _kl(q, _mix(q, p, skew))


FORMULAS: dict[str, Callable[..., Number]] = {
    "forward_kl": _kl,
    "reverse_kl": _reverse_kl,
    "jensen_shannon": _jensen_shannon,
    "skewed_forward_kl": _skewed_forward_kl,
    "skewed_reverse_kl": _skewed_reverse_kl,
}
"""Formulas of divergences from the teacher's probabilities and the student's, by name."""
