"""A seccomp filter that refuses system calls which no program in the sandbox needs.

Some of them allocate memory that no limit counts (files in memory, System V segments, extended attributes). The others
reach into processes, namespaces and the kernel, and have been used to escape sandboxes. The filter is BPF bytecode that
bubblewrap passes to the kernel, one program per architecture in the table.

| call | allowed | otherwise |
|---|---|---|
| `socket`, `socketpair` | Unix sockets; TCP and UDP over IPv4, whose only interface is the loopback | `EAFNOSUPPORT` |
| `setsockopt` | the options of `_SOCKET_OPTIONS` and `_TCP_OPTIONS` | sizes of buffers: no effect; `ENOPROTOOPT` |
| `fcntl` | all but a larger buffer of a pipe | `EPERM` |
| `mmap` | all but memory that is shared without a file: it stays after most of it is unmapped | `EPERM` |
| `prctl` | all but filters and tables for futexes, which are memory of the kernel | `EPERM` |
| `clone` | without new namespaces | `EPERM` |
| extended attributes | reading | `ENOTSUP`, as on a file system without them |
"""

from __future__ import annotations

import errno
import functools
import struct
from collections.abc import Iterable
from dataclasses import dataclass

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _KILL, _REFUSE = 0x7FFF0000, 0x80000000, 0x00050000
_AND = 0x54
_NUMBER_AT, _MACHINE_AT = 0, 4
_ARGUMENTS_AT = (16, 24, 32, 40)
"""Low halves of the first arguments; those tested here are `int`."""
_NEW_NAMESPACES = 0x7E020080
"""Flags of `clone` that create namespaces."""
_UNIX, _INET = 1, 2
_SOCKET_TYPE = 0xF
"""The other bits of a type are flags."""
_STREAM, _DATAGRAM = 1, 2
_PROTOCOLS = (0, 6, 17)
"""The default, TCP, UDP."""
_SOL_SOCKET, _SOL_TCP = 1, 6
_BUFFER_SIZES = (7, 8, 32, 33)
_SOCKET_OPTIONS = (2, 5, 6, 9, 10, 13, 15, 16, 18, 20, 21, 29, 66, 67)
"""Reuse of addresses and ports, routing, broadcast, keepalive, lingering, credentials, low-water mark, timeouts."""
_TCP_OPTIONS = (1, 3, 4, 5, 6, 12, 18)
"""No delay, cork, keepalive times, quick acknowledgements, timeout."""
_SET_PIPE_SIZE = 1031
_SHARED_ANONYMOUS, _SHARED_ANONYMOUS_BITS = (0x21, 0x23), 0x23
_SET_SECCOMP, _SET_FUTEX_HASH = 22, 78

_REFUSED = {
    "io_uring_setup": 425, "open_tree": 428, "move_mount": 429, "fsopen": 430, "pidfd_getfd": 438, "mount_setattr": 442,
    "memfd_secret": 447,
}  # fmt: skip
"""Numbers of calls that every architecture shares."""
_ABSENT = {"clone3": 435, "landlock_create_ruleset": 444, "landlock_add_rule": 445, "landlock_restrict_self": 446}
"""Flags of clone3 are in memory, which a filter cannot read; the C library falls back to `clone`."""
_SET_XATTR_AT = 463


@dataclass(frozen=True, slots=True, kw_only=True)
class _SyscallNumbers:
    """System call numbers of one architecture."""

    audit_arch: int
    """The kernel's id of it in a filter."""
    clone: int
    socket: int
    socketpair: int
    setsockopt: int
    fcntl: int
    mmap: int
    prctl: int
    refused: dict[str, int]
    absent: dict[str, int]
    """Refused as if the kernel did not have them, so that programs do without."""
    set_xattr: tuple[int, ...]
    foreign_from: int | None = None
    """Numbers from here on belong to another ABI."""


_ARCHITECTURES = {
    "x86_64": _SyscallNumbers(
        audit_arch=0xC000003E,
        clone=56,
        socket=41,
        socketpair=53,
        setsockopt=54,
        fcntl=72,
        mmap=9,
        prctl=157,
        foreign_from=0x40000000,
        absent=_ABSENT | {
            "io_setup": 206, "inotify_init": 253, "splice": 275, "tee": 276, "vmsplice": 278, "inotify_init1": 294,
            "fanotify_init": 300,
        },
        set_xattr=(188, 189, 190, _SET_XATTR_AT),
        refused=_REFUSED | {
            "shmget": 29, "semget": 64, "msgget": 68, "ptrace": 101, "pivot_root": 155, "mount": 165, "umount2": 166,
            "add_key": 248, "request_key": 249, "keyctl": 250, "unshare": 272, "perf_event_open": 298, "setns": 308,
            "process_vm_readv": 310, "process_vm_writev": 311, "memfd_create": 319, "bpf": 321, "userfaultfd": 323,
            "seccomp": 317,
        },
    ),
    "aarch64": _SyscallNumbers(
        audit_arch=0xC00000B7,
        clone=220,
        socket=198,
        socketpair=199,
        setsockopt=208,
        fcntl=25,
        mmap=222,
        prctl=167,
        absent=_ABSENT | {
            "io_setup": 0, "inotify_init1": 26, "vmsplice": 75, "splice": 76, "tee": 77, "fanotify_init": 262,
        },
        set_xattr=(5, 6, 7, _SET_XATTR_AT),
        refused=_REFUSED | {
            "umount2": 39, "mount": 40, "pivot_root": 41, "unshare": 97, "ptrace": 117, "msgget": 186, "semget": 190,
            "shmget": 194, "add_key": 217, "request_key": 218, "keyctl": 219, "perf_event_open": 241, "setns": 268,
            "process_vm_readv": 270, "process_vm_writev": 271, "memfd_create": 279, "bpf": 280, "userfaultfd": 282,
            "seccomp": 277,
        },
    ),
}  # fmt: skip


