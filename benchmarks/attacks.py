"""The hostile programs of `benchmarks.hostile` put to a level of the sandbox, on a machine with something to attack."""

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
from roll.sandbox.base import Ended, Limits, Outcome, Program
from roll.sandbox.level import Level, wait_for
from roll.sandbox.system import as_nobody

LIMITS = Limits(wall_s=3.0, memory_bytes=256 * 2**20, processes=16, output_bytes=2**16, file_bytes=2**20)
SLACK_S = 1.0
"""What the clock of a busy machine may add to a limit."""
GRACE_S = 0.25
"""How long the kernel may take to kill what was left in a sandbox that has ended; daemons of the suite live longer."""

NOT_STOPPED_BY_PLAIN = frozenset({
    "connect to the host", "connect to the world", "connect to an abstract socket of the host",
    "send a datagram to the world", "resolve a name", "see other interfaces", "daemon",
    "daemon that keeps the output open", "see a process of the host", "stop a process of the host",
    "limit a process of the host", "trace a process of the host", "read the memory of a process of the host",
    "memory in files without a name", "memory in system v segments", "many files", "many files in shared memory",
    "read a file of the host", "read it by a link", "read it by going up", "read it through a process's root",
    "read it through a process's directory", "read who there is", "read the environment", "see the host's processes",
    "make a user namespace", "make a namespace by cloning", "use the kernel's keys", "load a program into the kernel",
    "watch the processor", "use the ring", "kill the parent", "kill everyone", "output flood of a child",
})  # fmt: skip
"""What may get through without isolation; everything else must be stopped there too."""
OUTSIDE = frozenset({"connect to the world", "send a datagram to the world", "resolve a name"})
"""Not tried without isolation: no test talks to anyone but this machine."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Attack:
    """What became of a hostile program."""

    outcome: Outcome
    left: tuple[int, ...]
    """Processes of it that lived on."""
    bounded: bool
    """Its time and its output were cut at their limits."""

    @property
    def succeeded(self) -> bool:
        """It did what it was written for, or lives on."""
        return b"BREACH" in self.outcome.stdout or bool(self.left)


@contextlib.contextmanager
def host() -> Generator[dict[str, object]]:
    """A machine with something to attack, by what the programs call it."""
    secret = Path(f"/var/tmp/roll-hostile-{uuid.uuid4().hex}")
    secret.write_text("secret", encoding="utf-8")
    secret.chmod(0o644)
    name = f"roll-hostile-{uuid.uuid4().hex}"
    os.environ["ROLL_HOSTILE"] = "1"
    victim = subprocess.Popen([*as_nobody(), "sleep", "600"])
    try:
        with socket.socket() as listening, socket.socket(socket.AF_UNIX) as abstract, secret.open("rb") as opened:
            os.set_inheritable(opened.fileno(), True)
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


def attack(level: Level, hostile: Hostile, machine: Mapping[str, object]) -> Attack:
    """Run one hostile program. What it left behind is still there."""
    mark = uuid.uuid4().hex
    source = hostile.source.format(**machine) if "{" in hostile.source else hostile.source
    program = Program(argv=("python3", "-I", "-S", "-c", source, mark), stdin=b"input")
    limits = dataclasses.replace(LIMITS, wall_s=1.0) if hostile.slow else LIMITS
    outcome = wait_for(level.run(program, limits))
    in_time = outcome.wall_s < limits.wall_s + SLACK_S
    in_size = max(len(outcome.stdout), len(outcome.stderr)) <= limits.output_bytes
    ended = not hostile.slow or outcome.ended in (Ended.TIMED_OUT, Ended.KILLED)
    return Attack(outcome=outcome, left=_left(mark), bounded=in_time and in_size and ended)


def _left(mark: str) -> tuple[int, ...]:
    """Processes that live on; one that the kernel is about to kill does not."""
    deadline = time.monotonic() + GRACE_S
    while (found := alive(mark)) and time.monotonic() < deadline:
        time.sleep(0.01)
    return found


def alive(mark: str) -> tuple[int, ...]:
    """Processes with this word among their arguments."""
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):  # it has ended
                if mark.encode() in (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
    return tuple(found)


def end(processes: tuple[int, ...]) -> None:
    """Kill what an attack left behind."""
    for number in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(number, signal.SIGKILL)


def attacks(level: Level, programs: Mapping[str, Hostile], machine: Mapping[str, object]) -> dict[str, Attack]:
    """All of them one after the other; nothing that they left behind lives on."""
    found: dict[str, Attack] = {}
    for name, hostile in programs.items():
        found[name] = attack(level, hostile, machine)
        end(found[name].left)
    return found


def without_isolation(programs: Mapping[str, Hostile]) -> dict[str, Hostile]:
    """Those that may be tried with limits alone: none that would kill others, none that talks to the world."""
    return {name: each for name, each in programs.items() if not each.deadly and name not in OUTSIDE}
