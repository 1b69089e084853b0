"""Comparison of answers by math-verify, in processes that can be killed at any moment.

A server process loads math-verify once and forks comparers, which inherit everything loaded. Callers never wait for one
another: without an idle comparer, a new one is forked. A killed comparer loses the parser tables it has built. So while
a comparison takes long, recent answers are sent to the server as warm-up cases, and the next fork has their tables. All
processes are started when first needed and end with their owner.

The limit of a comparison is CPU time of its process, so a verdict does not depend on how busy the machine is. A
comparison that gets too little CPU time within `wall_factor` times the limit has no verdict: `RewardFailed`.

| call | waits for | woken by |
|---|---|---|
| `compare` | the server's start, once; then a comparison, at most `wall_factor * timeout_s` | the answer; a death |
| `stop` | the end of the server | its death, after a kill |
"""

from __future__ import annotations

import enum
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from roll.errors import RewardFailed
from roll.sandbox.forkserver import ForkServer, ForkServerDied
from roll.sandbox.forkserver_main import kill_group

_ROOT = Path(__file__).parents[3]
_MAIN = f"import sys; sys.path.insert(0, {str(_ROOT)!r}); from roll.rewards.math.child import main; main()"
_PROGRAM = (sys.executable, "-P", "-c", _MAIN)  # -P: modules of the working directory must not shadow Python's
_START_S = 60.0
_WALL_FACTOR = 15.0
"""Wall time that a comparison may take, as a multiple of its CPU time: a machine this much overloaded is a failure."""
_SLOW_S = 0.2
"""A slower comparison will probably be killed."""
_WARMUP_CASE_S = (0.005, 0.1)
"""A comparison in this range built new parser tables, and is fast enough to be repeated in the server."""
_MAX_WARMUP_CASES = 300
"""Per server process."""
_MAX_IDLE = 4
_MAX_USES = 20_000
"""Comparisons after which a comparer is replaced, which bounds its caches."""


class Verdict(enum.Enum):
    """The result of a comparison."""

    SAME = "same"
    DIFFERENT = "different"
    TIMED_OUT = "timed_out"
    """Not decided within its CPU time."""
    CRASHED = "crashed"
    """The process died, and so did that of a second try."""


class _ProcessDied(Exception):
    """The process at the other end of a socket has ended."""


class _Starved(Exception):
    """The wall time has passed, but not the CPU time."""


@dataclass(slots=True, eq=False)
class _Comparer:
    server: ForkServer
    pid: int
    socket: socket.socket
    uses: int = 0

    def compare(self, gold: str, answer: str, cpu_s: float, wall_s: float, on_slow: Callable[[], None]) -> bool:
        """Whether the answers are equal. Calls `on_slow` once if it takes long."""
        self.uses += 1
        try:
            self.socket.settimeout(wall_s)
            self.socket.sendall(f"{json.dumps([gold, answer, cpu_s, wall_s])}\n".encode())
            reply = self._receive(min(_SLOW_S, wall_s))
            if reply is None:
                on_slow()
                reply = self._receive(wall_s)
        except OSError:
            raise _ProcessDied from None
        if reply is None:
            raise _Starved
        if reply == b"":
            raise _ProcessDied
        return reply == b"1"

    def _receive(self, limit_s: float) -> bytes | None:
        self.socket.settimeout(limit_s)
        try:
            return self.socket.recv(1)
        except TimeoutError:
            return None


