"""Comparing answers in processes that can be killed from outside, whatever they are in the midst of.

Each process that asks has comparers of its own, started when first needed; they end when it does. No caller waits for
another: who finds no idle comparer gets a new one, which is a fork of a process that has loaded everything.

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
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from roll.errors import RewardFailed

_CHILD = Path(__file__).with_name("math_child.py")
_OURS = (sys.executable, "-P", str(_CHILD))  # -P: this folder's names must not hide Python's own
_START_S = 60.0
_SHORTEST_S = 0.3
"""What a comparison gets where starting has used up its time."""
_MOST_IDLE = 4
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

    def ask(self, gold: str, said: str, limit_s: float) -> bool | None:
        """Whether they are the same; None when the limit passed."""
        self.uses += 1
        try:
            self.wire.settimeout(limit_s)
            self.wire.sendall(f"{json.dumps([gold, said, limit_s])}\n".encode())
            answer = self.wire.recv(1)
        except TimeoutError:
            return None
        except OSError:
            raise _Gone from None
        if not answer:
            raise _Gone
        return answer == b"1"


class _Server:
    """The first process: loaded once, it forks comparers and kills them."""

    def __init__(self, program: Sequence[str]) -> None:
        self.control, theirs = socket.socketpair()
        with theirs:
            self.process = subprocess.Popen(
                [*program, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        said = self._answer(_START_S)
        if said != "ready":
            self.stop()
            raise RewardFailed(
                f"reward 'math': its process cannot compare ({said or 'it ended'}); "
                "run `pip install math-verify`, or see what keeps it from starting"
            )

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
        self.control.close()
        self.process.kill()
        self.process.wait()

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
            limit_s = max(timeout_s - (time.monotonic() - began), _SHORTEST_S)
            try:
                found = comparer.ask(gold, said, limit_s)
            except _Gone:
                self._drop(comparer)
                continue
            if found is None:
                self._drop(comparer)
                return self._timed_out(limit_s, timeout_s)
            self._keep(comparer)
            return Verdict.SAME if found else Verdict.DIFFERENT
        return Verdict.CRASHED

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
                return self._server.start()
            except _Gone:
                self._lose()
        raise RewardFailed("reward 'math': its process ended twice while it was starting; see what kills it")

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
            self._server.control.close()
        self._forget()

    def _forget(self) -> None:
        self._lock = threading.Lock()
        self._server: _Server | None = None
        self._idle: list[_Comparer] = []
        self._busy: set[_Comparer] = set()


COMPARERS = Comparers()
