"""Hostile programs at every level that there is here."""

import asyncio
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator

import pytest

from benchmarks.attacks import NOT_STOPPED_BY_PLAIN, alive, attack, attacks, end, host, without_isolation
from benchmarks.hostile import ALL
from roll.sandbox.base import Program, ProgramResult, ResourceLimits
from roll.sandbox.level import BUBBLEWRAP, PLAIN, unavailable_reason

pytestmark = pytest.mark.slow

SURELY_NOT_STOPPED_BY_PLAIN = frozenset({
    "connect to the host", "daemon", "see a process of the host", "read a file of the host", "many files",
    "see the host's processes", "read the list of users",
})  # fmt: skip


@pytest.fixture(scope="module")
def machine() -> Iterator[dict[str, object]]:
    with host() as found:
        yield found


def loudly_without_bubblewrap() -> None:
    if reason := unavailable_reason():
        print(f"\nTHE HOSTILE SUITE WAS NOT RUN IN BUBBLEWRAP: {reason}", file=sys.__stderr__)
        pytest.skip(f"bubblewrap does not work here: {reason}")


def test_there_are_enough_of_them() -> None:
    assert len(ALL) >= 40
    assert ALL.keys() >= NOT_STOPPED_BY_PLAIN


@pytest.mark.sweep(keep=12)
@pytest.mark.parametrize("name", ALL)
def test_bubblewrap_stops(name: str, machine: dict[str, object]) -> None:
    loudly_without_bubblewrap()
    tried = attack(BUBBLEWRAP, ALL[name], machine)
    end(tried.left)
    assert not tried.succeeded and tried.bounded, tried
    assert b"SyntaxError" not in tried.outcome.stderr and b"NameError" not in tried.outcome.stderr, tried


@pytest.mark.sweep
def test_the_plain_level_stops_every_attack_not_listed(machine: dict[str, object]) -> None:
    tried = attacks(PLAIN, without_isolation(ALL), machine)
    assert all(each.bounded for each in tried.values()), {name for name in tried if not tried[name].bounded}
    found = {name for name, each in tried.items() if each.succeeded}
    assert found <= NOT_STOPPED_BY_PLAIN, found - NOT_STOPPED_BY_PLAIN
    assert found >= SURELY_NOT_STOPPED_BY_PLAIN, "the attacks do not attack"


def test_a_neighbour_of_a_fork_bomb_forks_and_ends_in_time(machine: dict[str, object]) -> None:
    loudly_without_bubblewrap()
    bomb = Program(argv=("python3", "-I", "-S", "-c", ALL["fork bomb that doubles"].source))
    quick = "import os\nfor _ in range(5):\n    if os.fork() == 0: os._exit(0)\n    os.wait()\nprint('well')"

    async def both() -> list[ProgramResult]:
        bombs = [asyncio.create_task(BUBBLEWRAP.run(bomb, ResourceLimits(wall_s=1.5, processes=16))) for _ in range(2)]
        await asyncio.sleep(0.5)
        found = await BUBBLEWRAP.run(
            Program(argv=("python3", "-I", "-S", "-c", quick)), ResourceLimits(wall_s=20.0, processes=16)
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
        task = asyncio.create_task(BUBBLEWRAP.run(program, ResourceLimits(wall_s=60.0)))
        while not alive(mark) and not task.done():
            await asyncio.sleep(0.1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    before = len(os.listdir("/proc/self/fd"))
    asyncio.run(cancelled())
    assert alive(mark) == ()
    assert len(os.listdir("/proc/self/fd")) == before


def test_nothing_outlives_a_parent_that_is_killed() -> None:
    loudly_without_bubblewrap()
    mark = uuid.uuid4().hex
    source = (
        "from roll.sandbox.level import run\nfrom roll.sandbox.base import *\n"
        f"program = Program(argv=('python3', '-I', '-c', 'import time; time.sleep(60)', {mark!r}))\n"
        "run(program, ResourceLimits(wall_s=60.0))"
    )
    with subprocess.Popen([sys.executable, "-c", source]) as parent:
        deadline = time.monotonic() + 120
        while len(alive(mark)) < 3 and time.monotonic() < deadline:
            time.sleep(0.1)
        started = alive(mark)
        parent.kill()
    assert len(started) >= 3
    deadline = time.monotonic() + 120
    while alive(mark) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert alive(mark) == ()
