"""`--supervise`: starts the controller of a run, and starts it again from its run directory when it dies or hangs.

The supervisor loads no model, only modules. Each controller is a fork of it with these modules, so that a restart does
not import them again, and `supervise_fresh` returns once per controller.

| call | waits for | woken by |
|---|---|---|
| `supervise_fresh`, `supervise_existing` | the end of the controller | its death; a missing heartbeat |
| backoff before a restart | its time | SIGINT or SIGTERM, which end the supervisor |
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import mmap
import os
import signal
import sys
import time
import uuid
from collections.abc import Coroutine
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn, TypeVar, cast

import typer

from roll.checkpoint import Checkpoints
from roll.cluster.process_state import describe_exit, is_stopped
from roll.cluster.process_tree import adopt_orphans, end_children, signal_on_parent_death
from roll.cluster.ray.environment import NOTE, end_noted_cluster
from roll.cluster.ray.head import head_processes
from roll.cluster.ray.keeping import KeptWorkers
from roll.config.schema import Run
from roll.errors import ClusterLost, NoCluster, RollError, one_line
from roll.pipelines.interrupt import INTERRUPTED
from roll.tracking.directory import check_free, check_run, lock_file

T = TypeVar("T")
LOCK = ".supervisor"
_CONTROLLER = "roll.commands.train"
"""Module of the controller, which imports this one."""
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_REFUSED = 2
"""Exit code of a refused command: another attempt gives the same result."""
_BEAT_S = 0.5
_POLL_S = 0.1
_START_S = 600.0
"""Fewest seconds without heartbeat that are a hang during the start: loading a model may block the event loop.

