"""A database in a process that can be killed, as one step of a statement may take minutes in SQLite's own code.

A statement is stopped by its CPU time: by `Database` between two steps, and by a kill of the process during one. Then
another process repeats the earlier statements. The policy gets the same message in both cases. How busy the machine is
does not matter: a statement that waits for the CPU is waited for, and after `_WALL_S` the attempt fails and is retried.

| call | waits for | woken by |
|---|---|---|
| `run` | the server's start, once; then the answer, at most `_WALL_S` | the answer; a death; the clock |
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import socket
import sys
import threading
import time
from pathlib import Path
from typing import Any

import msgspec

from roll.envs.sql.database import CONTENTS_S, Database, DatabaseImage, too_long
from roll.envs.sql.database_main import receive, send
from roll.errors import EnvFailed
from roll.sandbox.forkserver import ForkServer, ForkServerDied
from roll.sandbox.forkserver_main import kill_group
from roll.sandbox.process_tree import cpu_seconds
from roll.tools.base import ToolFailed, ToolFault

_ROOT = Path(__file__).parents[3]
_MAIN = f"import sys; sys.path.insert(0, {str(_ROOT)!r}); from roll.envs.sql.database_main import main; main()"
_PROGRAM = (sys.executable, "-P", "-c", _MAIN)
_START_S = 60.0
_WALL_S = 60.0
_STEP_S = 0.25
"""CPU time for the current step of a statement that is over its limit."""
_MIN_WAIT_S = 0.01
_MAX_IDLE = 4


class _UsedUp(Exception):
    """A request has used its CPU time."""


class _Worker:
    """A process with one database at a time."""

    def __init__(self, server: ForkServer) -> None:
        self._server = server
        self._socket, theirs = socket.socketpair()
        with theirs:
            self.pid = server.fork(None, [theirs.fileno()])

    def open(self, image: DatabaseImage) -> None:
        """Replace the database."""
        self._send([msgspec.to_builtins(image)])

    def run(self, statement: str, max_rows: int, number: int, limit_s: float) -> list[str]:
        """The result, or a message and its `ToolFault`; `contents` must be read next."""
        used_s = cpu_seconds([self.pid])
        self._send([statement, max_rows, number])
        return self._receive(used_s, limit_s)

    def contents(self) -> str:
        """The tables after the last statement."""
        return self._receive(cpu_seconds([self.pid]), CONTENTS_S)[0]

    def end(self) -> None:
        """Kill the process."""
        self._socket.close()
        kill_group(self.pid)
        with contextlib.suppress(ForkServerDied):
            self._server.reap(self.pid)

    def _send(self, message: list[Any]) -> None:
        self._socket.settimeout(_WALL_S)
        try:
            send(self._socket, message)
        except OSError:
            raise EnvFailed("sql: the process of a database has died; see what killed it") from None

    def _receive(self, used_s: float, limit_s: float) -> list[str]:
        """The next answer; `_UsedUp` once the process has used `limit_s` more than `used_s`."""
        until, wait_s = time.monotonic() + _WALL_S + limit_s, limit_s + _STEP_S
        while not self._is_readable(wait_s):
            wait_s = limit_s + _STEP_S - (cpu_seconds([self.pid]) - used_s)
            if wait_s <= 0:
                raise _UsedUp
            if time.monotonic() > until:
                raise EnvFailed(f"sql: a statement had too little CPU for {_WALL_S:g} s; free the machine")
        self._socket.settimeout(_WALL_S)
        answer = None
        with contextlib.suppress(OSError):
            answer = receive(self._socket)
        if answer is None:
            raise EnvFailed("sql: the process of a database has died; see what killed it")
        return answer

    def _is_readable(self, wait_s: float) -> bool:
        self._socket.settimeout(max(wait_s, _MIN_WAIT_S))
        try:
            self._socket.recv(1, socket.MSG_PEEK)
        except TimeoutError:
            return False
        except OSError:
            pass  # it has died, which the next read reports
        return True


class DatabaseProcess:
    """A `Database` in its own process, which starts with the first statement. One call at a time."""

    def __init__(self, image: DatabaseImage) -> None:
        self._image = image
        self._worker: _Worker | None = None
        """None before the first statement, and during one."""
        self._statements: list[tuple[str, int]] = []
        """Those that succeeded, with their numbers."""
        self._count = 0
        self._contents: str | None = None
        self._closed = False

    async def run(self, statement: str, *, max_rows: int) -> str:
        """As in `Database`."""
        return await asyncio.to_thread(self._run, statement, max_rows)

    def contents(self) -> str:
        """As in `Database`; empty if the tables cannot be read in time."""
        if self._contents is None:
            with contextlib.closing(Database(self._image)) as database:
                self._contents = database.contents()
        return self._contents

    @property
    def pid(self) -> int | None:
        """The id of the process, if there is one and it runs no statement."""
        return None if self._worker is None else self._worker.pid

    def close(self) -> None:
        """Give the process back; a statement that still runs is the last one."""
        self._closed = True
        if self._worker is not None:
            _pool_of(os.getpid()).put_back(self._worker)
            self._worker = None

    def _run(self, statement: str, max_rows: int) -> str:
        self._count += 1
        try:
            answer = self._ask(statement, max_rows, self._count)
        except _UsedUp:
            raise ToolFailed(too_long(self._image.statement_s), ToolFault.TIMED_OUT) from None
        if len(answer) == 2:
            raise ToolFailed(answer[0], ToolFault(answer[1]))
        self._statements.append((statement, self._count))
        return answer[0]

    def _ask(self, statement: str, max_rows: int, number: int) -> list[str]:
        if self._worker is None:
            self._worker = _pool_of(os.getpid()).take()
            self._worker.open(self._image)
            for earlier in self._statements:
                self._ask(earlier[0], 1, earlier[1])
        worker, self._worker = self._worker, None  # unless all goes well, it is not used again
        try:
            answer = worker.run(statement, max_rows, number, self._image.statement_s)
        except BaseException:
            worker.end()
            raise
        try:
            self._contents = worker.contents()
        except _UsedUp:
            self._contents = ""
            worker.end()
            return answer
        except BaseException:
            worker.end()
            raise
        self._worker = worker
        if self._closed:
            self.close()
        return answer


class _Pool:
    """The workers of one owner, for use from any thread. A server that has died is replaced."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._server: ForkServer | None = None
        self._idle: list[_Worker] = []

    def take(self) -> _Worker:
        """A worker for one attempt."""
        with self._lock:
            if self._idle:
                return self._idle.pop()
            fault = ""
            for _ in range(2):
                self._server = self._server or ForkServer(_PROGRAM)
                if not (fault := self._server.await_ready(_START_S)):
                    try:
                        return _Worker(self._server)
                    except ForkServerDied as error:
                        fault = str(error)
                self._server.stop()
                self._server = None
        raise EnvFailed(f"sql: the process of a database cannot be started ({fault}); see its standard error")

    def put_back(self, worker: _Worker) -> None:
        """Keep a worker whose attempt has ended, or end it."""
        with self._lock:
            if len(self._idle) < _MAX_IDLE:
                self._idle.append(worker)
                return
        worker.end()


@functools.cache
def _pool_of(owner: int) -> _Pool:
    """The pool of a process, by its id: a forked process must not use its parent's."""
    return _Pool()
