"""The level for untrusted code: bubblewrap namespaces as an unprivileged user, resource limits, a seccomp filter.

A program gets no network; private pid, ipc, host name and user namespaces; the system's programs and libraries,
read-only; one small file system in memory as the only writable directory; five devices; and an environment of only PATH
and HOME. The process limit does not apply to root, so root switches to an unprivileged user first. It is set inside the
user namespace, where only the sandbox's processes count, so concurrent sandboxes do not share it.
"""

from __future__ import annotations

import dataclasses
import functools
import os
from pathlib import Path

from roll.sandbox.base import ExitReason, Program, ProgramResult, ResourceLimits, SandboxFailed
from roll.sandbox.process import Command, create_sealed_file, supervise
from roll.sandbox.seccomp import filter_for
from roll.sandbox.system import NOBODY, PATH, find_program, limit_command, run_untrusted

HOME = "/tmp"
_SYSTEM = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
_INIT = ("/bin/sh", "-c", 'exec 3>&2 2>/dev/null; "$@" 2>&3 3>&-; exit $?', "sh")
"""Process 1: runs the program, reaps orphans, and exits with the program's code. bubblewrap waits for its end, which it
does not for its own init, so the CPU time of all reaped processes is passed on."""
_DEVICES = {"null": "null", "zero": "full", "full": "full", "random": "random", "urandom": "urandom"}
"""Devices of the host by their names inside. Both `zero` and `full` read as zeros, but a mapping of `zero` that is
shared would be memory without a limit."""


async def run(program: Program, limits: ResourceLimits) -> ProgramResult:
    """Run `program` within `limits`; raises `SandboxFailed` if it could not be started."""
    outer, inner = (
        [*run_untrusted(), find_program("bwrap")],
        limit_command(limits),
    )  # may raise, so before descriptors are opened
    status_read, status_write = os.pipe2(os.O_CLOEXEC)
    files = {name: create_sealed_file(content) for name, content in program.files.items()}
    rules = filter_for(os.uname().machine)
    filters = [create_sealed_file(rules)] if rules else []
    argv = [
        *outer,
        *_namespaces(),
        *_file_system(limits),
        *(word for name, file in files.items() for word in ("--file", str(file), f"{HOME}/{name}")),
        *("--chdir", HOME, "--json-status-fd", str(status_write)),
        *(word for file in filters for word in ("--seccomp", str(file))),
        *("--as-pid-1", "--", *inner, *(() if program.first else _INIT), *program.argv),
    ]
    descriptors = [status_write, *files.values(), *filters]
    command = Command(
        argv=argv,
        stdin=program.stdin,
        ready=program.ready,
        descriptors=descriptors,
        watched=True,
        memory_directory=HOME,
    )
    try:
        result = await supervise(command, limits)
        status = _read_available(status_read)
    finally:
        os.close(status_read)
    if b'"child-pid"' not in status and result.reason is ExitReason.EXITED:
        stderr = result.stderr.decode(errors="replace").strip()
        raise SandboxFailed(f"sandbox: bubblewrap did not start (it said {stderr!r}); see roll.sandbox.level")
    return _decode_signal(result)


def _namespaces() -> list[str]:
    return [
        *("--unshare-user", "--unshare-all", "--die-with-parent", "--new-session", "--clearenv"),
        *("--uid", str(NOBODY), "--gid", str(NOBODY), "--hostname", "sandbox"),
        *("--setenv", "PATH", PATH, "--setenv", "HOME", HOME, "--setenv", "LANG", "C.UTF-8"),
    ]


def _file_system(limits: ResourceLimits) -> list[str]:
    """Mounts. Root and `/dev` become read-only last: both are in memory, without a size limit. So does `/proc`."""
    devices = (word for name, of in _DEVICES.items() for word in ("--dev-bind", f"/dev/{of}", f"/dev/{name}"))
    return [
        *_system(),
        *("--proc", "/proc", "--tmpfs", "/dev", *devices, "--symlink", HOME, "/dev/shm"),
        *("--size", str(limits.file_bytes), "--tmpfs", HOME),
        *("--remount-ro", "/dev", "--remount-ro", "/proc", "--remount-ro", "/"),
    ]


@functools.cache
def _system() -> list[str]:
    words = ["--ro-bind", "/usr", "/usr"]
    for name in _SYSTEM:
        path = Path("/", name)
        if path.is_symlink():
            words += ["--symlink", str(path.readlink()), str(path)]
        elif path.is_dir():
            words += ["--ro-bind", str(path), str(path)]
    for file in ("/etc/alternatives", "/etc/ld.so.cache"):
        words += ["--ro-bind-try", file, file]
    return words


def _read_available(descriptor: int) -> bytes:
    os.set_blocking(descriptor, False)
    try:
        return os.read(descriptor, 65536)
    except BlockingIOError:
        return b""


def _decode_signal(result: ProgramResult) -> ProgramResult:
    """bubblewrap reports a death by signal n as exit code 128 + n."""
    if result.reason is not ExitReason.EXITED or result.exit_code is None or result.exit_code <= 128:
        return result
    return dataclasses.replace(result, reason=ExitReason.KILLED, exit_code=None, signal=result.exit_code - 128)
