"""Comparing answers in processes that can be killed from outside, whatever they are in the midst of.

Each process that asks has comparers of its own, started when first needed; they end when it does. No caller waits for
another: who finds no idle comparer gets a new one, which is a fork of a process that has loaded everything. What a
comparer has learnt of how answers are written is lost when it is killed. So when one takes long, the first process is
given answers of late to learn from, and the next comparer knows what they teach.

| call | waits for | woken by |
|---|---|---|
| `same` | once in a process the start, then one comparison, at most `timeout_s` | the answer; the limit; its death |
| `stop` | the end of the processes | their death, which it brings about |
"""

from __future__ import annotations

import contextlib
import enum
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from roll.errors import RewardFailed

_CHILD = Path(__file__).with_name("math_child.py")
_OURS = (sys.executable, "-P", str(_CHILD))  # -P: this folder's names must not hide Python's own
_START_S = 60.0
_SHORTEST_S = 0.3
"""What a comparison gets where starting has used up its time."""
_LONG_S = 0.2
"""A comparison that takes longer may well have to be killed."""
_INSTRUCTIVE_S = (0.005, 0.1)
"""A comparison that took so long met something new, and is quick enough to be made again."""
_MOST_LESSONS = 300
"""That are given to one process."""
_MOST_IDLE = 4
_SOON_S = 0.001
_MOST_USES = 20_000
"""Comparisons after which a comparer is replaced, so that what it remembers does not grow."""
_ANSWER_S = 10.0
"""How long the first process may take over a fork or a kill."""


class Verdict(enum.Enum):
    """What came of a comparison."""

    SAME = "same"
    DIFFERENT = "different"
    TIMED_OUT = "timed_out"
    CRASHED = "crashed"
    """Its process ended, and that of a second try."""


class _Gone(Exception):
    """The process at the other end has ended."""


@dataclass(slots=True, eq=False)
class _Comparer:
    number: int
    wire: socket.socket
    uses: int = 0

    def ask(self, gold: str, said: str, limit_s: float, meanwhile: Callable[[], None]) -> bool | None:
        """Whether they are the same; None when the limit passed. Where it takes long, `meanwhile` is called once."""
        self.uses += 1
        began = time.monotonic()
        try:
            self.wire.settimeout(limit_s)
            self.wire.sendall(f"{json.dumps([gold, said, limit_s])}\n".encode())
            answer = self._answer(min(_LONG_S, limit_s))
            if answer is None and limit_s > _LONG_S:
                meanwhile()
                answer = self._answer(max(began + limit_s - time.monotonic(), _SOON_S))
        except OSError:
            raise _Gone from None
        if answer == b"":
            raise _Gone
        return None if answer is None else answer == b"1"

    def _answer(self, limit_s: float) -> bytes | None:
        self.wire.settimeout(limit_s)
        try:
            return self.wire.recv(1)
        except TimeoutError:
            return None


