"""A process with its descendants, as `/proc` shows them. Imports only the standard library."""

from __future__ import annotations

import os
from collections.abc import Iterator

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_CPU_FIELDS = slice(11, 15)
"""Fields of `/proc/PID/stat` after the name: user and system time, of the process and of its reaped children."""


def list_tree(root: int) -> list[int]:
    """The ids of `root` and its living descendants, parents first."""
    return list(walk_tree(root))


def walk_tree(root: int) -> Iterator[int]:
    """The ids of `root` and its living descendants; the children of each are read after it was passed on."""
    pids = [root]
    for pid in pids:
        yield pid
        try:
            # one stat in place of a list: the directory has a link for each thread
            threads = [pid] if os.stat(f"/proc/{pid}/task").st_nlink == 3 else os.listdir(f"/proc/{pid}/task")
        except OSError:
            continue  # it has ended
        for thread in threads:
            pids += map(int, read_proc(f"{pid}/task/{thread}/children").split())


def cpu_seconds(pids: list[int]) -> float:
    """CPU time of these processes and of the children they have reaped."""
    ticks = 0
    for pid in pids:
        fields = read_proc(f"{pid}/stat").rpartition(b")")[2].split()
        ticks += sum(map(int, fields[_CPU_FIELDS]))
    return ticks / _TICKS_PER_S


def read_proc(name: str, limit: int = 0) -> bytes:
    """A file in `/proc`, or its first `limit` bytes; empty if its process has ended or it may not be read.

    Without a limit, one read: the kernel passes on at most a page of a list at once.
    """
    try:
        descriptor = os.open(f"/proc/{name}", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    data = b""
    try:
        data = os.read(descriptor, 65536)
        while len(data) < limit and (chunk := os.read(descriptor, 65536)):
            data += chunk
    except OSError:
        pass  # it has just ended
    finally:
        os.close(descriptor)
    return data
