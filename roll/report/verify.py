"""Checks of a run from the files in its directory alone: journal, checkpoints and metrics. Writes nothing."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from roll.checkpoint import Checkpoints, read_state
from roll.checksums import find_damage
from roll.config.load import load
from roll.errors import ConfigError
from roll.journal.records import TrajectoryQuery
from roll.journal.store import Reader
from roll.report.invariants import Invariant, JournalChecks, RunBounds
from roll.report.journals import open_journal
from roll.report.ledger import Ledger, read_ledger
from roll.report.report import table
from roll.tracking.directory import METRICS, check_run
from roll.tracking.sinks import read_lines

T = TypeVar("T")
_UNREADABLE = (sqlite3.DatabaseError, msgspec.MsgspecError, KeyError, ValueError)
"""Errors of damaged rows: pages, event bodies, kinds of events, statuses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """Result of all checks of one run."""

    directory: str
    state: str
    """`finished`, `interrupted`, or `not ended` for a run that runs or was killed."""
    steps: int
    """Steps that were started and not rolled back."""
    entries: int
    """Events and attempts of the journal that were read."""
    damage: str
    """First fault of a damaged journal, whose entries up to the fault are checked; empty if it is intact."""
    violations: int
    invariants: tuple[Invariant, ...]


def verify(directory: Path, overrides: Sequence[str] = ()) -> Verification:
    """Check a finished, running or broken run. `overrides` are those that the run was resumed with."""
    check_run(directory)
    run = load(directory / "config.yaml", overrides).run
    rollout = run.rollout
    bounds = RunBounds(
        groups_per_step=rollout.groups_per_step,
        group_size=rollout.group_size,
        max_age=rollout.max_age,
        redundant_groups=rollout.redundancy_bounds[1],
        reuse=rollout.reuse,
        num_replayed=rollout.num_replayed,
        stops=rollout.stop_quantile is not None,
        in_order=rollout.priority == "age",
    )
    return verify_journal(directory, bounds)


def verify_journal(directory: Path, bounds: RunBounds) -> Verification:
    """Check the run in `directory` against these bounds."""
    # Before the journal: a running process records an event first, then writes the file.
    saved, lines = _read_checkpoints(directory), _read_steps(directory)
    journal = Invariant("the journal can be read", "entries")
    checks = JournalChecks(bounds)
    with open_journal(directory) as reader, reader.snapshot():
        damage = reader.damage()
        for fault in damage:
            journal.require(False, fault)
        last = _check_entries(reader, checks, journal)
    if not checks.num_processes and not journal.violations:
        raise ConfigError(f"{directory}: its journal has no run of `roll train` yet; give the directory of one")
    books = Invariant("tokens, attempts and groups are accounted for", "accounts")
    metrics = Invariant("metrics have one line per step", "lines")
    checkpoints = Invariant("checkpoints match the journal", "checkpoints")
    files = Invariant("files of checkpoints are as they were written", "checkpoints")
    _check_files(directory, saved, files)
    if not journal.violations:
        _check_books(read_ledger(directory), books)
        _check_metrics(lines, checks, metrics)
        _check_checkpoints(directory, saved, last, checks, checkpoints)
    invariants = [journal, *checks.invariants(), books, metrics, checkpoints, files]
    return Verification(
        directory=str(directory),
        state="not ended" if checks.ended is None else checks.ended.reason,
        steps=checks.started,
        entries=journal.checked,
        damage=journal.examples[0] if journal.examples else "",
        violations=sum(each.violations for each in invariants),
        invariants=tuple(invariants),
    )


def describe_violations(verification: Verification) -> Iterator[str]:
    """The first violations of each invariant, one per line."""
    for each in verification.invariants:
        yield from (f"{each.name}: {example}" for example in each.examples)
        if (more := each.violations - len(each.examples)) > 0:
            yield f"{each.name}: {more} more"


def format_verification(verification: Verification) -> str:
    """A table of the invariants, then the first violations of each."""
    steps = "1 step" if verification.steps == 1 else f"{verification.steps} steps"
    lines = [f"{verification.directory}: {verification.state}, {steps}, {verification.entries} journal entries"]
    if verification.damage:
        lines.append(f"the journal is damaged ({verification.damage}); the entries up to the fault were checked")
    rows = [("invariant", "checked", "violations")]
    rows += [(each.name, f"{each.checked} {each.unit}", str(each.violations)) for each in verification.invariants]
    return "\n".join([*lines, *table(rows), *describe_violations(verification)])


