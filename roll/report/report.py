"""A ledger as text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from roll.journal.records import IDLE
from roll.report.hacks import notice
from roll.report.ledger import Ledger, OutcomeCounts
from roll.report.notices import format_notice
from roll.report.time_account import UNACCOUNTED, TimeAccount, WorkerTime

Rows = Sequence[Sequence[str]]


def format_report(ledger: Ledger, directory: Path = Path("RUN")) -> str:
    """The whole ledger of the run in `directory`, one table per part; notices come last."""
    parts = [_time(ledger.time), _outcomes(ledger), _publications(ledger), _staleness(ledger), _profiles(ledger)]
    if ledger.restarts:
        parts.append(f"restart {event.number} after {event.seconds:.1f} s: {event.cause}" for event in ledger.restarts)
    if ledger.ratio_changes:
        parts.append(f"after step {event.step}: {event.reason}" for event in ledger.ratio_changes)
    if ledger.quarantined:
        parts.append(_quarantined(ledger))
    if ledger.problems:
        parts.append(_problems(ledger, directory))
    if ledger.hacks:
        parts.append(notice(event, directory) for event in ledger.hacks)
    return "\n\n".join("\n".join(part) for part in parts)


def table(rows: Rows) -> Iterator[str]:
    """Lines in columns, the first left-aligned, the others right-aligned. The first row is the heading."""
    widths = [max(len(row[index]) for row in rows) for index in range(len(rows[0]))]
    for row in rows:
        others = [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        yield "  ".join([row[0].ljust(widths[0]), *others]).rstrip()


def _time(account: TimeAccount) -> Iterator[str]:
    processes = "1 process" if account.num_processes == 1 else f"{account.num_processes} processes"
    yield f"time: {account.wall_s:.1f} s of wall clock in {processes}; {account.not_running_s:.1f} s not running"
    if account.outside_s:
        yield f"{account.outside_s:.1f} s of work are excluded: they lie before the recorded start of the run"
    if not account.workers:
        yield "no worker recorded its activities"
        return
    rows = [("worker", "activity", "seconds", "share")]
    for worker in (*account.workers, account.total):
        rows += _worker_rows(worker)
    width = max(len(row[0]) for row in rows)
    yield from table([(f"{worker.ljust(width)}  {activity}", *numbers) for worker, activity, *numbers in rows])


def _worker_rows(time: WorkerTime) -> Iterator[tuple[str, str, str, str]]:
    """Work first, then waits, then the remainder."""
    names = sorted(time.activity_s, key=lambda name: name.startswith(IDLE))
    seconds = [(name, time.activity_s[name]) for name in names]
    worker = time.worker
    for activity, spent in (*seconds, (UNACCOUNTED, time.unaccounted_s), ("wall clock", time.wall_s)):
        yield worker, activity, f"{spent:.1f}", _share(spent, time.wall_s)
        worker = ""


def _outcomes(ledger: Ledger) -> Iterator[str]:
    accounts = {"tokens": ledger.tokens, "trajectories": ledger.trajectories, "groups": ledger.groups}
    rows = [["outcome", *(cell for name in accounts for cell in (name, "share"))]]
    for outcome in ledger.tokens.outcomes:
        rows.append(_numbers(outcome, [(each.outcomes[outcome], each) for each in accounts.values()]))
    rows.append(_numbers(UNACCOUNTED, [(each.unaccounted, each) for each in accounts.values()]))
    rows.append(_numbers("all", [(each.total, each) for each in accounts.values()]))
    yield from table(rows)
    if ledger.uncounted:
        yield f"{ledger.uncounted} tokens belong to a process that was killed or still runs; counted from its records"


def _numbers(name: str, counts: Sequence[tuple[int, OutcomeCounts]]) -> list[str]:
    return [name, *(cell for count, account in counts for cell in (str(count), _share(count, account.total)))]


def _publications(ledger: Ledger) -> Iterator[str]:
    summary = ledger.publications
    yield (
        f"versions: {summary.count} published; {summary.resumed_requests} requests resumed, "
        f"{summary.prefilled_again} tokens prefilled again"
    )
    if summary.seconds:
        rows = [("part", "seconds", "each")]
        rows += [(part, f"{spent:.2f}", f"{spent / summary.count:.3f}") for part, spent in summary.seconds.items()]
        yield from table(rows)


def _staleness(ledger: Ledger) -> Iterator[str]:
    total = sum(ledger.staleness.values())
    rows = [("staleness in steps", "trained tokens", "share")]
    rows += [(str(steps), str(count), _share(count, total)) for steps, count in ledger.staleness.items()]
    yield from table(rows)


def _profiles(ledger: Ledger) -> Iterator[str]:
    domains = sorted({domain for profile in ledger.profiles.values() for domain in profile.domains})
    rows = [["ended attempts", "count", "mean reward", "mean length", *domains]]
    for outcome, profile in ledger.profiles.items():
        reward = "-" if profile.reward is None else f"{profile.reward:.3f}"
        shares = [f"{100 * profile.domains.get(domain, 0.0):.1f} %" for domain in domains]
        rows.append([outcome, str(profile.count), reward, f"{profile.length:.1f}", *shares])
    yield from table(rows)


def _quarantined(ledger: Ledger) -> Iterator[str]:
    for event in ledger.quarantined:
        what = f"task {event.task!r} of {event.source} is quarantined"
        yield f"{what}: {event.num_failed} groups of it in a row failed, the last with: {event.reason}"


def _problems(ledger: Ledger, directory: Path) -> Iterator[str]:
    for problem in ledger.problems:
        yield format_notice(problem.noticed, directory)
        if problem.ended is not None:
            yield format_notice(problem.ended, directory)


def _share(part: float, whole: float) -> str:
    return f"{100 * part / whole:.1f} %" if whole else "-"
