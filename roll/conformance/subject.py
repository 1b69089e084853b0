"""A function under examination: how to measure it, how measurements are compared, and how faults are worded."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from roll.conformance.batches import Case, case
from roll.conformance.exact import Bools, Floats, Ints
from roll.registry import Table

TOLERANCE = 1e-5
"""Of the sum of absolute numbers, or of the norm of a gradient: what single precision may cost."""
SEEDS = (0, 3, 4, 9, 10, 16)
"""Batches from one empty row to 53 rows, with and without penalties."""
GRADIENT = "gradient"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Measured:
    """What a function says about a batch."""

    rows: Mapping[str, Floats]
    """[tokens] by what it is: a loss, an advantage, a gradient."""
    total: float | None = None
    """The number it all adds up to, if there is one."""


Measure: TypeAlias = Callable[[Case, list[int] | None], Measured]
"""Of these rows of a case, of all if None."""
Law: TypeAlias = Callable[["Subject", Case], str]
"""What is wrong, or nothing."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Subject:
    """A function with its arguments, and what it claims to be."""

    label: str
    measure: Measure
    like: str | None = None
    """Whose formula it should compute, by a name of ours; None where only general laws hold."""
    arguments: Mapping[str, Any] = field(default_factory=lambda: {})
    _known: dict[Case, Measured] = field(default_factory=dict[Case, Measured])

    def whole(self, case: Case) -> Measured:
        """Of the whole batch; a case is measured once, however many laws ask."""
        if case not in self._known:
            self._known[case] = self.measure(case, None)
        return self._known[case]


def examine(subject: Subject, laws: Sequence[Law], seeds: Sequence[int], **shape: Any) -> list[str]:
    """What is wrong by each law, on the first batch that shows it."""
    cases = [case(seed, **shape) for seed in seeds]
    found: list[str] = []
    for law in laws:
        fault = next((f"{text} [batch {given.seed}]" for given in cases if (text := law(subject, given))), None)
        if fault is not None:
            found.append(f"{subject.label}: {fault}")
    return found


def resolved(table: Table[Any], function: str | Callable[..., Any]) -> tuple[str, Callable[..., Any]]:
    """A label and the function itself, for a name of ours, a dotted name, or a function."""
    if isinstance(function, str):
        return function, table[function]
    return getattr(function, "__name__", repr(function)), function


def likeness(function: str | Callable[..., Any], like: str | None, known: Mapping[str, Any]) -> str | None:
    """What a function claims to be: `like`, or its own name if that is one of ours."""
    if like is not None:
        assert like in known, f"no formula is known for {like!r}; known: {', '.join(known)}"
        return like
    return function if isinstance(function, str) and function in known else None


def difference(found: Measured, expected: Measured, trained: Bools, before: Ints | None = None) -> str:
    """Where `found` is not `expected` on trained tokens; `before` says which token of the latter each was."""
    places = np.flatnonzero(trained)
    origin = places if before is None else before[places]
    with np.errstate(invalid="ignore"):  # what is found may be infinite
        for name, row in expected.rows.items():
            if text := _difference(name, found.rows[name][places], row[origin]):
                return text
    if expected.total is not None and found.total is not None:
        size = sum(float(np.abs(row[origin]).sum()) for row in expected.rows.values())
        if not abs(found.total - expected.total) <= TOLERANCE * size + 1e-12:
            return f"the sum is {found.total:.6g} instead of {expected.total:.6g}"
    return ""


def _difference(name: str, found: Floats, expected: Floats) -> str:
    sound = np.isfinite(expected)  # that all numbers are finite is a law of its own
    found, expected = found[sound], expected[sound]
    if not len(found):
        return ""
    error, size = _error(name, found - expected), _error(name, expected)
    if error <= TOLERANCE * size + 1e-12:
        return ""
    worst = int(np.argmax(np.where(np.isnan(found), np.inf, np.abs(found - expected))))
    many = int(np.sum(~(np.abs(found - expected) <= TOLERANCE * np.abs(expected) + 1e-9)))
    return f"{name} {found[worst]:.6g} instead of {expected[worst]:.6g}; {many} of {len(found)} trained tokens differ"


def _error(name: str, row: Floats) -> float:
    """The norm of a gradient, the sum of absolute numbers of anything else."""
    return float(np.sqrt(np.sum(row**2)) if name.startswith(GRADIENT) else np.sum(np.abs(row)))