@functools.cache
def filter_for(machine: str) -> bytes:
    """The filter for a machine as `uname` names it; empty if it is not in the table."""
    if machine not in _ARCHITECTURES:
        return b""
    numbers = _ARCHITECTURES[machine]
    steps = [
        _load(_MACHINE_AT),
        _jump(_EQUAL, numbers.audit_arch, then=1),
        _instruction(_RETURN, _KILL),
        _load(_NUMBER_AT),
    ]
    if numbers.foreign_from is not None:
        steps += [_jump(_AT_LEAST, numbers.foreign_from, otherwise=1), _instruction(_RETURN, _KILL)]
    steps += _when(numbers.refused.values(), [_refuse(errno.EPERM)])
    steps += _when(numbers.absent.values(), [_refuse(errno.ENOSYS)])
    steps += _when(numbers.set_xattr, [_refuse(errno.ENOTSUP)])
    steps += _when([numbers.clone], _clone())
    steps += _when([numbers.fcntl], _unless(1, [_SET_PIPE_SIZE]))
    steps += _when([numbers.prctl], _unless(0, [_SET_SECCOMP, _SET_FUTEX_HASH]))
    steps += _when([numbers.mmap], _unless(3, _SHARED_ANONYMOUS, bits=_SHARED_ANONYMOUS_BITS))
    steps += _when([numbers.socket, numbers.socketpair], _socket())
    steps += _when([numbers.setsockopt], _setsockopt())
    return b"".join([*steps, _allow()])


def _unless(argument: int, values: Iterable[int], bits: int = 0xFFFFFFFF) -> list[bytes]:
    """Refuse the call if these bits of an argument are one of the values."""
    loaded = [_load(_ARGUMENTS_AT[argument]), _instruction(_AND, bits)]
    return [*loaded, *_when(values, [_refuse(errno.EPERM)]), _allow()]


def _clone() -> list[bytes]:
    return [
        _load(_ARGUMENTS_AT[0]),
        _jump(_ANY_BIT, _NEW_NAMESPACES, otherwise=1),
        _refuse(errno.EPERM),
        _allow(),
    ]


def _socket() -> list[bytes]:
    inet = [
        _load(_ARGUMENTS_AT[1]),
        _instruction(_AND, _SOCKET_TYPE),
        *_when([_STREAM, _DATAGRAM], [_load(_ARGUMENTS_AT[2]), *_when(_PROTOCOLS, [_allow()])]),
        _refuse(errno.EAFNOSUPPORT),
    ]
    families = [*_when([_UNIX], [_allow()]), *_when([_INET], inet)]
    return [_load(_ARGUMENTS_AT[0]), *families, _refuse(errno.EAFNOSUPPORT)]


def _setsockopt() -> list[bytes]:
    def options(allowed: tuple[int, ...]) -> list[bytes]:
        return [_load(_ARGUMENTS_AT[2]), *_when(allowed, [_allow()]), _refuse(errno.ENOPROTOOPT)]

    sizes = [_load(_ARGUMENTS_AT[2]), *_when(_BUFFER_SIZES, [_refuse(0)])]
    levels = [*_when([_SOL_SOCKET], [*sizes, *options(_SOCKET_OPTIONS)]), *_when([_SOL_TCP], options(_TCP_OPTIONS))]
    return [_load(_ARGUMENTS_AT[1]), *levels, _refuse(errno.ENOPROTOOPT)]


def _when(values: Iterable[int], block: list[bytes]) -> list[bytes]:
    """Run the block if the loaded value is one of these. If the block loads another value, it ends with a return."""
    values = list(values)
    tests = [_jump(_EQUAL, value, then=len(values) - 1 - n) for n, value in enumerate(values[:-1])]
    return [*tests, _jump(_EQUAL, values[-1], otherwise=len(block)), *block]


def _load(offset: int) -> bytes:
    return _instruction(_LOAD, offset)


def _allow() -> bytes:
    return _instruction(_RETURN, _ALLOW)


def _refuse(error: int) -> bytes:
    """Return with this error; 0 is success without an effect."""
    return _instruction(_RETURN, _REFUSE | error)


def _instruction(code: int, value: int) -> bytes:
    return struct.pack("=HBBI", code, 0, 0, value)


def _jump(code: int, value: int, then: int = 0, otherwise: int = 0) -> bytes:
    """Compare the loaded value, then skip `then` or `otherwise` steps."""
    return struct.pack("=HBBI", code, then, otherwise, value)
