"""A function under test: how to measure it, how to compare measurements, and how to word faults."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from roll.conformance.batches import Case, case
from roll.conformance.exact import Bools, Floats, Ints
from roll.registry import Table

TOLERANCE = 1e-5
"""Relative to the sum of absolute values, or to the norm of a gradient: the error that single precision may cause."""
SEEDS = (0, 3, 4, 9, 10, 16)
"""Batches from one empty row to 53 rows, with and without penalties and rewards of spans."""
GRADIENT = "gradient"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Measurement:
    """The results of a function on a batch."""

    rows: Mapping[str, Floats]
    """[tokens] by kind: a loss, an advantage, a gradient."""
    total: float | None = None
    """The sum of the rows, if it is defined."""


Measure: TypeAlias = Callable[["Subject", Case, list[int] | None], Measurement]
"""Measures a function on these rows of a case, or on all rows if None."""
Law: TypeAlias = Callable[["Subject", Case], str]
"""Returns a description of the fault, or an empty string."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Subject:
    """A function with its arguments, and the formula it claims to compute."""

    label: str
    function: Callable[..., Any]
    arguments: Mapping[str, Any]
    measure_rows: Measure
    like: str = ""
    """Name of the built-in formula that it should compute; empty if only general laws apply."""
    _known: dict[Case, Measurement] = field(default_factory=dict[Case, Measurement])

    def measure(self, case: Case, rows: list[int] | None = None) -> Measurement:
        return self.measure_rows(self, case, rows)

    def whole(self, case: Case) -> Measurement:
        """The measurement of the whole batch; each case is measured once, however many laws use it."""
        if case not in self._known:
            self._known[case] = self.measure(case)
        return self._known[case]

    def formula_fault(self, case: Case, expected: Measurement) -> str:
        """Where the measurement of the whole batch differs from that of the formula."""
        text = difference(self.whole(case), expected, case.batch.trained.numpy())
        return f"differs from the formula of {self.like}: {text}" if text else ""


def examine(subject: Subject, laws: Sequence[Law], seeds: Sequence[int], **shape: Any) -> list[str]:
    """The faults by each law, on the first batch that shows one."""
    cases = [case(seed, **shape) for seed in seeds]
    faults: list[str] = []
    for law in laws:
        fault = next((f"{text} [batch {each.seed}]" for each in cases if (text := law(subject, each))), None)
        if fault is not None:
            faults.append(f"{subject.label}: {fault}")
    return faults


def resolve(table: Table[Any], function: str | Callable[..., Any]) -> tuple[str, Callable[..., Any]]:
    """A label and the function, from a built-in name, a dotted name, or a function."""
    if isinstance(function, str):
        return function, table[function]
    return getattr(function, "__name__", repr(function)), function


def oracle_name(function: str | Callable[..., Any], like: str | None, known: Mapping[str, Any]) -> str:
    """The formula that a function claims to compute: `like`, or its own name if that is a built-in one; else empty."""
    if like is not None:
        assert like in known, f"no formula is known for {like!r}; known: {', '.join(known)}"
        return like
    return function if isinstance(function, str) and function in known else ""


def difference(result: Measurement, expected: Measurement, trained: Bools, before: Ints | None = None) -> str:
    """Where `result` differs from `expected` on trained tokens; `before` maps each token to its index in `expected`."""
    positions = np.flatnonzero(trained)
    sources = positions if before is None else before[positions]
    with np.errstate(invalid="ignore"):  # results may be infinite
        for name, row in expected.rows.items():
            if text := _difference(name, result.rows[name][positions], row[sources]):
                return text
    if expected.total is not None and result.total is not None:
        size = sum(float(np.abs(row[sources]).sum()) for row in expected.rows.values())
        if not abs(result.total - expected.total) <= TOLERANCE * size + 1e-12:
            return f"the sum is {result.total:.6g} instead of {expected.total:.6g}"
    return ""


def _difference(name: str, result: Floats, expected: Floats) -> str:
    finite = np.isfinite(expected)  # a separate law checks that all values are finite
    result, expected = result[finite], expected[finite]
    if not len(result):
        return ""
    error, size = _error(name, result - expected), _error(name, expected)
    if error <= TOLERANCE * size + 1e-12:
        return ""
    worst = int(np.argmax(np.where(np.isnan(result), np.inf, np.abs(result - expected))))
    many = int(np.sum(~(np.abs(result - expected) <= TOLERANCE * np.abs(expected) + 1e-9)))
    return f"{name} {result[worst]:.6g} instead of {expected[worst]:.6g}; {many} of {len(result)} trained tokens differ"


def _error(name: str, row: Floats) -> float:
    """The norm of a gradient, otherwise the sum of absolute values."""
    return float(np.sqrt(np.sum(row**2)) if name.startswith(GRADIENT) else np.sum(np.abs(row)))
