"""The level for untrusted code: bubblewrap's namespaces as an unprivileged user, limits, a filter of system calls.

What a program gets: no network; its own process, ipc, host name and user namespaces; the system's programs and
libraries, read-only; one small file system in memory as the only writable place; five devices; no environment but a
path and a home. The process limit does not bind root, so root becomes nobody first. It is set inside of the user
namespace, where only the sandbox's own processes are counted, so neighbours do not take each other's.
"""

from __future__ import annotations

import dataclasses
import functools
import os
from pathlib import Path

from roll.sandbox.base import Ended, Limits, Outcome, Program, SandboxFailed
from roll.sandbox.process import Command, sealed, supervise
from roll.sandbox.seccomp import filter_for
from roll.sandbox.system import NOBODY, PATH, as_nobody, bounded, found

HOME = "/tmp"
_SYSTEM = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
_DEVICES = ("null", "zero", "full", "random", "urandom")


async def run(program: Program, limits: Limits) -> Outcome:
    """What becomes of `program` within `limits`; raises `SandboxFailed` when it could not be started."""
    outer, inner = [*as_nobody(), found("bwrap")], bounded(limits)  # may raise, so before anything is opened
    status_read, status_write = os.pipe2(os.O_CLOEXEC)
    files = {name: sealed(content) for name, content in program.files.items()}
    rules = filter_for(os.uname().machine)
    filters = [sealed(rules)] if rules else []
    argv = [
        *outer,
        *_namespaces(),
        *(["--as-pid-1"] if program.first else []),
        *_places(limits),
        *(word for name, file in files.items() for word in ("--file", str(file), f"{HOME}/{name}")),
        *("--chdir", HOME, "--json-status-fd", str(status_write)),
        *(word for file in filters for word in ("--seccomp", str(file))),
        *("--", *inner, *program.argv),
    ]
    command = Command(argv=argv, stdin=program.stdin, descriptors=[status_write, *files.values(), *filters])
    try:
        outcome = await supervise(command, limits)
        status = _drained(status_read)
    finally:
        os.close(status_read)
    if b'"child-pid"' not in status and outcome.ended is Ended.EXITED:
        said = outcome.stderr.decode(errors="replace").strip()
        raise SandboxFailed(f"sandbox: bubblewrap did not start (it said {said!r}); see roll.sandbox.level")
    return _without_offset(outcome)


def _namespaces() -> list[str]:
    return [
        *("--unshare-user", "--unshare-all", "--die-with-parent", "--new-session", "--clearenv"),
        *("--uid", str(NOBODY), "--gid", str(NOBODY), "--hostname", "sandbox"),
        *("--setenv", "PATH", PATH, "--setenv", "HOME", HOME, "--setenv", "LANG", "C.UTF-8"),
    ]


def _places(limits: Limits) -> list[str]:
    """The file system. Root and `/dev` are made read-only last: both are file systems in memory without a size."""
    devices = (word for name in _DEVICES for word in ("--dev-bind", f"/dev/{name}", f"/dev/{name}"))
    return [
        *_system(),
        *("--proc", "/proc", "--tmpfs", "/dev", *devices, "--symlink", HOME, "/dev/shm"),
        *("--size", str(limits.file_bytes), "--tmpfs", HOME),
        *("--remount-ro", "/dev", "--remount-ro", "/"),
    ]


@functools.cache
def _system() -> list[str]:
    words = ["--ro-bind", "/usr", "/usr"]
    for name in _SYSTEM:
        place = Path("/", name)
        if place.is_symlink():
            words += ["--symlink", str(place.readlink()), str(place)]
        elif place.is_dir():
            words += ["--ro-bind", str(place), str(place)]
    for place in ("/etc/alternatives", "/etc/ld.so.cache"):
        words += ["--ro-bind-try", place, place]
    return words


def _drained(descriptor: int) -> bytes:
    os.set_blocking(descriptor, False)
    try:
        return os.read(descriptor, 65536)
    except BlockingIOError:
        return b""


def _without_offset(outcome: Outcome) -> Outcome:
    """bubblewrap passes a death by signal n on as exit code 128 + n."""
    if outcome.ended is not Ended.EXITED or outcome.exit_code is None or outcome.exit_code <= 128:
        return outcome
    return dataclasses.replace(outcome, ended=Ended.KILLED, exit_code=None, signal=outcome.exit_code - 128)