class MathVerifyPool:
    """Comparers of one owner, for use from any thread. In a forked process the pool begins empty."""

    def __init__(self, program: Sequence[str] = _PROGRAM, *, wall_factor: float = _WALL_FACTOR) -> None:
        self.program, self.wall_factor = program, wall_factor
        self._reset()
        after_fork = weakref.WeakMethod(self._abandon)
        os.register_at_fork(after_in_child=lambda: (method := after_fork()) and method())

    def compare(self, gold: str, answer: str, *, timeout_s: float) -> Verdict:
        """Compare two answers within `timeout_s` of CPU time.

        If a comparer dies, the answer need not be the cause, so there is a second try. Raises `RewardFailed` if
        math-verify cannot be loaded, if the machine was too busy, or if something else kills the process twice.
        """
        status, wall_s = 0, self.wall_factor * timeout_s
        for _ in range(2):
            comparer = self._take()
            start = time.monotonic()
            try:
                same = comparer.compare(gold, answer, timeout_s, wall_s, self._send_warmup_cases)
            except _ProcessDied:
                status = self._end(comparer)
                if status == -signal.SIGPROF:
                    return Verdict.TIMED_OUT
                continue
            except _Starved:
                self._end(comparer)
                raise RewardFailed(
                    f"reward 'math': a comparison got less than {timeout_s:g} s of CPU time in {wall_s:g} s; "
                    "score the response again, or run less on this machine"
                ) from None
            self._put_back(comparer)
            if _WARMUP_CASE_S[0] <= time.monotonic() - start <= _WARMUP_CASE_S[1]:
                self._warmup_cases.append((gold, answer))
            return Verdict.SAME if same else Verdict.DIFFERENT
        if status in (0, -signal.SIGKILL):
            raise RewardFailed("reward 'math': its process was killed twice; see what kills it, such as low memory")
        return Verdict.CRASHED

    def warm(self) -> None:
        """Start the server, without waiting for it, unless there is one."""
        with self._lock:
            if self._server is None:
                self._start_server()

    def stop(self) -> None:
        """End all processes; the next comparison starts new ones."""
        with self._lock:
            server, idle, self._server, self._idle = self._server, self._idle, None, []
        for comparer in idle:
            comparer.socket.close()
        if server is not None:
            server.stop()

    def _take(self) -> _Comparer:
        with self._lock:
            comparer = self._idle.pop() if self._idle else self._fork()
            self._busy.add(comparer)
            return comparer

    def _start_server(self) -> ForkServer:
        self._server, self._num_warmups = ForkServer(self.program, stderr=subprocess.DEVNULL), 0
        return self._server

    def _fork(self) -> _Comparer:
        for _ in range(2):
            server = self._server or self._start_server()
            if fault := server.await_ready(_START_S):
                self._drop(server)
                raise RewardFailed(
                    f"reward 'math': its process cannot compare ({fault}); "
                    "run `pip install math-verify`, or see what keeps it from starting"
                )
            ours, theirs = socket.socketpair()
            with theirs:
                try:
                    return _Comparer(server, server.fork(None, [theirs.fileno()]), ours)
                except ForkServerDied:
                    ours.close()
                    self._drop(server)
        raise RewardFailed("reward 'math': its process ended twice while it was starting; see what kills it")

    def _send_warmup_cases(self) -> None:
        """Send the server the cases since the last time, unless the pool's lock is held."""
        if not self._lock.acquire(blocking=False):  # the caller has a time limit
            return
        try:
            while self._warmup_cases and self._server is not None and self._num_warmups < _MAX_WARMUP_CASES:
                self._server.notify(self._warmup_cases.pop())
                self._num_warmups += 1
        finally:
            self._lock.release()

    def _put_back(self, comparer: _Comparer) -> None:
        with self._lock:
            self._busy.discard(comparer)
            if comparer.uses < _MAX_USES and len(self._idle) < _MAX_IDLE:
                self._idle.append(comparer)
                return
        self._end(comparer)

    def _end(self, comparer: _Comparer) -> int:
        """End a comparer; its exit status as in `subprocess`, 0 if the server has died."""
        comparer.socket.close()
        kill_group(comparer.pid)
        with self._lock:
            self._busy.discard(comparer)
            try:
                return comparer.server.reap(comparer.pid).code
            except ForkServerDied:
                self._drop(comparer.server)
                return 0

    def _drop(self, server: ForkServer) -> None:
        server.stop()
        if server is self._server:
            self._server = None

    def _abandon(self) -> None:
        """After a fork, in the child: close the parent's sockets; no thread here holds the lock."""
        for comparer in (*self._idle, *self._busy):
            comparer.socket.close()
        if self._server is not None:
            self._server.close()
        self._reset()

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._server: ForkServer | None = None
        self._num_warmups = 0
        """Warm-up cases sent to this server."""
        self._idle: list[_Comparer] = []
        self._busy: set[_Comparer] = set()
        self._warmup_cases: deque[tuple[str, str]] = deque(maxlen=_MAX_WARMUP_CASES)
