"""Processes killed from outside: each failure ends in one line or a replacement, and leaves no process."""

import asyncio
import contextlib
import os
import pickle
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from ray.exceptions import OutOfMemoryError

from roll.cluster.ray.config import RayConfig
from roll.cluster.ray.connection import no_cluster
from roll.cluster.ray.death import death_reason
from roll.cluster.ray.executor import RayExecutor
from roll.errors import WorkerDied
from roll.types import Spec
from tests.cluster import ray_workers
from tests.cluster.ray_workers import Worker
from tests.cluster.test_ray import gone, run

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("ray")]

PLACE = ray_workers.__name__


def test_a_worker_killed_while_it_starts_ends_in_one_line_and_leaves_no_process(
    ray_address: str, tmp_path: Path
) -> None:
    executor = RayExecutor(RayConfig(name="tests", directory=tmp_path))
    executor.cluster(Spec(f"{PLACE}:Starting", {"folder": str(tmp_path)}), 2, role="generator")
    killed: list[int] = []

    async def use() -> None:
        starting = asyncio.create_task(executor.start())
        while len(found := list(tmp_path.glob("*.pid"))) < 2:
            assert not starting.done(), starting.exception()
            await asyncio.sleep(0.01)
        killed.extend(int(path.stem) for path in found)
        os.kill(killed[0], signal.SIGKILL)
        await starting

    with pytest.raises(
        WorkerDied, match=r"^generator \d: its process \(pid \d+\) ended during its start; .*; see there"
    ) as raised:
        run(use)
    assert "\n" not in str(raised.value)
    assert all(gone(pid) for pid in killed), "the one that went on starting was ended as well"


def test_a_dead_worker_is_replaced(ray_address: str, tmp_path: Path) -> None:
    executor = RayExecutor(RayConfig(name="tests", directory=tmp_path))
    cluster = executor.cluster(Spec(f"{PLACE}:Worker", {"bonus": 10}), 2, role="worker")

    async def use() -> None:
        await executor.start()
        before = list(cluster.pids)
        waiting = asyncio.create_task(cluster.at(0, Worker.wait))
        await cluster.at(0, Worker.add, 1)
        os.kill(before[0], signal.SIGKILL)
        with pytest.raises(
            WorkerDied, match=rf"worker 0: its process \(pid {before[0]}\) ended during wait; .*out-of-memory killer"
        ):
            await waiting
        await cluster.replace(0)
        assert await cluster.each(Worker.add, 1) == [11, 12], "made as the one before was"
        assert await cluster.each(Worker.pid) == cluster.pids
        assert cluster.pids[0] != before[0] and cluster.pids[1] == before[1]
        await executor.stop()

    run(use)
    assert cluster.log(0).read_text().count("worker 0: process ") == 2, "one log for both"
    assert all(gone(pid) for pid in cluster.pids)


def test_the_next_replacement_takes_a_spare_process_that_has_imported_the_module(
    ray_address: str, tmp_path: Path
) -> None:
    executor = RayExecutor(RayConfig(name="spares", directory=tmp_path))
    cluster = executor.cluster(Spec(f"{PLACE}:Worker", {"bonus": 10}), 2, role="worker")
    spares: list[int] = []

    async def replace(rank: int) -> None:
        os.kill(cluster.pids[rank], signal.SIGKILL)
        with pytest.raises(WorkerDied):
            await cluster.at(rank, Worker.wait)
        await cluster.replace(rank)
        while not (found := set(titled("ray::worker spare (spares)")) - set(cluster.pids)):
            await asyncio.sleep(0.05)
        spares.extend(found)

    async def use() -> None:
        await executor.start()
        assert not titled("ray::worker spare (spares)"), "none before the first replacement"
        await replace(0)
        await replace(1)
        assert cluster.pids[1] == spares[0] != spares[1]
        assert await cluster.each(Worker.pid) == cluster.pids
        waiting = asyncio.create_task(cluster.at(1, Worker.wait))
        assert await cluster.each(Worker.add, 1) == [11, 12]
        assert sorted(titled("ray::worker 1 (spares)")) == [cluster.pids[1]], "also while a call runs"
        cluster.kill_worker(1, "is in the way")
        with pytest.raises(WorkerDied, match=r"worker 1: .*is in the way and was killed during wait"):
            await waiting
        await executor.stop()

    asyncio.run(asyncio.wait_for(use(), 600))
    assert all(gone(pid) for pid in (*cluster.pids, *spares)), "no spare is left"


