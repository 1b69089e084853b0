"""Laws that hold for whatever it is: nothing may depend on how a batch was cut, ordered, packed or padded."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from roll.conformance import variations
from roll.conformance.batches import Case
from roll.conformance.exact import Floats
from roll.conformance.subject import Law, Measured, Subject, difference
from roll.conformance.variations import Variation


def finite(subject: Subject, case: Case) -> str:
    """Every trained token has a number."""
    trained = case.batch.trained.numpy()
    for name, row in subject.whole(case).rows.items():
        if not np.isfinite(row[trained]).all():
            return f"gives {name} {row[trained][~np.isfinite(row[trained])][0]} for a trained token"
    return ""


def parts(subject: Subject, case: Case) -> str:
    """Micro-batches of any cut add up to the whole: packing, gradient accumulation and data parallelism are this."""
    whole = subject.whole(case)
    for cut in _cuts(case):
        together = _assembled(case, [(rows, subject.measure(case, rows)) for rows in cut], whole)
        if text := difference(together, whole, case.batch.trained.numpy()):
            return f"depends on how the batch is cut into micro-batches: in {len(cut)} parts {text}"
    return ""


def order(subject: Subject, case: Case) -> str:
    """Sequences may stand in any order."""
    return _unchanged(subject, case, variations.shuffled, "depends on the order of sequences")


def observations(subject: Subject, case: Case) -> str:
    """Tokens that are not trained on may stand anywhere between the others."""
    return _unchanged(subject, case, variations.observed, "depends on observation tokens")


def masked_rows(subject: Subject, case: Case) -> str:
    """Empty and all-masked sequences do not count."""
    return _unchanged(subject, case, variations.masked, "depends on empty or all-masked sequences")


def garbage(subject: Subject, case: Case) -> str:
    """What stands at untrained tokens is never read."""
    return _unchanged(subject, case, variations.soiled, "reads what stands at untrained tokens")


def group_names(subject: Subject, case: Case) -> str:
    """Siblings are those with equal ids, whatever the ids are."""
    return _unchanged(subject, case, variations.renamed, "depends on what the group ids are")


def num_rows(subject: Subject, case: Case) -> str:
    """A trajectory counts once, however many rows it has."""
    return _unchanged(subject, case, variations.cut, "depends on how many rows a trajectory has")


ON_TOKENS: tuple[Law, ...] = (finite, parts, order, observations, masked_rows, garbage)
"""For what sees micro-batches."""
ON_BATCHES: tuple[Law, ...] = (finite, order, observations, masked_rows, garbage, group_names)
"""For what sees the whole batch."""


def _unchanged(subject: Subject, case: Case, vary: Callable[[Case], Variation], fault: str) -> str:
    varied, before = vary(case)
    found = subject.measure(varied, None)
    text = difference(found, subject.whole(case), varied.batch.trained.numpy(), before)
    return f"{fault}: {text}" if text else ""


def _cuts(case: Case) -> Iterator[list[list[int]]]:
    """Each row alone, or a few where there are many; and two or three parts of rows in random order."""
    noise = np.random.default_rng(case.seed)
    few = 1 + len(case.rows) // 16
    yield [case.rows[first : first + few] for first in range(0, len(case.rows), few)]
    for size in (2, 3):
        mixed = [int(row) for row in noise.permutation(case.rows)]
        yield [part for place in range(size) if (part := mixed[place::size])]


def _assembled(case: Case, found: list[tuple[list[int], Measured]], like: Measured) -> Measured:
    """The rows of all parts, put back where they stood, and the sum of their totals."""
    rows: dict[str, Floats] = {}
    for name in like.rows:
        rows[name] = np.zeros(case.batch.num_tokens)
        for part, measured in found:
            rows[name][case.batch.places(part)] = measured.rows[name]
    total = None if like.total is None else sum(measured.total or 0.0 for _, measured in found)
    return Measured(rows=rows, total=total)
