"""The account of a run as text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from roll.journal.records import IDLE
from roll.report.ledger import Account, Ledger
from roll.report.time_account import UNACCOUNTED, Hours, Sheet

Rows = Sequence[Sequence[str]]


def report(ledger: Ledger) -> str:
    """Everything the ledger holds, a table for each part."""
    return "\n".join(
        [
            *_hours(ledger.hours),
            "",
            *_accounts(ledger),
            "",
            *_versions(ledger),
            "",
            *_ages(ledger),
            "",
            *_profiles(ledger),
        ]
    )


def table(rows: Rows) -> Iterator[str]:
    """Lines in columns: the first to the left, the others to the right. The first row is the heading."""
    widths = [max(len(row[index]) for row in rows) for index in range(len(rows[0]))]
    for row in rows:
        others = [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        yield "  ".join([row[0].ljust(widths[0]), *others]).rstrip()


def _hours(found: Hours) -> Iterator[str]:
    processes = "1 process" if found.num_processes == 1 else f"{found.num_processes} processes"
    yield f"time: {found.wall_s:.1f} s of wall clock in {processes}; {found.not_running_s:.1f} s not running"
    if found.outside_s:
        yield f"{found.outside_s:.1f} s of work lie outside of that, before the run had started"
    if not found.workers:
        yield "no worker has said what it did"
        return
    rows = [("worker", "doing", "seconds", "share")]
    for sheet in (*found.workers, found.total):
        rows += _sheet(sheet)
    width = max(len(row[0]) for row in rows)
    yield from table([(f"{worker.ljust(width)}  {doing}", *numbers) for worker, doing, *numbers in rows])


def _sheet(sheet: Sheet) -> Iterator[tuple[str, str, str, str]]:
    """What it worked on, then what it waited for, then the rest."""
    doing = sorted(sheet.doing_s, key=lambda name: name.startswith(IDLE))
    seconds = [(name, sheet.doing_s[name]) for name in doing]
    name = sheet.worker
    for what, spent in (*seconds, (UNACCOUNTED, sheet.unaccounted_s), ("wall clock", sheet.wall_s)):
        yield name, what, f"{spent:.1f}", _share(spent, sheet.wall_s)
        name = ""


def _accounts(ledger: Ledger) -> Iterator[str]:
    accounts = {"tokens": ledger.tokens, "trajectories": ledger.trajectories, "groups": ledger.groups}
    heading = ["fate", *(cell for name in accounts for cell in (name, "share"))]
    rows = [heading]
    for fate in ledger.tokens.fates:
        rows.append(_numbers(fate, [(each.fates[fate], each) for each in accounts.values()]))
    rows.append(_numbers(UNACCOUNTED, [(each.unaccounted, each) for each in accounts.values()]))
    rows.append(_numbers("all", [(each.total, each) for each in accounts.values()]))
    yield from table(rows)
    if ledger.uncounted:
        yield f"{ledger.uncounted} tokens are of a process that was killed or still runs, and counted by what is left"


def _numbers(name: str, found: Sequence[tuple[int, Account]]) -> list[str]:
    return [name, *(cell for count, account in found for cell in (str(count), _share(count, account.total)))]


def _versions(ledger: Ledger) -> Iterator[str]:
    found = ledger.versions
    yield (
        f"versions: {found.count} published; {found.resumed_requests} requests resumed, "
        f"{found.prefilled_again} tokens prefilled again"
    )
    if found.seconds:
        rows = [("part", "seconds", "each")]
        rows += [(part, f"{spent:.2f}", f"{spent / found.count:.3f}") for part, spent in found.seconds.items()]
        yield from table(rows)


def _ages(ledger: Ledger) -> Iterator[str]:
    total = sum(ledger.ages.values())
    rows = [("age in steps", "trained tokens", "share")]
    rows += [(str(age), str(count), _share(count, total)) for age, count in ledger.ages.items()]
    yield from table(rows)


def _profiles(ledger: Ledger) -> Iterator[str]:
    domains = sorted({domain for profile in ledger.profiles.values() for domain in profile.domains})
    rows = [["ended attempts", "count", "mean reward", "mean length", *domains]]
    for fate, profile in ledger.profiles.items():
        reward = "-" if profile.reward is None else f"{profile.reward:.3f}"
        shares = [f"{100 * profile.domains.get(domain, 0.0):.1f} %" for domain in domains]
        rows.append([fate, str(profile.count), reward, f"{profile.length:.1f}", *shares])
    yield from table(rows)


def _share(part: float, whole: float) -> str:
    return f"{100 * part / whole:.1f} %" if whole else "-"