class _Server:
    """The first process: loaded once, it forks comparers and kills them."""

    def __init__(self, program: Sequence[str]) -> None:
        self.num_taught = 0
        self._ready = False
        self.control, theirs = socket.socketpair()
        self._school, pupil = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        with theirs, pupil:
            self.process = subprocess.Popen(
                [*program, str(theirs.fileno()), str(pupil.fileno())],
                pass_fds=[theirs.fileno(), pupil.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )

    def await_ready(self) -> None:
        """Wait until it has loaded; raises `RewardFailed` where it cannot."""
        if self._ready:
            return
        said = self._answer(_START_S)
        if said != "ready":
            raise RewardFailed(
                f"reward 'math': its process cannot compare ({said or 'it ended'}); "
                "run `pip install math-verify`, or see what keeps it from starting"
            )
        self._ready = True

    def teach(self, gold: str, said: str) -> None:
        """Give it two answers to learn from, which it may or may not."""
        self.num_taught += 1
        with contextlib.suppress(OSError):  # it has too many already, or has ended
            self._school.send(json.dumps([gold, said]).encode(), socket.MSG_DONTWAIT)

    def start(self) -> _Comparer:
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                socket.send_fds(self.control, [b"start"], [theirs.fileno()])
                number = self._answer(_ANSWER_S)
            except OSError:
                number = ""
        if not number:
            ours.close()
            raise _Gone
        return _Comparer(int(number), ours)

    def kill(self, number: int) -> None:
        """End a comparer; raises `_Gone` where this process has ended, and then the comparer's own timer ends it."""
        try:
            self.control.sendall(f"kill {number}".encode())
        except OSError:
            raise _Gone from None
        if not self._answer(_ANSWER_S):
            raise _Gone

    def stop(self) -> None:
        self.abandon()
        self.process.kill()
        self.process.wait()

    def abandon(self) -> None:
        """Close our ends."""
        self.control.close()
        self._school.close()

    def _answer(self, limit_s: float) -> str:
        """One line; empty where the process ended or was silent."""
        self.control.settimeout(limit_s)
        found = bytearray()
        with contextlib.suppress(OSError):
            while not found.endswith(b"\n"):
                chunk = self.control.recv(4096)
                if not chunk:
                    return ""
                found += chunk
            return found.decode(errors="replace").strip()
        return ""


class Comparers:
    """All comparers of this process. Any thread may ask; a forked process begins with none."""

    def __init__(self, program: Sequence[str] = _OURS) -> None:
        self.program = program
        self._forget()
        os.register_at_fork(after_in_child=self._abandon)

    def same(self, gold: str, said: str, *, timeout_s: float) -> Verdict:
        """What a comparison finds within `timeout_s`, starting included.

        A comparer that dies need not have died of the answer, so there is a second try. Raises `RewardFailed` where
        comparing is not possible, or where starting left a comparison too little time to end.
        """
        began = time.monotonic()
        for _ in range(2):
            comparer = self._take()
            asked = time.monotonic()
            limit_s = max(timeout_s - (asked - began), _SHORTEST_S)
            try:
                found = comparer.ask(gold, said, limit_s, self._teach)
            except _Gone:
                self._drop(comparer)
                continue
            if found is None:
                self._drop(comparer)
                return self._timed_out(limit_s, timeout_s)
            self._keep(comparer)
            if _INSTRUCTIVE_S[0] <= time.monotonic() - asked <= _INSTRUCTIVE_S[1]:
                self._instructive.append((gold, said))
            return Verdict.SAME if found else Verdict.DIFFERENT
        return Verdict.CRASHED

    def warm(self) -> None:
        """Let the first process load, without waiting for it, if there is none yet."""
        with self._lock:
            if self._server is None:
                self._server = _Server(self.program)

    def stop(self) -> None:
        """End all processes; the next comparison starts them anew."""
        with self._lock:
            server, idle, self._server, self._idle = self._server, self._idle, None, []
        for comparer in idle:
            comparer.wire.close()
        if server is not None:
            server.stop()

    def _timed_out(self, limit_s: float, timeout_s: float) -> Verdict:
        if limit_s < timeout_s / 2:
            raise RewardFailed(
                f"reward 'math': starting its process left {limit_s:.1f} s of {timeout_s:g} s, which was too little; "
                "score the reply again, or give it more time"
            )
        return Verdict.TIMED_OUT

    def _take(self) -> _Comparer:
        with self._lock:
            comparer = self._idle.pop() if self._idle else self._started()
            self._busy.add(comparer)
            return comparer

    def _started(self) -> _Comparer:
        for _ in range(2):
            if self._server is None:
                self._server = _Server(self.program)
            try:
                self._server.await_ready()
                return self._server.start()
            except _Gone:
                self._lose()
            except RewardFailed:
                self._lose()
                raise
        raise RewardFailed("reward 'math': its process ended twice while it was starting; see what kills it")

    def _teach(self) -> None:
        """Let the first process learn what comparers have learnt since the last time, unless it is busy anyway."""
        if not self._lock.acquire(blocking=False):  # the caller has a limit of time to keep
            return
        try:
            while self._instructive and self._server is not None and self._server.num_taught < _MOST_LESSONS:
                self._server.teach(*self._instructive.pop())
        finally:
            self._lock.release()

    def _keep(self, comparer: _Comparer) -> None:
        with self._lock:
            self._busy.discard(comparer)
            if comparer.uses < _MOST_USES and len(self._idle) < _MOST_IDLE:
                self._idle.append(comparer)
                return
        comparer.wire.close()  # which ends it

    def _drop(self, comparer: _Comparer) -> None:
        comparer.wire.close()
        with self._lock:
            self._busy.discard(comparer)
            try:
                if self._server is not None:
                    self._server.kill(comparer.number)
            except _Gone:
                self._lose()

    def _lose(self) -> None:
        if self._server is not None:
            self._server.stop()
        self._server = None

    def _abandon(self) -> None:
        """In a forked process: what was inherited is the parent's, and nobody here holds the lock."""
        for comparer in (*self._idle, *self._busy):
            comparer.wire.close()
        if self._server is not None:
            self._server.abandon()
        self._forget()

    def _forget(self) -> None:
        self._lock = threading.Lock()
        self._server: _Server | None = None
        self._idle: list[_Comparer] = []
        self._busy: set[_Comparer] = set()
        self._instructive: deque[tuple[str, str]] = deque(maxlen=_MOST_LESSONS)


COMPARERS = Comparers()
