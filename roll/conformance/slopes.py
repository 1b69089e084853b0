"""Comparison of losses and their gradients with formulas in double precision, whose derivatives use a complex step."""

from __future__ import annotations

import cmath
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from roll.conformance.exact import Floats

_TOLERANCE = 1e-5
"""Relative to the largest value: the error that single precision may cause."""
TINY = 1e-30
"""Length of the complex step."""
Number: TypeAlias = Any
"""A float, or a complex number with a derivative in its imaginary part."""


def by_formula(
    row: Floats, positions: Sequence[int], losses: Callable[[Any], Sequence[Number]]
) -> tuple[Floats, Floats]:
    """Losses of a row, and the gradient of their mean at these positions; it is 0 at all others."""
    gradient = np.zeros(len(row))
    for position in positions:
        shifted = row.astype(np.complex128)
        shifted[position] += 1j * TINY
        results = losses(shifted)
        gradient[position] = sum(complex(each).imag for each in results) / TINY / len(results)
    return np.array([complex(each).real for each in losses(row.astype(np.complex128))]), gradient


def largest_error(result: Floats, expected: Floats) -> str:
    """The largest error in words; empty if every entry agrees."""
    if result.shape != expected.shape:
        return f"shape {result.shape} instead of {expected.shape}"
    errors = np.abs(result - expected)
    if np.all(errors <= _TOLERANCE * max(1e-3, float(np.abs(expected).max()))):
        return ""
    worst = int(np.argmax(np.where(np.isnan(errors), np.inf, errors)))
    return f"{result[worst]:.6g} instead of {expected[worst]:.6g}"


def sigmoid(value: Number) -> Number:
    """The logistic function."""
    return 1 / (1 + cmath.exp(-value))
