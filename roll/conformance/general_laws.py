"""Laws for every kind of function: results must not depend on how a batch is split, ordered, packed or padded."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from roll.conformance import variations
from roll.conformance.batches import Case
from roll.conformance.exact import Floats
from roll.conformance.subject import Law, Measurement, Subject, difference
from roll.conformance.variations import Variation


def finite(subject: Subject, case: Case) -> str:
    """Every trained token has a finite value."""
    trained = case.batch.trained.numpy()
    for name, row in subject.whole(case).rows.items():
        if not np.isfinite(row[trained]).all():
            return f"returns {name} {row[trained][~np.isfinite(row[trained])][0]} for a trained token"
    return ""


def parts(subject: Subject, case: Case) -> str:
    """Micro-batches of any split sum to the whole; packing, gradient accumulation and data parallelism rely on it."""
    whole = subject.whole(case)
    for pieces in _splits(case):
        together = _assemble(case, [(rows, subject.measure(case, rows)) for rows in pieces], whole)
        if text := difference(together, whole, case.batch.trained.numpy()):
            return f"depends on how the batch is split into micro-batches: in {len(pieces)} parts {text}"
    return ""


def _unchanged(vary: Callable[[Case], Variation], fault: str, subject: Subject, case: Case) -> str:
    varied, before = vary(case)
    result = subject.measure(varied)
    text = difference(result, subject.whole(case), varied.batch.trained.numpy(), before)
    return f"{fault}: {text}" if text else ""


_SAME: tuple[Law, ...] = (
    partial(_unchanged, variations.shuffle, "depends on the order of sequences"),
    partial(_unchanged, variations.insert_observations, "depends on observation tokens"),
    partial(_unchanged, variations.add_masked_rows, "depends on empty or all-masked sequences"),
    partial(_unchanged, variations.replace_garbage, "reads values at untrained tokens"),
)
group_names: Law = partial(_unchanged, variations.rename_groups, "depends on the values of group ids")
"""Siblings are trajectories with equal group ids, regardless of their values."""
num_rows: Law = partial(_unchanged, variations.divide_rows, "depends on how many rows a trajectory has")
"""A trajectory counts once, however many rows it has."""
ON_TOKENS: tuple[Law, ...] = (finite, parts, *_SAME)
"""For functions of micro-batches."""
ON_BATCHES: tuple[Law, ...] = (finite, *_SAME, group_names)
"""For functions of the whole batch."""


def _splits(case: Case) -> Iterator[list[list[int]]]:
    """Each row alone, or a few together where there are many; then two or three parts of rows in random order."""
    noise = np.random.default_rng(case.seed)
    few = 1 + len(case.rows) // 16
    yield [case.rows[first : first + few] for first in range(0, len(case.rows), few)]
    for size in (2, 3):
        mixed = [int(row) for row in noise.permutation(case.rows)]
        yield [part for first in range(size) if (part := mixed[first::size])]


def _assemble(case: Case, pieces: list[tuple[list[int], Measurement]], like: Measurement) -> Measurement:
    """The rows of all pieces at their original positions, and the sum of their totals."""
    rows: dict[str, Floats] = {}
    for name in like.rows:
        rows[name] = np.zeros(case.batch.num_tokens)
        for part, measurement in pieces:
            rows[name][case.batch.positions(part)] = measurement.rows[name]
    total = None if like.total is None else sum(measurement.total or 0.0 for _, measurement in pieces)
    return Measurement(rows=rows, total=total)
