"""A training process in which faults are injected, and its checks afterwards.

Only processes of the run are signalled: they carry an environment variable that is set here, or, on an existing Ray
cluster, are named by the logs of the run and by their titles.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import random
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, NamedTuple

import typer

from roll.cluster.process_tree import (
    command_of,
    end_processes,
    find_by_environment,
    send_signal,
    shared_memory,
    track,
)
from roll.commands.chaos.outcome import ChaosPlan, ChaosReport, InjectedFault
from roll.commands.chaos.workers import CONTROLLER, RECOVERIES, Target, check_kinds, logged_workers, name_of, recovers
from roll.config.load import load
from roll.errors import RollError
from roll.journal.events import Event, RunStarted, WeightsPublished
from roll.journal.store import Reader
from roll.pipelines.interrupt import INTERRUPTED
from roll.report.verify import verify
from roll.tracking.directory import JOURNAL

SIGNALS = {"KILL": signal.SIGKILL, "STOP": signal.SIGSTOP}
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
    command = [sys.executable, "-m", "roll", "train", str(path), *overrides, *(["--overwrite"] if overwrite else [])]
    return _ChaosRun(command, folder / run.directory / run.name, plan, output, folder).run()


class _NextFault(NamedTuple):
    """The next fault of the plan."""

    wait_s: float
    kind: str
    signal: str


@dataclass(slots=True)
class _ChaosRun:
    """One training process and the faults in it."""

    command: list[str]
    directory: Path
    plan: ChaosPlan
    output: IO[str] | None
    folder: Path
    _variable: str = field(default_factory=lambda: f"ROLL_CHAOS={uuid.uuid4().hex}")
    _faults: list[InjectedFault] = field(default_factory=list[InjectedFault])
    _mapped: set[Path] = field(default_factory=set[Path])
    """Shared memory that processes of the run have used."""
    _began: float = field(default_factory=time.time)
    _memory_due: float = 0.0
    _timed_out: bool = False
    _interrupted: bool = False

    def run(self) -> ChaosReport:
        controller = self._start(self.command)
        try:
            controller = self._watch(controller)
        except KeyboardInterrupt:
            self._interrupt(controller)
        finally:
            _end(controller)
        seconds = time.time() - self._began
        orphans = self._end_orphans()
        self._match_recoveries()
        verification = None
        if self._recorded(RunStarted):
            verification = verify(self.directory)
        return ChaosReport(
            exit_code=0 if self._interrupted and controller.returncode == INTERRUPTED else controller.returncode,
            timed_out=self._timed_out,
            seconds=seconds,
            faults=tuple(self._faults),
            verification=verification,
            orphans=tuple(orphans),
            leaked=tuple(str(path) for path in sorted(self._mapped) if path.exists()),
        )

    def _start(self, command: Sequence[str]) -> subprocess.Popen[str]:
        name, _, value = self._variable.partition("=")
        return subprocess.Popen(
            command,
            env={**os.environ, name: value},
            cwd=self.folder,
            stdout=self.output,
            stderr=self.output,
            text=True,
            start_new_session=True,
        )

    def _watch(self, controller: subprocess.Popen[str]) -> subprocess.Popen[str]:
        """Inject faults until the run ends; the last controller."""
        faults, due, fault = self._schedule(), math.inf, None
        while True:
            if controller.poll() is not None:
                if not self._killed(controller):
                    return controller
                controller = self._start([*(word for word in self.command if word != "--overwrite"), "--resume"])
            now = time.time()
            if now - self._began > self.plan.limit_s:
                self._timed_out = True
                return controller
            self._observe(controller, now)
            if fault is None and self._ready():
                fault = next(faults, None)
                if fault is None and not self._interrupted:
                    self._interrupt(controller)
                due = now + (fault.wait_s if fault else math.inf)
            if fault is not None and now >= due and self._inject(controller, fault):
                fault = None
            time.sleep(_TICK_S)

    def _schedule(self) -> Iterator[_NextFault]:
        plan, generator = self.plan, random.Random(self.plan.seed)
        cycle = list(itertools.product(plan.kinds, plan.signals))
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

    def _interrupt(self, controller: subprocess.Popen[str]) -> None:
        """Let the run finish its step and leave."""
        self._interrupted = True
        controller.send_signal(signal.SIGINT)

    def _inject(self, controller: subprocess.Popen[str], next_fault: _NextFault) -> bool:
        """Signal a worker of the kind; False if none runs at the moment."""
        kind, name = next_fault.kind, next_fault.signal
        targets = [target for target in self._targets(controller) if target.kind == kind]
        if not targets:
            return False
        target = random.Random(f"{self.plan.seed} {len(self._faults)}").choice(targets)
        if not send_signal(target.process, SIGNALS[name]):
            return False
        now = time.time()
        fault = InjectedFault(
            kind=kind,
            worker=target.worker,
            pid=target.process.pid,
            signal=name,
            at_s=now - self._began,
            time=now,
        )
        self._faults.append(fault)
        typer.echo(f"chaos: {fault.at_s:.1f} s: SIG{name} to {kind} ({target.worker}, pid {fault.pid})", err=True)
        return True

    def _targets(self, controller: subprocess.Popen[str]) -> list[Target]:
        """Running workers of the run by name, without those that are stopped already."""
        stopped = {fault.pid for fault in self._faults if fault.signal == "STOP"}
        targets: list[Target] = []
        if process := track(controller.pid):
            targets.append(Target(CONTROLLER, CONTROLLER, process))
        members = {process.pid: process for process in find_by_environment(self._variable)}
        members |= {process.pid: process for process in logged_workers(self.directory)}
        for pid, process in sorted(members.items()):
            if pid not in stopped and (name := name_of(pid)) is not None:
                targets.append(Target(*name, process))
        return targets

    def _observe(self, controller: subprocess.Popen[str], now: float) -> None:
        """Note new processes of workers that a fault has hit, and the shared memory that the run uses."""
        if any(fault.restarted_s is None for fault in self._faults):
            pids = {target.worker: target.process.pid for target in self._targets(controller)}
            for fault in self._faults:
                if fault.restarted_s is None and pids.get(fault.worker, fault.pid) != fault.pid:
                    fault.restarted_s = now - fault.time
        if now >= self._memory_due:
            for process in find_by_environment(self._variable):
                self._mapped |= shared_memory(process.pid)
            self._memory_due = now + _MEMORY_S

    def _killed(self, controller: subprocess.Popen[str]) -> bool:
        """Whether a fault has ended this controller."""
        return any(fault.pid == controller.pid for fault in self._faults)

    def _recorded(self, kind: type[Event]) -> bool:
        """Whether the journal has such an event of this run; an earlier run may have left its journal."""
        with contextlib.suppress(RollError), closing(Reader(self.directory / JOURNAL)) as reader:
            return any(entry.time >= self._began for entry in reader.events(kind))
        return False

    def _match_recoveries(self) -> None:
        """Add to each fault the next record of a replacement of the same kind and rank."""
        with contextlib.suppress(RollError), closing(Reader(self.directory / JOURNAL)) as reader:
            entries = sorted(
                (entry for kind in RECOVERIES for entry in reader.events(kind)), key=lambda entry: entry.id
            )
            for fault in self._faults:
                for entry in entries:
                    if entry.time >= fault.time and recovers(entry.event, fault):
                        fault.recovered_s = entry.time - fault.time
                        fault.cause = str(getattr(entry.event, "reason", "the run was resumed"))
                        entries.remove(entry)
                        break

    def _end_orphans(self) -> list[str]:
        """Processes of the run that do not end after it, which are then killed."""
        deadline = time.monotonic() + _GRACE_S
        while (left := find_by_environment(self._variable)) and time.monotonic() < deadline:
            time.sleep(_TICK_S)
        left += [process for process in logged_workers(self.directory) if process not in left]
        lines = [f"pid {process.pid}: {command_of(process.pid)[:200]}".replace("\0", " ") for process in left]
        end_processes(left, grace_s=0.0)
        return lines


def _end(controller: subprocess.Popen[str]) -> None:
    """End a run that still runs: by SIGTERM, and by SIGKILL if that takes too long."""
    if controller.poll() is None:
        controller.terminate()
        try:
            controller.wait(_END_S)
        except subprocess.TimeoutExpired:
            controller.kill()
            controller.wait()
