"""The plan and the outcome of a run under chaos."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from roll.report.report import table
from roll.report.verify import Verification, describe_violations


@dataclass(frozen=True, slots=True, kw_only=True)
class ChaosPlan:
    """Which faults are injected, and when."""

    kinds: tuple[str, ...]
    every_s: float
    """Mean time between two faults; each wait is 0.5 to 1.5 times of it."""
    faults: tuple[str, ...] = ("KILL",)
    seed: int = 0
    num_faults: int | None = None
    """Faults after whose recovery the run is interrupted; None: faults until the run ends."""
    in_turn: bool = False
    """Whether kinds and faults take turns, each fault after the recovery from the one before; else they are random."""
    limit_s: float = 3600.0
    """Time after which the run is ended."""
    hang_timeout_s: float = 600.0
    """Time without heartbeat after which the supervisor restarts the controller."""
    slow_s: float = 5.0
    """Time for which a slowed process is slow."""


@dataclass(slots=True, kw_only=True)
class InjectedFault:
    """One fault of one process of the run."""

    kind: str
    worker: str
    pid: int
    fault: str
    at_s: float
    """Seconds since the start of the run."""
    time: float
    """Seconds since 1970."""
    text: str = ""
    """Text of an exception, by which the journal names it."""
    slow_s: float = 0.0
    """Seconds for which the process is slow."""
    restarted_s: float | None = None
    """Seconds until another process of that worker was seen."""
    recovered_s: float | None = None
    """Seconds until the journal recorded the recovery; None if it did not."""
    recovery: str = ""
    """Name of the event that records it."""
    cause: str = ""
    """Cause in that record."""
    repeated: int = 0
    """Updates that a new trainer repeated, or steps that a new controller trained again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChaosReport:
    """Outcome of a run under chaos."""

    exit_code: int
    timed_out: bool
    """Whether the run was ended at its time limit."""
    seconds: float
    faults: tuple[InjectedFault, ...]
    verification: Verification | None
    """None if the run left nothing to verify."""
    orphans: tuple[str, ...]
    """Command lines of processes that outlived the run."""
    leaked: tuple[str, ...]
    """Files of shared memory that outlived the run."""

    @property
    def violations(self) -> int:
        """Violated invariants, a failed run, orphans and leaks."""
        broken = 1 if self.verification is None else self.verification.violations
        failed = self.exit_code != 0 or self.timed_out
        return broken + failed + len(self.orphans) + len(self.leaked)


def format_chaos(report: ChaosReport) -> str:
    """A summary: the faults with their recoveries, then the counts."""
    lines: list[str] = []
    if report.faults:
        rows: list[tuple[str, ...]] = [("fault", "at", "new process", "recovered", "by")]
        for fault in report.faults:
            seconds = map(_seconds, (fault.at_s, fault.restarted_s, fault.recovered_s))
            rows.append((f"{fault.fault} {fault.kind} ({fault.worker})", *seconds, fault.recovery or "-"))
        lines += table(rows)
        lines += [f"{fault.worker}: {fault.cause.partition(';')[0]}" for fault in report.faults if fault.cause]
    counts = Counter(fault.kind for fault in report.faults)
    kinds = ", ".join(f"{kind} {number}" for kind, number in sorted(counts.items()))
    lines.append(f"faults: {len(report.faults)}{f' ({kinds})' if kinds else ''}")
    ended = "was ended at its time limit" if report.timed_out else f"ended with code {report.exit_code}"
    steps = "nothing to verify"
    if report.verification is not None:
        steps = f"{report.verification.steps} steps, {report.verification.violations} violations"
        lines += describe_violations(report.verification)
    lines.append(f"the run {ended} after {report.seconds:.0f} s: {steps}")
    lines.append(f"orphan processes: {len(report.orphans)}; leaked shared memory: {len(report.leaked)}")
    return "\n".join([*lines, *report.orphans, *report.leaked])


def _seconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds:.1f} s"
