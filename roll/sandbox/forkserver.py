"""A Python process that loads something once and is forked on request; each fork starts with everything loaded.

| call | waits for | woken by |
|---|---|---|
| `await_ready` | what the process loads, at most `timeout_s` | its first reply; its death |
| `fork`, `reap` | one reply, at most `_REPLY_S` | the reply; the server's death |
| `stop` | the end of the process | its death, after a kill |
"""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import threading
from collections.abc import Sequence
from typing import Any

from roll.sandbox.forkserver_main import FORK, MAX_MESSAGE, NOTICE, REAP, ProcessExit

_REPLY_S, _STOP_S = 10.0, 2.0


class ForkServerDied(Exception):
    """The server process has ended, or does not reply."""


class ForkServer:
    """One server process, for use from any thread. Its forks are killed when it ends, and it ends with its owner."""

    def __init__(self, program: Sequence[str], *, stderr: int | None = None) -> None:
        """`program` gets the number of a socket as its last argument and calls `forkserver_main.serve` with it."""
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self.process = subprocess.Popen(
                [*program, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=stderr,
                start_new_session=True,
            )
        self._lock = threading.Lock()
        self._fault: str | None = None

    def await_ready(self, timeout_s: float) -> str:
        """Why the server cannot be used; empty once it has loaded everything."""
        with self._lock:
            if self._fault is not None:
                return self._fault
            try:
                fault: str = self._receive(timeout_s)
            except ForkServerDied as error:
                fault = str(error)
            self._fault = fault
            return fault

    def fork(self, payload: Any, descriptors: Sequence[int]) -> int:
        """The pid of a new fork, which gets the payload and the descriptors; end it with `kill_group` and `reap`."""
        return self._request(FORK, payload, descriptors)

    def reap(self, pid: int) -> ProcessExit:
        """How a fork ended, which has exited or was killed."""
        return ProcessExit(*self._request(REAP, pid))

    def notify(self, payload: Any) -> None:
        """Send a notice, which is dropped if the server is too busy or has ended."""
        with contextlib.suppress(OSError):
            self._socket.send(json.dumps([NOTICE, payload]).encode(), socket.MSG_DONTWAIT)

    def close(self) -> None:
        """Close this side's socket, which ends the server and its forks."""
        self._socket.close()

    def stop(self) -> None:
        """End the server and its forks."""
        self.close()
        try:
            self.process.wait(timeout=_STOP_S)
        except subprocess.TimeoutExpired:  # it is still loading, or hangs
            self.process.kill()
            self.process.wait()

    def _request(self, kind: str, payload: Any, descriptors: Sequence[int] = ()) -> Any:
        message = json.dumps([kind, payload]).encode()
        with self._lock:
            try:
                self._socket.settimeout(_REPLY_S)
                socket.send_fds(self._socket, [message], list(descriptors))
            except OSError as error:
                raise ForkServerDied(str(error)) from None
            return self._receive(_REPLY_S)

    def _receive(self, timeout_s: float) -> Any:
        try:
            self._socket.settimeout(timeout_s)
            data = self._socket.recv(MAX_MESSAGE)
        except OSError:
            data = b""
        if not data:
            raise ForkServerDied("it ended")
        return json.loads(data)
