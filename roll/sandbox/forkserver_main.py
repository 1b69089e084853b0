"""The process behind `roll.sandbox.forkserver`. It is forked, so it imports as little as possible.

| message | reply |
|---|---|
| (none) | at start: an empty text once everything is loaded, or the reason why it cannot be |
| `["fork", payload]`, with descriptors | the pid of a fork, in which `serve` returns both |
| `["reap", pid]` | how a fork ended, which has exited or was killed: a `ProcessExit` |
| `["notice", payload]` | none |
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import select
import signal
import socket
from collections.abc import Callable
from typing import Any, NamedTuple

FORK, REAP, NOTICE = "fork", "reap", "notice"
MAX_MESSAGE = 1 << 20
_MAX_DESCRIPTORS = 8


class ProcessExit(NamedTuple):
    """How a process ended."""

    code: int
    """As in `subprocess`: the exit code, or minus the signal."""
    cpu_s: float
    """CPU time of the process and of all descendants that were reaped."""


def serve(
    control: socket.socket,
    *,
    on_notice: Callable[[Any], None] = lambda _: None,
    idle: Callable[[], bool] = lambda: False,
) -> tuple[Any, list[int]]:
    """Serve until the socket closes; returns only in a fork, which leads its own session.

    While no message waits, `idle` is called until it returns False.
    """
    gc.collect()
    gc.freeze()  # keeps loaded pages shared with the forks
    pids: set[int] = set()
    _send(control, "", pids)
    while True:
        while not select.select([control], [], [], 0)[0] and idle():
            pass
        message, descriptors = _receive(control, pids)
        kind, payload = json.loads(message)
        if kind == NOTICE:
            on_notice(payload)
        elif kind == REAP:
            ended = reap_process(payload)
            pids.discard(payload)
            _send(control, ended, pids)
        else:
            pid = os.fork()
            if pid == 0:
                control.close()
                os.setsid()
                return payload, descriptors
            pids.add(pid)
            for descriptor in descriptors:
                os.close(descriptor)
            _send(control, pid, pids)


def report_failure(control: socket.socket, error: BaseException) -> None:
    """Tell the owner why this process cannot serve."""
    control.send(json.dumps(f"{type(error).__name__}: {error}").encode())


def _receive(control: socket.socket, pids: set[int]) -> tuple[bytes, list[int]]:
    try:
        message, descriptors, _, _ = socket.recv_fds(control, MAX_MESSAGE, _MAX_DESCRIPTORS)
    except OSError:  # an owner that ends may leave replies unread, which resets the socket
        message, descriptors = b"", []
    if not message:
        _exit(pids)
    return message, descriptors


def _send(control: socket.socket, reply: Any, pids: set[int]) -> None:
    try:
        control.send(json.dumps(reply).encode())
    except OSError:
        _exit(pids)


def _exit(pids: set[int]) -> None:
    for pid in pids:
        kill_group(pid)
    os._exit(0)


def reap_process(pid: int, options: int = 0) -> ProcessExit | None:
    """Wait for a child; None if it still runs and `options` say not to block."""
    reaped, status, usage = os.wait4(pid, options)
    if not reaped:
        return None
    return ProcessExit(os.waitstatus_to_exitcode(status), usage.ru_utime + usage.ru_stime)


def kill_group(pid: int) -> None:
    """Kill a process and its group. Safe until the process is reaped: until then its pid is not reused."""
    with contextlib.suppress(ProcessLookupError):  # its server has died, and the system has reaped it
        try:
            os.killpg(pid, signal.SIGKILL)
        except ProcessLookupError:  # it has not created its group yet
            os.kill(pid, signal.SIGKILL)
