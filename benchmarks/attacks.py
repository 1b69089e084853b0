"""Runs the hostile programs of `benchmarks.hostile` at a level of the sandbox, on a host prepared with targets."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import socket
import subprocess
import time
import uuid
from collections.abc import Generator, Mapping
from pathlib import Path

from benchmarks.hostile import Hostile
from roll.sandbox.base import ExitReason, Program, ProgramResult, ResourceLimits
from roll.sandbox.level import SandboxLevel, run_coroutine
from roll.sandbox.system import run_as_nobody

LIMITS = ResourceLimits(wall_s=3.0, memory_bytes=256 * 2**20, processes=16, output_bytes=2**16, file_bytes=2**20)
SLACK_S = 1.0
"""Allowance on top of a time limit for a busy machine."""
GRACE_S = 0.25
"""Time allowed to the kernel to kill the processes of an ended sandbox; the daemons of the suite live longer."""

NOT_STOPPED_BY_PLAIN = frozenset({
    "connect to the host", "connect to the world", "connect to an abstract socket of the host",
    "send a datagram to the world", "resolve a name", "see other interfaces", "daemon",
    "daemon that keeps the output open", "see a process of the host", "stop a process of the host",
    "limit a process of the host", "trace a process of the host", "read the memory of a process of the host",
    "memory in files without a name", "memory in system v segments", "many files", "many files in shared memory",
    "read a file of the host", "read it by a link", "read it by a relative path", "read it through a process's root",
    "read it through a process's directory", "read the list of users", "read the environment",
    "see the host's processes", "create a user namespace", "create a namespace by cloning", "use the kernel keyring",
    "load a BPF program", "open performance counters", "use io_uring", "kill the parent", "kill every process",
    "output flood of a child",
})  # fmt: skip
"""Attacks that may succeed without isolation; all others must be stopped there too."""
OUTSIDE = frozenset({"connect to the world", "send a datagram to the world", "resolve a name"})
"""Attacks that reach beyond this machine, so they are not tried without isolation."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Attack:
    """Result of one hostile program."""

    outcome: ProgramResult
    left: tuple[int, ...]
    """Ids of its processes that survived the sandbox."""
    bounded: bool
    """Whether its output stayed within the limit, and the clock ended it where it does not end itself."""
    in_time: bool
    """Whether it ended within `SLACK_S` of the limit; a busy machine adds its own delay."""

    @property
    def succeeded(self) -> bool:
        """Whether it reported a breach, or left a process running."""
        return b"BREACH" in self.outcome.stdout or bool(self.left)


@contextlib.contextmanager
def host() -> Generator[dict[str, object]]:
    """Targets on this machine, by their placeholders in the programs: an open port, a socket, a file, a process."""
    secret = Path(f"/var/tmp/roll-hostile-{uuid.uuid4().hex}")
    secret.write_text("secret", encoding="utf-8")
    secret.chmod(0o644)
    name = f"roll-hostile-{uuid.uuid4().hex}"
    os.environ["ROLL_HOSTILE"] = "1"
    victim = subprocess.Popen([*run_as_nobody(), "sleep", "600"])
    try:
        with socket.socket() as listening, socket.socket(socket.AF_UNIX) as abstract, secret.open("rb") as secret_file:
            os.set_inheritable(secret_file.fileno(), True)
            listening.bind(("127.0.0.1", 0))
            listening.listen(64)
            abstract.bind(f"\0{name}")
            abstract.listen(64)
            yield {"port": listening.getsockname()[1], "name": name, "secret": secret, "victim": victim.pid}
        assert victim.poll() is None, "something killed a process of the host"
    finally:
        victim.kill()
        victim.wait()
        del os.environ["ROLL_HOSTILE"]
        secret.unlink()


def attack(level: SandboxLevel, hostile: Hostile, machine: Mapping[str, object]) -> Attack:
    """Run one hostile program. Processes that survive it keep running; see `end`."""
    mark = uuid.uuid4().hex
    source = hostile.source.format(**machine) if "{" in hostile.source else hostile.source
    program = Program(argv=("python3", "-I", "-S", "-c", source, mark), stdin=b"input")
    limits = dataclasses.replace(LIMITS, wall_s=1.0) if hostile.slow else LIMITS
    outcome = run_coroutine(level.run(program, limits))
    in_time = outcome.wall_s < limits.wall_s + SLACK_S
    in_size = max(len(outcome.stdout), len(outcome.stderr)) <= limits.output_bytes
    ended = not hostile.slow or outcome.reason in (ExitReason.TIMED_OUT, ExitReason.KILLED)
    return Attack(outcome=outcome, left=_survivors(mark), bounded=in_size and ended, in_time=in_time)


def _survivors(mark: str) -> tuple[int, ...]:
    """Ids of the marked processes that are still running after `GRACE_S`."""
    deadline = time.monotonic() + GRACE_S
    while (survivors := alive(mark)) and time.monotonic() < deadline:
        time.sleep(0.01)
    return survivors


def alive(mark: str) -> tuple[int, ...]:
    """Ids of the processes with `mark` among their arguments."""
    processes: list[int] = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):  # it has ended
                if mark.encode() in (entry / "cmdline").read_bytes():
                    processes.append(int(entry.name))
    return tuple(processes)


def end(processes: tuple[int, ...]) -> None:
    """Kill the processes that an attack left running."""
    for number in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(number, signal.SIGKILL)


def attacks(level: SandboxLevel, programs: Mapping[str, Hostile], machine: Mapping[str, object]) -> dict[str, Attack]:
    """Run all programs in sequence, and kill the survivors of each."""
    results: dict[str, Attack] = {}
    for name, hostile in programs.items():
        results[name] = attack(level, hostile, machine)
        end(results[name].left)
    return results


def without_isolation(programs: Mapping[str, Hostile]) -> dict[str, Hostile]:
    """The programs that are safe to run with limits alone: they kill no other process and reach no other machine."""
    return {name: each for name, each in programs.items() if not each.deadly and name not in OUTSIDE}
