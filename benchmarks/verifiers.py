"""Wrong verdicts of the verifiers on made responses, and what attacks on the code reward and its sandbox achieve.

The responses and their expected scores are made by rules (`benchmarks/surface_forms`), the attacks are lists
(`benchmarks/forged_code.py`, `benchmarks/memory_attacks.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import typer

from benchmarks import forged_code, memory_attacks
from benchmarks.result import Result
from benchmarks.surface_forms import choice, math
from benchmarks.surface_forms.row import Row
from roll.rewards.base import LocalRewards
from roll.sandbox.level import unavailable_reason
from roll.types import Spec, Task

NUM_MATH, NUM_CHOICE = 13_000, 8_000
SEED = 1
SLACK_BYTES = 64 * 2**20
"""Memory past the limit of a sandbox that is not counted."""
MAX_RETRIES = 2
NUM_SHOWN = 5
"""Wrong verdicts of each kind in the details."""
BOXED, UNBOXED, NEGATED, CHOICE = "math boxed", "math unboxed", "math negations", "choice"
LIMITS = {
    f"{BOXED}: false zeros": 0.005,
    f"{BOXED}: false ones": 0.005,
    f"{NEGATED}: false ones": 0.05,
    f"{UNBOXED}: false zeros": 0.03,
    f"{UNBOXED}: false ones": 0.03,
    f"{CHOICE}: false zeros": 0.005,
    f"{CHOICE}: false ones": 0.005,
    "code: forged": 0.0,
    "sandbox: survivors": 0.0,
    "sandbox: MB past the limit": 0.0,
}
"""Largest allowed value of each measurement; those of verdicts are fractions."""


@dataclass(slots=True)
class VerdictCounts:
    """Right and wrong verdicts about one class of responses."""

    right: int = 0
    """Responses that deserve 1."""
    wrong: int = 0
    """Responses that deserve 0."""
    false_zeros: list[Row] = field(default_factory=list[Row])
    """Responses that deserve 1 and did not get it."""
    false_ones: list[Row] = field(default_factory=list[Row])
    unscored: int = 0
    """Responses without a score after all retries; those that deserve 1 are false zeros too."""

    def add(self, row: Row, score: float | None) -> None:
        """Count one verdict; None is none."""
        self.unscored += score is None
        if row.expected >= 1:
            self.right += 1
            self.false_zeros += [row] if score is None or score < 1 else []
        else:
            self.wrong += 1
            self.false_ones += [row] if score is not None and score > 0 else []


def run() -> Result:
    """The worst limit as a fraction that is 1 if all limits hold; the details have every measurement."""
    counts = asyncio.run(_judge([*math.rows(NUM_MATH, SEED), *choice.rows(NUM_CHOICE, SEED)]))
    measured, details = rates(counts), _describe(counts)
    missing = unavailable_reason()
    if missing:
        return _result(None, {**details, "measured": measured}, skipped=missing)
    attacks, attack_details = _attack()
    return _result({**measured, **attacks}, {**details, **attack_details})


def class_of(row: Row) -> str:
    """The class of responses whose limits apply to a row."""
    if row.verifier == "choice":
        return CHOICE
    if "negat" in row.kind:
        return NEGATED
    return BOXED if "\\boxed" in row.response or "\\fbox" in row.response else UNBOXED


def rates(counts: Mapping[str, VerdictCounts]) -> dict[str, float]:
    """Shares of wrong verdicts, by the names of `LIMITS`."""
    shares: dict[str, float] = {}
    for name, each in counts.items():
        shares[f"{name}: false zeros"] = len(each.false_zeros) / max(each.right, 1)
        shares[f"{name}: false ones"] = len(each.false_ones) / max(each.wrong, 1)
    return {name: share for name, share in shares.items() if name in LIMITS}


def held(measured: Mapping[str, float]) -> dict[str, float]:
    """How far each limit holds: 1 if it does, else the limit divided by the measurement, or 0 if nothing is allowed."""
    return {name: 1.0 if measured[name] <= limit else limit / measured[name] for name, limit in LIMITS.items()}


async def _judge(rows: Iterable[Row]) -> dict[str, VerdictCounts]:
    """The verdicts of the rewards of the package about all rows, with retries as in a run."""
    counts = {name: VerdictCounts() for name in (BOXED, UNBOXED, NEGATED, CHOICE)}
    service = LocalRewards(max_retries=MAX_RETRIES)
    try:
        for index, row in enumerate(rows):
            metadata = {"options": list(row.options)} if row.options else {}
            task = Task(id=str(index), domain=row.verifier, answer=row.answer, metadata=metadata)
            result = await service.score(Spec(row.verifier), task, row.response)
            counts[class_of(row)].add(row, None if result.score is None else result.score.total)
    finally:
        await service.stop()
    for name, each in counts.items():
        zeros, ones = len(each.false_zeros), len(each.false_ones)
        typer.echo(f"{name}: {zeros} false zeros of {each.right}, {ones} false ones of {each.wrong}")
    return counts


def _describe(counts: Mapping[str, VerdictCounts]) -> dict[str, Any]:
    examples = {
        f"{name}: {kind}": [f"{row.kind}: {row.response[:200]!r} for {row.answer!r}" for row in wrong[:NUM_SHOWN]]
        for name, each in counts.items()
        for kind, wrong in (("false zeros", each.false_zeros), ("false ones", each.false_ones))
        if wrong
    }
    return {
        "responses": sum(each.right + each.wrong for each in counts.values()),
        "unscored": sum(each.unscored for each in counts.values()),
        "classes": {name: {"right": each.right, "wrong": each.wrong} for name, each in counts.items()},
        "examples": examples,
    }


def _attack() -> tuple[dict[str, float], dict[str, Any]]:
    """What the attacks achieve, by the names of `LIMITS`, and details."""
    forged = {name: forms for name in forged_code.ATTACKS if (forms := forged_code.forged(name))}
    typer.echo(f"{len(forged_code.ATTACKS)} attacks on the code reward: {len(forged)} score")
    taken = {name: asyncio.run(memory_attacks.overshoot(name)) for name in memory_attacks.ATTACKS}
    past = {name: max(num_bytes - SLACK_BYTES, 0) / 2**20 for name, (num_bytes, _) in taken.items()}
    survivors = {name: num for name, (_, num) in taken.items() if num}
    typer.echo(f"{len(taken)} attacks on memory: {max(past.values()):.0f} MB past the limit, {survivors} survive")
    measured = {
        "code: forged": float(len(forged)),
        "sandbox: survivors": float(sum(survivors.values())),
        "sandbox: MB past the limit": max(past.values()),
    }
    details = {
        "code_attacks": len(forged_code.ATTACKS),
        "memory_attacks": len(taken),
        "forged": forged,
        "survivors": survivors,
        "mb_past_limit": {name: round(each, 1) for name, each in past.items() if each},
    }
    return measured, details


def _result(measured: Mapping[str, float] | None, details: dict[str, Any], *, skipped: str = "") -> Result:
    fractions = held(measured) if measured is not None else None
    rounded = {name: round(value, 5) for name, value in (measured or {}).items()}
    return Result(
        name="verifiers",
        unit="worst limit, 1 if all hold",
        higher_is_better=True,
        ours=None if fractions is None else min(fractions.values()),
        bound=1.0,
        details={**({"measured": rounded} if rounded else {}), **details},
        skipped=skipped,
    )
