"""Memory of a process tree, with memory of the kernel that belongs to no process. Imports only the standard library.

`upper_bound` is cheap, and enough for nearly all programs. `measure` reads page tables and is called only if the bound
exceeds the limit.

| held by | bound | measured |
|---|---|---|
| anonymous memory | resident memory | proportional set size, so that pages shared after a fork count once |
| mappings | one for each page of the address space | 512 bytes each |
| sockets | the default buffer each; the queues of TCP | the same |
| pipes | 64 KB for each descriptor | the same |
| files in memory | blocks and inodes in use | the same |
| locks on files | 256 bytes each | the same |

A larger buffer, and memory that is shared but belongs to no file, are refused by `roll.sandbox.seccomp`.
"""

from __future__ import annotations

import functools
import os

from roll.sandbox.process_tree import read_proc

_PAGE = os.sysconf("SC_PAGE_SIZE")
_DESCRIPTOR, _INODE, _LOCK, _MAPPING = 65536, 1536, 256, 512
_MAPPINGS_READ = 262144
"""Bytes of a list of mappings that are read; a process with a longer list is counted with `_MOST_MAPPINGS`."""
_MOST_MAPPINGS = 65530
_LOCKS_READ = 65536
_MAPPINGS_PER_PAGE = _PAGE // _MAPPING
"""As many mappings take the memory of one page."""


def upper_bound(pids: list[int], kernel_bytes: int) -> int:
    """At least the memory of the processes, in bytes; with what `kernel_memory` has counted."""
    pages = 0
    for pid in pids:
        if fields := read_proc(f"{pid}/statm").split():
            size, resident, shared = map(int, fields[:3])
            pages += resident - shared + min(size, _MOST_MAPPINGS) // _MAPPINGS_PER_PAGE
    return pages * _PAGE + kernel_bytes


def measure(pids: list[int], kernel_bytes: int) -> int:
    """The memory of the processes, in bytes; with what `kernel_memory` has counted."""
    return kernel_bytes + sum(_private_bytes(pid) + _count_mappings(pid) * _MAPPING for pid in pids)


def kernel_memory(pids: list[int]) -> int:
    """Memory of descriptors and locks."""
    return sum(map(_count_descriptors, pids)) * _DESCRIPTOR + _count_locks(pids) * _LOCK


def sandbox_memory(first: int, home: str, file_bytes: int) -> int:
    """Memory of the sockets and the files of a sandbox, whose process 1 is given.

    `file_bytes` is the size of the file system at `home`: before it is mounted, another one of the host is there.
    """
    return _socket_bytes(first) + _used_bytes(f"/proc/{first}/root{home}", file_bytes)


def _private_bytes(pid: int) -> int:
    """Anonymous memory, with shared pages in proportion; resident memory if that may not be read."""
    rollup = read_proc(f"{pid}/smaps_rollup")
    if not rollup:
        fields = read_proc(f"{pid}/statm").split()
        return (int(fields[1]) - int(fields[2])) * _PAGE if fields else 0
    return sum(
        int(line.split()[1]) * 1024 for line in rollup.splitlines() if line.startswith((b"Pss_Anon:", b"SwapPss:"))
    )


def _count_mappings(pid: int) -> int:
    lines = read_proc(f"{pid}/maps", _MAPPINGS_READ).count(b"\n")
    return lines if lines < _MAPPINGS_READ // 128 else _MOST_MAPPINGS


def _count_descriptors(pid: int) -> int:
    try:
        return os.stat(f"/proc/{pid}/fd").st_size or len(os.listdir(f"/proc/{pid}/fd"))
    except OSError:
        return 0


def _count_locks(pids: list[int]) -> int:
    owners = {str(pid).encode() for pid in pids}
    return sum(fields[4] in owners for line in read_proc("locks", _LOCKS_READ).splitlines() if (fields := line.split()))


def _socket_bytes(pid: int) -> int:
    counts = read_proc(f"{pid}/net/sockstat").split()
    if not counts:
        return 0
    total = int(counts[2]) * _buffer_bytes()
    if b"TCP:" in counts and int(counts[counts.index(b"TCP:") + 2]):
        for line in read_proc(f"{pid}/net/tcp", 1 << 20).splitlines()[1:]:
            sent, received = line.split()[4].split(b":")
            total += 4 * (int(sent, 16) + int(received, 16))
    return total


@functools.cache
def _buffer_bytes() -> int:
    """Most memory of a socket with the default buffer; one message more than the limit fits in."""
    return int(read_proc("sys/net/core/wmem_default") or b"212992") * 5 // 4


def _used_bytes(directory: str, size: int) -> int:
    try:
        system = os.statvfs(directory)
    except OSError:
        return 0
    if system.f_blocks * system.f_frsize > size + _PAGE:
        return 0
    return (system.f_blocks - system.f_bfree) * system.f_frsize + (system.f_files - system.f_ffree) * _INODE
