"""Comparison of answers by math-verify, in processes that can be killed at any moment.

A server process loads math-verify once and forks comparers, which inherit everything loaded. Callers never wait for one
another: without an idle comparer, a new one is forked. A killed comparer loses the parser tables it has built. So while
a comparison takes long, recent answers are sent to the server as warm-up cases, and the next fork has their tables. All
processes are started when first needed and end with their owner.

| call | waits for | woken by |
|---|---|---|
| `compare` | the server's start, once; then one comparison, at most `timeout_s` | the answer; the limit; a death |
| `stop` | the end of the server | its death, after a kill |
"""

from __future__ import annotations

import enum
import json
import os
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
from roll.sandbox.forkserver import ForkServer, ForkServerDied, kill_group

_ROOT = Path(__file__).parents[3]
_MAIN = f"import sys; sys.path.insert(0, {str(_ROOT)!r}); from roll.rewards.math.child import main; main()"
_PROGRAM = (sys.executable, "-P", "-c", _MAIN)  # -P: modules of the working directory must not shadow Python's
_START_S = 60.0
_MIN_COMPARE_S = 0.3
"""Time for a comparison if the start has used up the limit."""
_SLOW_S = 0.2
"""A slower comparison will probably be killed."""
_WARMUP_CASE_S = (0.005, 0.1)
"""A comparison in this range built new parser tables, and is fast enough to be repeated in the server."""
_MAX_WARMUP_CASES = 300
"""Per server process."""
_MAX_IDLE = 4
_MIN_WAIT_S = 0.001
_MAX_USES = 20_000
"""Comparisons after which a comparer is replaced, which bounds its caches."""


class Verdict(enum.Enum):
    """The result of a comparison."""

    SAME = "same"
    DIFFERENT = "different"
    TIMED_OUT = "timed_out"
    CRASHED = "crashed"
    """The process died, and so did that of a second try."""


class _ProcessDied(Exception):
    """The process at the other end of a socket has ended."""


@dataclass(slots=True, eq=False)
class _Comparer:
    server: ForkServer
    pid: int
    socket: socket.socket
    uses: int = 0

    def compare(self, gold: str, answer: str, limit_s: float, on_slow: Callable[[], None]) -> bool | None:
        """Whether the answers are equal; None at the time limit. Calls `on_slow` once if it takes long."""
        self.uses += 1
        start = time.monotonic()
        try:
            self.socket.settimeout(limit_s)
            self.socket.sendall(f"{json.dumps([gold, answer, limit_s])}\n".encode())
            reply = self._receive(min(_SLOW_S, limit_s))
            if reply is None and limit_s > _SLOW_S:
                on_slow()
                reply = self._receive(max(start + limit_s - time.monotonic(), _MIN_WAIT_S))
        except OSError:
            raise _ProcessDied from None
        if reply == b"":
            raise _ProcessDied
        return None if reply is None else reply == b"1"

    def _receive(self, limit_s: float) -> bytes | None:
        self.socket.settimeout(limit_s)
        try:
            return self.socket.recv(1)
        except TimeoutError:
            return None


class MathVerifyPool:
    """Comparers of one owner, for use from any thread. In a forked process the pool begins empty."""

    def __init__(self, program: Sequence[str] = _PROGRAM) -> None:
        self.program = program
        self._reset()
        after_fork = weakref.WeakMethod(self._abandon)
        os.register_at_fork(after_in_child=lambda: (method := after_fork()) and method())

    def compare(self, gold: str, answer: str, *, timeout_s: float) -> Verdict:
        """Compare two answers within `timeout_s`, including the start of a process.

        If a comparer dies, the answer need not be the cause, so there is a second try. Raises `RewardFailed` if
        math-verify cannot be loaded, or if the start left too little time for the comparison.
        """
        start = time.monotonic()
        for _ in range(2):
            comparer = self._take()
            compare_start = time.monotonic()
            limit_s = max(timeout_s - (compare_start - start), _MIN_COMPARE_S)
            try:
                same = comparer.compare(gold, answer, limit_s, self._send_warmup_cases)
            except _ProcessDied:
                self._end(comparer)
                continue
            if same is None:
                self._end(comparer)
                return self._timeout(limit_s, timeout_s)
            self._put_back(comparer)
            if _WARMUP_CASE_S[0] <= time.monotonic() - compare_start <= _WARMUP_CASE_S[1]:
                self._warmup_cases.append((gold, answer))
            return Verdict.SAME if same else Verdict.DIFFERENT
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

    def _timeout(self, limit_s: float, timeout_s: float) -> Verdict:
        if limit_s < timeout_s / 2:
            raise RewardFailed(
                f"reward 'math': starting its process left {limit_s:.1f} s of {timeout_s:g} s, which was too little; "
                "score the response again, or give it more time"
            )
        return Verdict.TIMED_OUT

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

    def _end(self, comparer: _Comparer) -> None:
        comparer.socket.close()
        kill_group(comparer.pid)
        with self._lock:
            self._busy.discard(comparer)
            try:
                comparer.server.reap(comparer.pid)
            except ForkServerDied:
                self._drop(comparer.server)

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
