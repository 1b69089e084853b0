"""Hostile programs at every level that there is here."""

import asyncio
import dataclasses
import os
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from roll.sandbox.base import Ended, Limits, Outcome, Program
from roll.sandbox.level import BUBBLEWRAP, PLAIN, Level, why_not
from roll.sandbox.system import as_nobody
from tests.sandbox.hostile import ALL, Hostile

LIMITS = Limits(wall_s=3.0, memory_bytes=256 * 2**20, processes=16, output_bytes=2**16, file_bytes=2**20)
SLACK_S = 1.0

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
SURELY_NOT_STOPPED_BY_PLAIN = frozenset({
    "connect to the host", "daemon", "see a process of the host", "read a file of the host", "many files",
    "see the host's processes", "read who there is",
})  # fmt: skip


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, object]]:
    """A machine with something to attack."""
    secret = Path(f"/var/tmp/roll-hostile-{uuid.uuid4().hex}")
    secret.write_text("secret")
    secret.chmod(0o644)
    name = f"roll-hostile-{uuid.uuid4().hex}"
    os.environ["ROLL_HOSTILE"] = "1"
    victim = subprocess.Popen([*as_nobody(), "sleep", "600"])
    with socket.socket() as listening, socket.socket(socket.AF_UNIX) as abstract, secret.open("rb") as opened:
        os.set_inheritable(opened.fileno(), True)
        listening.bind(("127.0.0.1", 0))
        listening.listen(64)
        abstract.bind(f"\0{name}")
        abstract.listen(64)
        yield {"port": listening.getsockname()[1], "name": name, "secret": secret, "victim": victim.pid}
    assert victim.poll() is None, "something killed a process of the host"
    victim.kill()
    victim.wait()
    del os.environ["ROLL_HOSTILE"]
    secret.unlink()


def attack(level: Level, hostile: Hostile, host: dict[str, object]) -> tuple[Outcome, list[int]]:
    """What became of it, and which processes it left behind."""
    mark = uuid.uuid4().hex
    source = hostile.source.format(**host) if "{" in hostile.source else hostile.source
    program = Program(argv=("python3", "-I", "-S", "-c", source, mark), stdin=b"input")
    limits = dataclasses.replace(LIMITS, wall_s=1.0) if hostile.slow else LIMITS
    outcome = asyncio.run(level.run(program, limits))
    assert outcome.wall_s < limits.wall_s + SLACK_S
    assert len(outcome.stdout) <= limits.output_bytes and len(outcome.stderr) <= limits.output_bytes
    if hostile.slow:
        assert outcome.ended in (Ended.TIMED_OUT, Ended.KILLED), outcome
    return outcome, alive(mark)


def alive(mark: str) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if mark.encode() in (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                pass  # it has ended
    return found


def loudly_without_bubblewrap() -> None:
    if reason := why_not():
        print(f"\nTHE HOSTILE SUITE WAS NOT RUN IN BUBBLEWRAP: {reason}", file=sys.__stderr__)
        pytest.skip(f"bubblewrap does not work here: {reason}")


def test_there_are_enough_of_them() -> None:
    assert len(ALL) >= 40
    assert ALL.keys() >= NOT_STOPPED_BY_PLAIN


@pytest.mark.parametrize("name", ALL)
def test_bubblewrap_stops(name: str, host: dict[str, object]) -> None:
    loudly_without_bubblewrap()
    outcome, left = attack(BUBBLEWRAP, ALL[name], host)
    assert b"BREACH" not in outcome.stdout, outcome
    assert b"SyntaxError" not in outcome.stderr and b"NameError" not in outcome.stderr, outcome
    assert left == []


def test_limits_alone_stop_all_but_what_is_on_the_list(host: dict[str, object]) -> None:
    through: set[str] = set()
    for name, hostile in ALL.items():
        if hostile.deadly or name in OUTSIDE:
            continue
        outcome, left = attack(PLAIN, hostile, host)
        if b"BREACH" in outcome.stdout or left:
            through.add(name)
        for number in left:
            subprocess.run(["kill", "-9", str(number)], capture_output=True, check=False)
    assert through <= NOT_STOPPED_BY_PLAIN, through - NOT_STOPPED_BY_PLAIN
    assert through >= SURELY_NOT_STOPPED_BY_PLAIN, "the attacks do not attack"


def test_a_neighbour_of_a_fork_bomb_forks_and_ends_in_time(host: dict[str, object]) -> None:
    loudly_without_bubblewrap()
    bomb = Program(argv=("python3", "-I", "-S", "-c", ALL["fork bomb that doubles"].source))
    quick = "import os\nfor _ in range(5):\n    if os.fork() == 0: os._exit(0)\n    os.wait()\nprint('well')"

    async def both() -> list[Outcome]:
        bombs = [asyncio.create_task(BUBBLEWRAP.run(bomb, Limits(wall_s=1.5, processes=16))) for _ in range(2)]
        await asyncio.sleep(0.5)
        found = await BUBBLEWRAP.run(
            Program(argv=("python3", "-I", "-S", "-c", quick)), Limits(wall_s=5.0, processes=16)
        )
        await asyncio.gather(*bombs)
        return [found]

    (found,) = asyncio.run(both())
    assert found.succeeded and found.stdout == b"well\n", found


def test_a_cancelled_run_leaves_nothing_behind() -> None:
    loudly_without_bubblewrap()
    mark = uuid.uuid4().hex
    program = Program(argv=("python3", "-I", "-S", "-c", "import time\ntime.sleep(60)", mark))

    async def cancelled() -> None:
        task = asyncio.create_task(BUBBLEWRAP.run(program, Limits(wall_s=60.0)))
        await asyncio.sleep(0.5)
        assert alive(mark)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    before = len(os.listdir("/proc/self/fd"))
    asyncio.run(cancelled())
    assert alive(mark) == []
    assert len(os.listdir("/proc/self/fd")) == before


def test_nothing_outlives_a_parent_that_is_killed() -> None:
    loudly_without_bubblewrap()
    mark = uuid.uuid4().hex
    source = (
        "from roll.sandbox.level import run\nfrom roll.sandbox.base import *\n"
        f"run(Program(argv=('python3', '-I', '-c', 'import time; time.sleep(60)', {mark!r})), Limits(wall_s=60.0))"
    )
    with subprocess.Popen([sys.executable, "-c", source]) as parent:
        deadline = time.monotonic() + 20
        while len(alive(mark)) < 3 and time.monotonic() < deadline:
            time.sleep(0.1)
        started = alive(mark)
        parent.kill()
    assert len(started) >= 3
    deadline = time.monotonic() + 5
    while alive(mark) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert alive(mark) == []