They do not apply to a process that a signal has stopped.
"""
_STACKS_S = 5.0
"""Seconds that a hanging process has to write its stacks."""
_LONGEST_BACKOFF_S = 60.0
_PAGE = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Restart:
    """Why a controller was started again."""

    number: int
    """Restarts by this supervisor so far, including this one."""
    cause: str
    begun: bool
    """Whether the run directory has the configuration of this run already, so that it can be resumed."""
    since: float
    """Time of the last heartbeat before it, on the monotonic clock, which all processes of a machine share."""


class Supervised:
    """The controller's side: counts heartbeats and reports its error, in memory shared with the supervisor."""

    def __init__(self, restart: Restart | None, kept: KeptWorkers) -> None:
        self.restart = restart
        """Why this controller was started; None for the first one."""
        self.kept = kept
        """How workers are kept for the next controller."""
        self._page = mmap.mmap(-1, _PAGE)

    @property
    def heartbeats(self) -> int:
        """Number of heartbeats so far, modulo 256."""
        return self._page[0]

    @property
    def started(self) -> bool:
        """Whether models and services have started, and the journal has the restart."""
        return bool(self._page[1])

    @property
    def error(self) -> str:
        """The error that ended the controller; empty if it was killed."""
        return self._page[3:].rstrip(b"\0").decode(errors="replace")

    @property
    def lost_cluster(self) -> bool:
        """Whether it ended since its Ray cluster is gone, or has not come back to a run that was there before."""
        return bool(self._page[2])

    def mark_started(self) -> None:
        """Everything has started, and the journal has the restart."""
        self._page[1] = 1

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of `work`; meanwhile a heartbeat each time the event loop gets to it."""
        beating = asyncio.create_task(self._beat())
        try:
            return await work
        finally:
            beating.cancel()

    async def _beat(self) -> None:
        while True:
            self._page[0] = (self._page[0] + 1) % 256
            await asyncio.sleep(_BEAT_S)

    def __enter__(self) -> Supervised:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        while isinstance(error, BaseExceptionGroup):
            error = cast("BaseExceptionGroup[BaseException]", error).exceptions[0]
        if isinstance(error, Exception):
            text = str(error) if isinstance(error, RollError) else f"{type(error).__name__}: {error}"
            line = one_line(text).encode()[: _PAGE - 3]
            self._page[3 : 3 + len(line)] = line
            missing = self.restart is not None and isinstance(error, NoCluster)
            self._page[2] = missing or isinstance(error, ClusterLost)


def supervise_fresh(run: Run, overwrite: bool, *, restarts: int, hang_timeout_s: float) -> Supervised:
    """Start the controller of a run, and again each time it dies or hangs; returns in every controller.

    In the supervisor it does not return: the process exits with the code of the last controller.
    """
    path = Path(run.directory) / run.name
    check_free(path, overwrite=overwrite)
    return _Supervisor(path, restarts, hang_timeout_s).run()


def supervise_existing(path: Path, *, restarts: int, hang_timeout_s: float) -> Supervised:
    """As `supervise_fresh`, for the run in a directory."""
    check_run(path)
    return _Supervisor(path, restarts, hang_timeout_s).run()


class _Supervisor:
    def __init__(self, path: Path, restarts: int, hang_timeout_s: float) -> None:
        self._path, self._restarts, self._hang_timeout_s = path, restarts, hang_timeout_s
        path.mkdir(parents=True, exist_ok=True)
        self._lock = lock_file(path / LOCK, "already has a supervisor; stop that one first")
        self._pid = 0
        self._interrupted = False
        self._last_beat = 0.0
        self._config = _identity(path / "config.yaml")
        self._pipe = os.pipe()
        """Its second end stays open in this process and its controllers until they end."""
        self._kept = KeptWorkers(namespace=f"roll-{uuid.uuid4().hex}", holders=self._pipe[0])

    def run(self) -> Supervised:
        importlib.import_module(_CONTROLLER)
        adopt_orphans()
        before = [signal.signal(number, self._forward) for number in _SIGNALS]
        restart, num_failed, newest, last_error = None, 0, self._newest(), ""
        while True:
            controller = Supervised(restart, self._kept)
            if not self._fork():
                for number, handler in zip(_SIGNALS, before, strict=True):
                    signal.signal(number, handler)
                signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
                return controller
            code, cause = self._wait(controller)
            if code == 0:
                _exit(code)
            refused = code == _REFUSED and not controller.lost_cluster
            if refused or code == INTERRUPTED or self._interrupted or -code in _SIGNALS:
                self._end_all()
                _exit(code)
            end_children(spared=head_processes(self._path / NOTE))
            if (now := self._newest()) != newest:
                num_failed, newest, last_error = 0, now, ""
            num_failed += 1
            repeated = controller.error and controller.error == last_error and not controller.lost_cluster
            if repeated or num_failed > self._restarts:
                self._give_up(code, cause, "twice in a row" if repeated else f"{num_failed} times")
            last_error = controller.error
            self._echo(f"{cause}; restart {num_failed} of {self._restarts}")
            restart = self._next(restart, controller, cause)
            self._back_off(num_failed)

    def _fork(self) -> int:
        """The pid of a new controller; 0 in the controller itself, in which signals are still blocked."""
        sys.stdout.flush()
        sys.stderr.flush()
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)  # until each process has handlers of its own
        supervisor = os.getpid()
        self._pid = os.fork()
        if self._pid:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
            return self._pid
        self._lock.close()  # the lock itself stays with the supervisor
        os.setpgid(0, 0)  # Ctrl-C reaches the supervisor alone, which forwards it once
        signal_on_parent_death(signal.SIGTERM, supervisor)
        return 0

    def _wait(self, controller: Supervised) -> tuple[int, str]:
        """Exit code of the controller, as in `subprocess`, and the cause in words; kills it if it hangs."""
        polls = beats = stopped = 0
        hung = ""
        self._last_beat = time.monotonic()
        while (code := self._poll()) is None:
            polls += 1  # not seconds: while the machine or this process sleeps, nothing counts
            if controller.heartbeats != beats:
                beats, polls, self._last_beat = controller.heartbeats, 0, time.monotonic()
            stopped = stopped + 1 if is_stopped(self._pid) else 0
            limit_s = self._hang_timeout_s
            if not controller.started and stopped * _POLL_S < limit_s:
                limit_s = max(limit_s, _START_S)
            if polls * _POLL_S >= limit_s and not hung:
                hung = f"the controller (pid {self._pid}) gave no heartbeat for {limit_s:g} s and was killed"
                self._kill_with_stacks()
            time.sleep(_POLL_S)
        described, _ = describe_exit(self._pid, code)
        cause = hung or described.replace("its process", "the controller")
        self._pid = 0
        return code, f"{cause}: {controller.error}" if controller.error else cause

    def _poll(self) -> int | None:
        """The controller's exit code once it has ended. Adopted processes that have ended are removed as well."""
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == self._pid:
                return os.waitstatus_to_exitcode(status)
            if pid == 0:
                return None

    def _kill_with_stacks(self) -> None:
        """SIGABRT: the controller writes the stacks of its threads to its log and dies, also if it was stopped."""
        for number in (signal.SIGABRT, signal.SIGCONT):
            os.kill(self._pid, number)
        deadline = time.monotonic() + _STACKS_S
        while (
            time.monotonic() < deadline and os.waitid(os.P_PID, self._pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
        ):
            time.sleep(_POLL_S)
        os.kill(self._pid, signal.SIGKILL)  # it is not reaped yet, so its pid is still its own

    def _next(self, restart: Restart | None, controller: Supervised, cause: str) -> Restart:
        """The next restart; includes the one before if that died before the journal had it."""
        number, since = 1, self._last_beat
        if restart is not None:
            number += restart.number
            if not controller.started:
                cause, since = f"{restart.cause}; then {cause}", restart.since
        begun = _identity(self._path / "config.yaml") != self._config
        return Restart(number=number, cause=one_line(cause), begun=begun, since=since)

    def _back_off(self, num_failed: int) -> None:
        """Wait 0, 1, 2, 4 ... seconds."""
        end = time.monotonic() + min(_LONGEST_BACKOFF_S, 2.0 ** (num_failed - 2) if num_failed > 1 else 0.0)
        while not self._interrupted and time.monotonic() < end:
            time.sleep(_POLL_S)
        if self._interrupted:
            self._end_all()
            _exit(INTERRUPTED)

    def _give_up(self, code: int, cause: str, times: str) -> NoReturn:
        self._end_all()
        fix = f"see {self._path / 'controller.log'}, then `roll resume {self._path}`"
        self._echo(f"{cause}; it died {times} without a new checkpoint, no restart is left; {fix}")
        _exit(code)

    def _forward(self, number: int, frame: FrameType | None) -> None:
        self._interrupted = True
        if self._pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, number)

    def _end_all(self) -> None:
        """End what the controller has left, including a local Ray cluster."""
        end_children()
        end_noted_cluster(self._path / NOTE)

    def _newest(self) -> int:
        return max(Checkpoints(self._path / "checkpoints", keep=1).steps(), default=-1)

    def _echo(self, line: str) -> None:
        typer.echo(f"{self._path}: {line}", err=True)


def _identity(path: Path) -> tuple[int, int] | None:
    """Differs between two files that were written to this path one after the other; None if there is none."""
    with contextlib.suppress(FileNotFoundError):
        return path.stat().st_ino, path.stat().st_mtime_ns
    return None


def _exit(code: int) -> NoReturn:
    """End the supervisor with the code of its controller; that of a signal is the one that shells use."""
    sys.exit(code if code >= 0 else 128 - code)
