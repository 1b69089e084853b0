"""A seccomp filter that refuses system calls which no program in the sandbox needs.

Some of them allocate memory that no limit counts (files in memory, System V segments). The others reach into processes,
namespaces and the kernel, and have been used to escape sandboxes. The filter is BPF bytecode that bubblewrap passes to
the kernel, one program per architecture in the table.
"""

from __future__ import annotations

import errno
import functools
import struct
from dataclasses import dataclass, field

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _KILL, _REFUSE = 0x7FFF0000, 0x80000000, 0x00050000
_NUMBER_AT, _MACHINE_AT, _FIRST_ARGUMENT_AT = 0, 4, 16
_NEW_NAMESPACES = 0x7E020080
"""Flags of `clone` that create namespaces."""

_COMMON = {
    "io_uring_setup": 425,
    "open_tree": 428,
    "move_mount": 429,
    "fsopen": 430,
    "pidfd_getfd": 438,
    "mount_setattr": 442,
    "memfd_secret": 447,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _SyscallNumbers:
    """System call numbers of one architecture."""

    audit_arch: int
    """The kernel's id of it in a filter."""
    clone: int
    refused: dict[str, int]
    foreign_from: int | None = None
    """Numbers from here on belong to another ABI."""
    clone3: int = 435
    common: dict[str, int] = field(default_factory=lambda: dict(_COMMON))


_ARCHITECTURES = {
    "x86_64": _SyscallNumbers(
        audit_arch=0xC000003E,
        clone=56,
        foreign_from=0x40000000,
        refused={
            "shmget": 29, "semget": 64, "msgget": 68, "ptrace": 101, "pivot_root": 155, "mount": 165, "umount2": 166,
            "add_key": 248, "request_key": 249, "keyctl": 250, "unshare": 272, "perf_event_open": 298, "setns": 308,
            "process_vm_readv": 310, "process_vm_writev": 311, "memfd_create": 319, "bpf": 321, "userfaultfd": 323,
        },
    ),
    "aarch64": _SyscallNumbers(
        audit_arch=0xC00000B7,
        clone=220,
        refused={
            "umount2": 39, "mount": 40, "pivot_root": 41, "unshare": 97, "ptrace": 117, "msgget": 186, "semget": 190,
            "shmget": 194, "add_key": 217, "request_key": 218, "keyctl": 219, "perf_event_open": 241, "setns": 268,
            "process_vm_readv": 270, "process_vm_writev": 271, "memfd_create": 279, "bpf": 280, "userfaultfd": 282,
        },
    ),
}  # fmt: skip


@functools.cache
def filter_for(machine: str) -> bytes:
    """The filter for a machine as `uname` names it; empty if it is not in the table."""
    if machine not in _ARCHITECTURES:
        return b""
    numbers = _ARCHITECTURES[machine]
    refuse = _instruction(_RETURN, _REFUSE | errno.EPERM)
    steps = [
        _instruction(_LOAD, _MACHINE_AT),
        _jump(_EQUAL, numbers.audit_arch, then=1),
        _instruction(_RETURN, _KILL),
        _instruction(_LOAD, _NUMBER_AT),
    ]
    if numbers.foreign_from is not None:
        steps += [_jump(_AT_LEAST, numbers.foreign_from, otherwise=1), _instruction(_RETURN, _KILL)]
    for number in (*numbers.refused.values(), *numbers.common.values()):
        steps += [_jump(_EQUAL, number, otherwise=1), refuse]
    # Flags of clone3 are in memory, which a filter cannot read; the C library falls back to `clone`.
    steps += [_jump(_EQUAL, numbers.clone3, otherwise=1), _instruction(_RETURN, _REFUSE | errno.ENOSYS)]
    steps += [_jump(_EQUAL, numbers.clone, otherwise=3), _instruction(_LOAD, _FIRST_ARGUMENT_AT)]
    steps += [_jump(_ANY_BIT, _NEW_NAMESPACES, otherwise=1), refuse]
    return b"".join([*steps, _instruction(_RETURN, _ALLOW)])


def _instruction(code: int, value: int) -> bytes:
    return struct.pack("=HBBI", code, 0, 0, value)


def _jump(code: int, value: int, then: int = 0, otherwise: int = 0) -> bytes:
    """Compare the loaded value, then skip `then` or `otherwise` steps."""
    return struct.pack("=HBBI", code, then, otherwise, value)