def titled(title: str) -> list[int]:
    """Processes with a title that begins so."""
    pids: list[int] = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            pids += [int(path.parent.name)] if path.read_bytes().startswith(title.encode()) else []
    return pids


GONE_AWAY = """\
import asyncio, os, signal, subprocess, sys
from pathlib import Path
from roll.cluster.ray.environment import set_ray_environment
set_ray_environment()
from roll.cluster.ray.config import RayConfig
from roll.cluster.ray.executor import RayExecutor
from roll.errors import RunStopped
from roll.types import Spec
from tests.cluster.ray_workers import Worker

async def main():
    executor = RayExecutor(RayConfig(name="x", directory=Path(sys.argv[1]), watch_s=0.3))
    cluster = executor.cluster(Spec("tests.cluster.ray_workers:Worker"), 1, role="generator")
    await executor.start()
    waiting = asyncio.ensure_future(cluster.at(0, Worker.wait))
    await cluster.at(0, Worker.add, 1)
    listed = subprocess.run(["ps", "-eo", "pid=,sid=,comm="], capture_output=True, text=True).stdout
    servers = [line.split() for line in listed.splitlines() if "gcs_server" in line]
    (server,) = [int(pid) for pid, sid, _ in servers if int(sid) == os.getsid(0)]
    os.kill(server, signal.SIGKILL)
    try:
        async with asyncio.timeout(30):
            await waiting
    except RunStopped as error:
        print("stopped:", error)
    await executor.stop()

asyncio.run(main())
"""


@pytest.mark.sweep
def test_if_ray_itself_is_killed_the_run_stops_with_one_line_and_leaves_no_process(tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    process = subprocess.Popen(
        [sys.executable, "-c", GONE_AWAY, str(tmp_path)],
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root)},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        said, _ = process.communicate(timeout=90)
        assert process.returncode == 0
        (line,) = said.splitlines()
        assert line.startswith("stopped: ray: the cluster at ") and line.endswith("then `roll resume` the run")
        assert all(gone(pid) for pid in of_session(process.pid))
    finally:
        for pid in of_session(process.pid):
            os.kill(pid, signal.SIGKILL)


def of_session(session: int) -> list[int]:
    listed = subprocess.run(["ps", "-eo", "pid=,sid="], capture_output=True, text=True).stdout
    return [int(pid) for pid, sid in map(str.split, listed.splitlines()) if sid == str(session)]


def test_without_an_address_the_hint_is_not_to_leave_it_out() -> None:
    own, other = str(no_cluster(None, "no memory")), str(no_cluster("10.0.0.1:6379", "nothing listens there"))
    assert own.startswith("ray: no cluster could be started here (no memory)") and "leave" not in own
    assert other.endswith("or leave ray.address out")


def test_if_ray_kills_a_worker_for_lack_of_memory_its_numbers_are_in_the_line() -> None:
    error = OutOfMemoryError("Memory on the node was 30GB used / 31GB limit (0.97)\nTop 10 memory users: ...")
    assert death_reason(error) == (
        "Ray killed it for lack of memory: Memory on the node was 30GB used / 31GB limit (0.97)"
    )


def test_the_death_of_a_worker_pickles_with_its_fix() -> None:
    error = pickle.loads(pickle.dumps(WorkerDied("worker 0: ended", "see its log")))
    assert (str(error), error.what) == ("worker 0: ended; see its log", "worker 0: ended")
