"""The process behind `roll.sandbox.memory_watch`: measures programs at short intervals, and kills those over a limit.

Each message is a process id and the limits `total_bytes`, `processes` and `file_bytes`, with the directory of files in
memory, which is empty for a program without namespaces. The closer a program is to its limit, the sooner it is measured
again: the interval is the time in which it could fill the rest at `_BYTES_PER_S` for each core, or half of it in the
second half of the limit. Where its user may have one, the process has a real-time priority, so that other work does not
delay it.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys
import time
from dataclasses import dataclass

from roll.sandbox.memory_usage import kernel_memory, measure, sandbox_memory, upper_bound
from roll.sandbox.process_tree import list_tree, walk_tree

_BYTES_PER_S = 2.5 * 2**30
_SHORTEST_S, _LONGEST_S = 0.002, 0.1
_RETRY_S = 0.004
"""Until a program is measured again whose files in /proc could not be read."""
_MAX_MESSAGE = 65536
_PRIORITY = -10
_LOOSE = 1.25
"""A bound of so many times the limit is not computed again while the memory is more than half the limit."""


@dataclass(slots=True)
class _Watched:
    pid: int
    descriptor: int
    """Of the process, so that a signal reaches no other one with the same pid."""
    limit: int
    bytes_per_s: float
    home: str
    file_bytes: int
    due: float
    loose: bool = False
    """Whether its bound is too large to be of use, as its processes share much memory."""


def main() -> None:
    """Watch until the owner's socket closes. Arguments: the socket, and the user to run as."""
    owner = socket.socket(fileno=int(sys.argv[1]))
    with contextlib.suppress(OSError):
        os.nice(_PRIORITY)
    with contextlib.suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    if (user := int(sys.argv[2])) != os.geteuid():  # may read what the programs' user may, and signal only them
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
    watched: list[_Watched] = []
    while True:
        watched += _receive(owner, block=not watched)
        now = time.monotonic()
        watched = [each for each in watched if each.due > now or _check(each)]
        if watched:
            time.sleep(max(min(each.due for each in watched) - time.monotonic(), 0.0))


def _receive(owner: socket.socket, *, block: bool) -> list[_Watched]:
    """New programs; with `block`, waits for the first. Those that have ended already are left out."""
    programs: list[_Watched] = []
    while True:
        try:
            message = owner.recv(_MAX_MESSAGE, 0 if block and not programs else socket.MSG_DONTWAIT)
        except BlockingIOError:
            return programs
        except OSError:
            message = b""
        if not message:
            os._exit(0)
        pid, limit, processes, file_bytes, home = json.loads(message)
        with contextlib.suppress(OSError):
            rate = _BYTES_PER_S * min(os.cpu_count() or 1, processes)
            due = time.monotonic() + _interval(limit, rate)
            programs.append(_Watched(pid, os.pidfd_open(pid), limit, rate, home, file_bytes, due))


def _check(program: _Watched) -> bool:
    """Measure a program and kill it above its limit; returns whether it still runs."""
    try:
        used = program.limit + 1 if program.loose else _bound(program)
        if used > program.limit:
            bound, used = used, _measure_stopped(program)
            program.loose = used > program.limit // 2 and (program.loose or bound > _LOOSE * program.limit)
        signal.pidfd_send_signal(program.descriptor, 0)
    except ProcessLookupError:
        os.close(program.descriptor)
        return False
    except (IndexError, ValueError, PermissionError):  # a file cut off at the end; a start still with root's rights
        program.due = time.monotonic() + _RETRY_S
        return True
    rest = program.limit - used
    near = rest < program.limit // 2
    program.due = time.monotonic() + _interval(rest // 2 if near else rest, program.bytes_per_s)
    return True


def _measure_stopped(program: _Watched) -> int:
    """Stop the program for the time of an exact measurement; then it continues, or is killed."""
    stopped: dict[int, None] = {}
    count = -1
    while len(stopped) > count:  # until no process has been started in the meantime
        count = len(stopped)
        for pid in walk_tree(program.pid):
            if pid != program.pid and pid not in stopped:
                _signal_all([pid], signal.SIGSTOP)
                stopped[pid] = None
    pids = list(stopped)
    used = measure(pids, _kernel_memory(program, [program.pid, *pids]))
    if used <= program.limit:
        _signal_all(pids, signal.SIGCONT)
        return used
    _signal_all(pids, signal.SIGKILL)
    if not program.home:  # otherwise it ends with process 1, and has its CPU time
        signal.pidfd_send_signal(program.descriptor, signal.SIGKILL)
    return used


def _bound(program: _Watched) -> int:
    pids = list_tree(program.pid)
    return upper_bound(pids, _kernel_memory(program, pids))


def _kernel_memory(program: _Watched, pids: list[int]) -> int:
    used = kernel_memory(pids)
    if program.home and len(pids) > 1:
        used += sandbox_memory(pids[1], program.home, program.file_bytes)
    return used


def _interval(headroom: int, bytes_per_s: float) -> float:
    return max(min(headroom / bytes_per_s, _LONGEST_S), _SHORTEST_S)


def _signal_all(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)
