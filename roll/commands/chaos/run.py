"""A supervised run in which faults are injected, and its checks afterwards.

Only processes of the run are hit: they carry an environment variable that is set here, or, on an existing Ray
cluster, are named by the logs of the run and by their titles.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, NamedTuple

import typer

from roll.cluster.process_tree import command_of, end_processes, find_by_environment, shared_memory
from roll.commands.chaos.faults import EXCEPTION, SLOW, STOP, inject
from roll.commands.chaos.outcome import ChaosPlan, ChaosReport, InjectedFault
from roll.commands.chaos.workers import (
    AGENT,
    IMPOSSIBLE,
    RECOVERIES,
    TRANSFER,
    Target,
    check_kinds,
    find_targets,
    logged_workers,
    recovers,
    transfer_targets,
)
from roll.config.load import load
from roll.errors import RollError
from roll.journal.events import AttemptRetried, ControllerRestarted, Event, RolledBack, RunStarted, WeightsPublished
from roll.journal.store import Reader
from roll.pipelines.interrupt import INTERRUPTED
from roll.planted import VARIABLE
from roll.report.verify import verify
from roll.tracking.directory import JOURNAL

_TICK_S, _MEMORY_S = 0.2, 1.0
_GRACE_S = 15.0
"""Seconds for the processes of a run to end after it."""
_END_S = 60.0
"""Seconds for a run beyond its time limit to end by a signal."""


def run_chaos(
    path: Path,
    overrides: Sequence[str],
    plan: ChaosPlan,
    *,
    overwrite: bool = False,
    output: IO[str] | None = None,
    folder: Path | None = None,
) -> ChaosReport:
    """Train the file under chaos. `output` receives the output of the training, `folder` is its current directory."""
    folder = folder or Path.cwd()
    run = load(folder / path, overrides).run
    check_kinds(run, plan)
    supervise = ["--supervise", "--hang-timeout", str(plan.hang_timeout_s), *(["--overwrite"] if overwrite else [])]
    command = [sys.executable, "-m", "roll", "train", str(path), *overrides, *supervise]
    return _ChaosRun(command, folder / run.directory / run.name, plan, output, folder).run()


class _NextFault(NamedTuple):
    """The next fault of the plan."""

    wait_s: float
    kind: str
    fault: str


@dataclass(slots=True)
class _ChaosRun:
    """One supervised run and the faults in it."""

    command: list[str]
    directory: Path
    plan: ChaosPlan
    output: IO[str] | None
    folder: Path
    _planted: Path = field(default_factory=lambda: Path(tempfile.mkdtemp(prefix="roll-chaos-")))
    """The folder in which processes of the run look for planted faults; its name is that of this run."""
    _faults: list[InjectedFault] = field(default_factory=list[InjectedFault])
    _mapped: set[Path] = field(default_factory=set[Path])
    """Shared memory that processes of the run have used."""
    _began: float = field(default_factory=time.time)
    _memory_due: float = 0.0
    _matched: int = 0
    """Journal entries up to this id have been compared with the faults."""
    _journal_since: float = 0.0
    """Start of the run in that journal."""
    _timed_out: bool = False
    _interrupted: bool = False

    def run(self) -> ChaosReport:
        supervisor = subprocess.Popen(
            self.command,
            env={**os.environ, VARIABLE: str(self._planted)},
            cwd=self.folder,
            stdout=self.output,
            stderr=self.output,
            text=True,
            start_new_session=True,
        )
        try:
            self._watch(supervisor)
        except KeyboardInterrupt:
            self._interrupt(supervisor)
        finally:
            _end(supervisor)
        seconds = time.time() - self._began
        orphans = self._end_orphans()
        shutil.rmtree(self._planted, ignore_errors=True)
        self._match_recoveries()
        self._count_repeated_steps()
        verification = None
        if self._recorded(RunStarted):
            verification = verify(self.directory)
        return ChaosReport(
            exit_code=0 if self._interrupted and supervisor.returncode == INTERRUPTED else supervisor.returncode,
            timed_out=self._timed_out,
            seconds=seconds,
            faults=tuple(self._faults),
            verification=verification,
            orphans=tuple(orphans),
            leaked=tuple(str(path) for path in sorted(self._mapped) if path.exists()),
        )

    @property
    def _variable(self) -> str:
        return f"{VARIABLE}={self._planted}"

    def _watch(self, supervisor: subprocess.Popen[str]) -> None:
        """Inject faults until the run ends."""
        faults, due, fault = self._schedule(), math.inf, None
        while supervisor.poll() is None:
            now = time.time()
            if now - self._began > self.plan.limit_s:
                self._timed_out = True
                return
            self._observe(supervisor.pid, now)
            if fault is None and self._ready():
                fault = next(faults, None)
                if fault is None and not self._interrupted:
                    self._interrupt(supervisor)
                due = now + (fault.wait_s if fault else math.inf)
            if fault is not None and now >= due and self._inject(supervisor.pid, fault):
                fault = None
            time.sleep(_TICK_S)

    def _schedule(self) -> Iterator[_NextFault]:
        plan, generator = self.plan, random.Random(self.plan.seed)
        cycle = [each for each in itertools.product(plan.kinds, plan.faults) if each not in IMPOSSIBLE]
        for number in itertools.count() if plan.num_faults is None else range(plan.num_faults):
            kind, name = cycle[number % len(cycle)] if plan.in_turn else generator.choice(cycle)
            yield _NextFault(plan.every_s * generator.uniform(0.5, 1.5), kind, name)

    def _ready(self) -> bool:
        """Whether the wait for the next fault begins, or, without a next one, the run may end."""
        if not self._faults:
            return self._recorded(WeightsPublished)  # before it, a dead worker ends the run
        if not self.plan.in_turn and self.plan.num_faults != len(self._faults):
            return True
        self._match_recoveries()
        return all(fault.recovered_s is not None for fault in self._faults)

    def _interrupt(self, supervisor: subprocess.Popen[str]) -> None:
        """Let the run finish its step and leave."""
        self._interrupted = True
        supervisor.send_signal(signal.SIGINT)

    def _inject(self, supervisor: int, next_fault: _NextFault) -> bool:
        """Hit a worker of the kind; False if none runs at the moment."""
        kind, name = next_fault.kind, next_fault.fault
        targets = self._targets(supervisor)
        if kind == TRANSFER:  # sender and receivers take turns
            num_before = sum((fault.kind, fault.fault) == (kind, name) for fault in self._faults)
            targets = transfer_targets(targets, sends=num_before % 2 == 0)
        targets = [target for target in targets if target.kind == kind]
        if not targets:
            return False
        number = len(self._faults) + 1
        target = random.Random(f"{self.plan.seed} {number}").choice(targets)
        text, slow_s = f"fault {number} of roll chaos", self.plan.slow_s
        if (now := inject(target, name, name=text, folder=self._planted, slow_s=slow_s)) is None:
            return False
        fault = InjectedFault(
            kind=kind,
            worker=target.worker,
            pid=target.process.pid,
            fault=name,
            at_s=now - self._began,
            time=now,
            text=text if name == EXCEPTION and kind != AGENT else "",
            slow_s=slow_s if name == SLOW else 0.0,
        )
        self._faults.append(fault)
        typer.echo(f"chaos: {fault.at_s:.1f} s: {name} of {kind} ({target.worker}, pid {fault.pid})", err=True)
        return True

    def _targets(self, supervisor: int) -> list[Target]:
        """Running processes of the run that may be hit, without those that are stopped already."""
        stopped = {fault.pid for fault in self._faults if fault.fault == STOP}
        members = {process.pid: process for process in find_by_environment(self._variable)}
        members |= {process.pid: process for process in logged_workers(self.directory)}
        targets = find_targets(supervisor, [process for _, process in sorted(members.items())])
        return [target for target in targets if target.process.pid not in stopped]

    def _observe(self, supervisor: int, now: float) -> None:
        """Note new processes of workers that a fault has hit, and the shared memory that the run uses."""
        if any(fault.restarted_s is None and fault.recovered_s is None for fault in self._faults):
            pids = {target.worker: target.process.pid for target in self._targets(supervisor)}
            for fault in self._faults:
                if (
                    fault.restarted_s is None
                    and fault.recovered_s is None
                    and pids.get(fault.worker, fault.pid) != fault.pid
                ):
                    fault.restarted_s = now - fault.time
        if now >= self._memory_due:
            for process in find_by_environment(self._variable):
                self._mapped |= shared_memory(process.pid)
            self._memory_due = now + _MEMORY_S

    def _recorded(self, kind: type[Event]) -> bool:
        """Whether the journal has such an event of this run; an earlier run may have left its journal."""
        with contextlib.suppress(RollError), closing(Reader(self.directory / JOURNAL)) as reader:
            return any(entry.time >= self._began for entry in reader.events(kind))
        return False

    def _match_recoveries(self) -> None:
        """Add to each fault the next record of a recovery that fits it."""
        open_faults = [fault for fault in self._faults if fault.recovered_s is None]
        if not open_faults:
            return
        with contextlib.suppress(RollError), closing(Reader(self.directory / JOURNAL)) as reader:
            started = next((entry.time for entry in reader.events(RunStarted)), 0.0)
            if started != self._journal_since:  # a run that dies before its first checkpoint starts a new journal
                self._journal_since, self._matched = started, 0
            entries = sorted(
                (entry for kind in RECOVERIES for entry in reader.events(kind, after=self._matched)),
                key=lambda entry: entry.id,
            )
            for entry in entries:
                for fault in open_faults:
                    after_s = entry.time - fault.time
                    if fault.recovered_s is None and after_s >= 0 and recovers(entry.event, fault, after_s=after_s):
                        _note_recovery(fault, entry.event, after_s)
                        if not isinstance(entry.event, ControllerRestarted | WeightsPublished):
                            break  # it records the end of one worker or attempt
                self._matched = entry.id

    def _count_repeated_steps(self) -> None:
        """Add the steps that were rolled back after restarts of the controller."""
        with contextlib.suppress(RollError), closing(Reader(self.directory / JOURNAL)) as reader:
            published, rolled_back = list(reader.events(WeightsPublished)), list(reader.events(RolledBack))
            for fault in self._faults:
                if fault.recovery == ControllerRestarted.__name__:
                    steps = [entry.event.step for entry in published if entry.time < fault.time]
                    targets = [entry.event.to_step for entry in rolled_back if entry.time > fault.time]
                    fault.repeated = max(0, steps[-1] - targets[0]) if steps and targets else 0

    def _end_orphans(self) -> list[str]:
        """Processes of the run that do not end after it, which are then killed."""
        deadline = time.monotonic() + _GRACE_S
        while (left := find_by_environment(self._variable)) and time.monotonic() < deadline:
            time.sleep(_TICK_S)
        left += [process for process in logged_workers(self.directory) if process not in left]
        lines = [f"pid {process.pid}: {command_of(process.pid)[:200]}".replace("\0", " ") for process in left]
        end_processes(left, grace_s=0.0)
        return lines


def _note_recovery(fault: InjectedFault, event: Event, after_s: float) -> None:
    fault.recovered_s, fault.recovery = after_s, type(event).__name__
    fault.repeated = getattr(event, "num_updates", 0)
    if isinstance(event, AttemptRetried | WeightsPublished):
        fault.restarted_s = None  # that process was not replaced
    fault.cause = str(getattr(event, "cause", "") or getattr(event, "reason", "") or f"slow for {fault.slow_s:g} s")


def _end(supervisor: subprocess.Popen[str]) -> None:
    """End a run that still runs: by SIGTERM, and by SIGKILL if that takes too long."""
    if supervisor.poll() is None:
        supervisor.terminate()
        try:
            supervisor.wait(_END_S)
        except subprocess.TimeoutExpired:
            supervisor.kill()
            supervisor.wait()