def _check_entries(reader: Reader, checks: JournalChecks, journal: Invariant) -> int:
    """Check the journal up to its first unreadable entry; the id of the last event that was read."""
    last = 0
    for entry in _readable(reader.events(), journal):
        journal.checked += 1
        last = entry.id
        checks.apply(entry)
    stored = _readable(reader.trajectories(TrajectoryQuery(bodies=False)), journal)
    checks.add_trajectories(each for each in stored if not journal.violations or each.id <= last)
    if not journal.violations:
        checks.add_progress(reader.progress())
        checks.finish()
    return last


def _readable(entries: Iterable[T], journal: Invariant) -> Iterator[T]:
    """The entries before the first that cannot be read."""
    try:
        yield from entries
    except _UNREADABLE as error:
        journal.require(False, f"{type(error).__name__}: {error}")


def _check_books(ledger: Ledger, books: Invariant) -> None:
    """Check that `roll report` accounts for everything."""
    for name, account in (("tokens", ledger.tokens), ("attempts", ledger.trajectories), ("groups", ledger.groups)):
        rest = account.unaccounted
        books.check(rest == 0, f"{rest} of {account.total} {name} are unaccounted")


def _read_steps(directory: Path) -> list[int] | None:
    """Steps in the metrics; None without the file."""
    path = directory / METRICS
    return [int(line["step"]) for line in read_lines(path)] if path.is_file() else None


def _check_metrics(steps: list[int] | None, checks: JournalChecks, invariant: Invariant) -> None:
    if not steps:
        missing = steps is None and checks.ended is not None and checks.started > 0
        invariant.require(not missing, f"{METRICS} is missing")
        return
    for before, step in zip((steps[0] - 1, *steps), steps, strict=False):
        invariant.check(step == before + 1, f"step {step} follows step {before}")
    invariant.require(steps[0] in (0, 1), f"the first line is of step {steps[0]}")
    invariant.require(steps[-1] <= checks.published_step, f"step {steps[-1]} was not published")
    if checks.ended is not None:
        invariant.require(steps[-1] == checks.started, f"the last line is of step {steps[-1]}, not {checks.started}")


def _read_checkpoints(directory: Path) -> dict[int, dict[str, Any] | str]:
    """State of each checkpoint by step, or why it cannot be read."""
    checkpoints = Checkpoints(directory / "checkpoints", keep=1)
    states: dict[int, dict[str, Any] | str] = {}
    for step in checkpoints.steps():
        path = checkpoints.directory / f"step-{step}"
        try:
            states[step] = read_state(path)
        except ConfigError as error:
            if path.exists():  # else a running process has replaced it by a newer one
                states[step] = str(error)
    return states


def _check_files(directory: Path, saved: Iterable[int], invariant: Invariant) -> None:
    """Checkpoints without checksums are not checked."""
    for step in saved:
        path = directory / "checkpoints" / f"step-{step}"
        damage = find_damage(path)
        if damage is not None and path.exists():  # else a running process has replaced it by a newer one
            invariant.check(not damage, f"{path.name} is damaged: {damage}")


def _check_checkpoints(
    directory: Path, saved: dict[int, dict[str, Any] | str], last_id: int, checks: JournalChecks, invariant: Invariant
) -> None:
    """`last_id` is the last position of the journal."""
    for step, state in saved.items():
        name = f"step-{step}"
        if isinstance(state, str):
            invariant.check(False, state)
            continue
        at, groups = state.get("journal", 0), state.get("scheduler", {}).get("groups", ())
        invariant.require(state.get("began", checks.began) == checks.began, f"{name} is of another run")
        invariant.check(at <= last_id, f"{name} names position {at} of the journal, which ends at {last_id}")
        invariant.require(state.get("step") == step, f"{name} has the state of step {state.get('step')}")
        published = checks.published_before(at)
        invariant.require(published == step, f"{name} names position {at}, where step {published} is published")
        unknown = [each["ticket"] for each in groups if checks.admitted.get(each["ticket"], at + 1) > at]
        invariant.require(not unknown, f"{name} has groups {unknown}, which were not admitted before it")
    if (last := checks.checkpoint) is not None:
        newest = max(Checkpoints(directory / "checkpoints", keep=1).steps(), default=-1)  # a later one may replace it
        invariant.require(newest >= last.step, f"{last.path} is recorded as saved and does not exist")
