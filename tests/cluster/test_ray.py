"""Workers as Ray actors: the same handles, and a worker that dies or cannot start leaves no process."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from roll.cluster.ray.actor import WorkerSlot
from roll.cluster.ray.cluster import RayCluster
from roll.cluster.ray.config import RayConfig
from roll.cluster.ray.environment import check_interpreter
from roll.cluster.ray.executor import RayExecutor
from roll.errors import ConfigError, RewardFailed, RunStopped, WorkerDied
from roll.types import Spec
from tests.cluster import ray_workers
from tests.cluster.ray_workers import Worker
from tests.engines.models import batch_of

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("ray")]

PLACE = ray_workers.__name__


@pytest.fixture(scope="module")
def workers(ray_address: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayCluster[Worker]]:
    """Two of them, up for all tests of this file."""
    executor = RayExecutor(RayConfig(name="tests", directory=tmp_path_factory.mktemp("run")))
    cluster = executor.cluster(Spec(f"{PLACE}:Worker", {"bonus": 10}), 2, role="worker")
    asyncio.run(executor.start())
    yield cluster
    asyncio.run(executor.stop())


def run(use: Callable[[], Awaitable[Any]]) -> Any:
    async def within() -> Any:
        async with asyncio.timeout(60):
            return await use()

    return asyncio.run(within())


def gone(pid: int) -> bool:
    """Whether the process ends, given a moment."""
    for _ in range(200):
        if not Path(f"/proc/{pid}").exists():
            return True
        time.sleep(0.05)
    return False


def test_calls_have_the_same_results_as_inline_calls(workers: RayCluster[Worker]) -> None:
    async def use() -> None:
        assert workers.size == 2
        assert await workers.each(Worker.add, 1, twice=True) == [22, 24]
        assert await workers.scatter(Worker.add, [1, 2], twice=True) == [22, 26]
        assert await workers.at(1, Worker.add, 5) == 16
        with pytest.raises(AssertionError, match="3 shards for 2 workers"):
            await workers.scatter(Worker.add, [1, 2, 3])

    run(use)


def test_each_worker_is_a_process_with_our_directory_and_paths(workers: RayCluster[Worker]) -> None:
    async def use() -> None:
        pids = await workers.each(Worker.pid)
        assert len(set(pids)) == 2 and os.getpid() not in pids and pids == workers.pids
        folder, threads, first = await workers.at(0, Worker.surroundings)
        assert folder == os.getcwd() and threads == os.environ.get("OMP_NUM_THREADS")
        assert first in {str(Path(entry).absolute()) for entry in sys.path}

    run(use)


def test_a_waiting_call_does_not_block_another_on_the_same_worker(workers: RayCluster[Worker]) -> None:
    async def use() -> None:
        waiting = asyncio.create_task(workers.at(0, Worker.wait))
        assert await workers.at(0, Worker.add, 1) == 11 and not waiting.done()
        await workers.at(0, Worker.wake)
        assert await waiting == "woken"

    run(use)


def test_cancelling_a_call_cancels_it_there(workers: RayCluster[Worker]) -> None:
    async def use() -> None:
        waiting = asyncio.create_task(workers.at(1, Worker.wait))
        await workers.at(1, Worker.add, 1)
        waiting.cancel()
        await asyncio.wait([waiting])
        while not await workers.at(1, Worker.was_cancelled):
            await asyncio.sleep(0.01)

    run(use)


def test_an_error_of_a_worker_is_raised_here_and_the_worker_stays_usable(workers: RayCluster[Worker]) -> None:
    async def use() -> None:
        with pytest.raises(RewardFailed, match=r"^no score$"):
            await workers.at(0, Worker.fail, "no score")
        with pytest.raises(ZeroDivisionError) as raised:
            await workers.at(0, Worker.stumble)
        assert "in worker 0:" in raised.value.__notes__[0] and "return 1 / 0" in raised.value.__notes__[0]
        with pytest.raises(TypeError, match="lock cannot be sent"):
            await workers.at(0, Worker.odd)
        assert await workers.at(0, Worker.add, 1) == 11

    run(use)
    written = workers.log(0).read_text()
    assert "worker 0 is here" in written and "ZeroDivisionError" in written


def test_a_worker_may_write_into_tensors_it_receives(workers: RayCluster[Worker]) -> None:
    batch = batch_of([[1, 2, 3], [4, 5]], rewards=torch.tensor([0.5, 1.5]))

    async def use() -> None:
        found = await workers.at(0, Worker.doubled, batch)
        assert found["ids"].tolist() == [2, 4, 6, 8, 10] and found["rewards"].tolist() == [1.0, 3.0]
        assert torch.equal(found["trained"], batch.trained)
        found["ids"][0] = 7  # ours to write

    run(use)
    assert batch.ids.tolist() == [1, 2, 3, 4, 5]


def test_large_arguments_are_stored_once_and_each_worker_has_its_own_copy(workers: RayCluster[Worker]) -> None:
    rows = np.ones(300_000, np.int64)

    async def use() -> None:
        assert await workers.each(Worker.total, rows) == [300_000] * 2
        assert await workers.scatter(Worker.total, [rows, rows * 2]) == [300_000, 600_000]
        assert await workers.at(0, Worker.total, rows[:10]) == 10

    run(use)
    assert rows.all()


def test_a_worker_that_dies_is_named_with_the_end_of_its_log(ray_address: str, tmp_path: Path) -> None:
    executor = RayExecutor(RayConfig(name="tests", directory=tmp_path))
    cluster = executor.cluster(Spec(f"{PLACE}:Worker"), 1, role="generator")

    async def use() -> None:
        await executor.start()
        waiting = asyncio.create_task(cluster.at(0, Worker.wait))
        with pytest.raises(WorkerDied) as raised:
            await cluster.at(0, Worker.die)
        assert str(raised.value).startswith(
            f"generator 0: its process (pid {cluster.pids[0]}) ended during die; Worker "
        )
        assert "out-of-memory killer is the usual cause: see dmesg" in str(raised.value)
        assert "\n" not in str(raised.value)
        assert f"{tmp_path}/logs/generator-0.log ends with: these are my last words;" in str(raised.value)
        with pytest.raises(WorkerDied, match="during wait"):
            await waiting
        with pytest.raises(WorkerDied, match="during add"):
            await cluster.at(0, Worker.add, 1)
        await executor.stop()

    run(use)


def test_once_ray_is_gone_calls_in_flight_and_later_ones_raise(ray_address: str, tmp_path: Path) -> None:
    executor = RayExecutor(RayConfig(name="tests", directory=tmp_path))
    cluster = executor.cluster(Spec(f"{PLACE}:Worker"), 1, role="generator")

    async def use() -> None:
        await executor.start()
        waiting = asyncio.create_task(cluster.at(0, Worker.wait))
        await cluster.at(0, Worker.add, 1)
        cluster.fail("ray: gone away")
        await asyncio.wait([waiting], timeout=300)
        assert isinstance(waiting.exception(), RunStopped)
        with pytest.raises(RunStopped, match="ray: gone away"):
            await cluster.at(0, Worker.add, 1)
        await executor.stop()

    run(use)
    assert gone(cluster.pids[0])


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("Picky", WorkerDied, r"maker 1: cannot start \(ValueError: worker 1 lacks something\); see .*/maker-1.log$"),
        ("Refused", ConfigError, r"^worker \d: the file is wrong; change it$"),
        ("Nobody", WorkerDied, r"maker \d: cannot start \(AttributeError: module .* has no attribute 'Nobody'\)"),
    ],
)
def test_a_worker_that_cannot_start_raises_one_line_and_leaves_no_process(
    ray_address: str, tmp_path: Path, name: str, error: type[Exception], message: str
) -> None:
    log = tmp_path / "logs/maker-0.log"
    given = {"log": str(log)} if name == "Picky" else {}
    executor = RayExecutor(RayConfig(name="tests", directory=tmp_path))
    executor.cluster(Spec(f"{PLACE}:{name}", given), 2, role="maker")
    with pytest.raises(error, match=message) as raised:
        run(executor.start)
    assert "\n" not in str(raised.value)
    told = [path.read_text().split()[3] for path in (tmp_path / "logs").iterdir() if path.read_text()]
    assert told and all(gone(int(pid)) for pid in told), "`maker 0: process 123 on host`"


def test_logs_of_an_earlier_run_are_deleted_unless_it_is_resumed(ray_address: str, tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    for fresh, left in ((False, {"old-7.log", "worker-0.log"}), (True, {"worker-0.log"})):
        (tmp_path / "logs/old-7.log").write_text("earlier")
        executor = RayExecutor(RayConfig(name="tests", directory=tmp_path, fresh=fresh))
        cluster = executor.cluster(Spec(f"{PLACE}:Worker"), 1, role="worker")
        run(executor.start)
        run(executor.stop)
        assert {path.name for path in (tmp_path / "logs").iterdir()} == left
        assert gone(cluster.pids[0])


def test_an_address_where_nothing_listens_is_refused_at_once(tmp_path: Path) -> None:
    script = (
        "import asyncio; from pathlib import Path; from roll.cluster.ray.config import RayConfig\n"
        "from roll.cluster.ray.executor import RayExecutor\n"
        f"asyncio.run(RayExecutor(RayConfig(name='x', directory=Path('{tmp_path}'), address='127.0.0.1:1')).start())"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300)
    assert "NoCluster: ray.address: no Ray cluster at 127.0.0.1:1 (nothing listens there); start one" in done.stderr


def test_a_worker_that_does_not_start_in_time_is_refused(ray_address: str, tmp_path: Path) -> None:
    executor = RayExecutor(RayConfig(name="tests", directory=tmp_path, start_timeout_s=0.01))
    executor.cluster(Spec(f"{PLACE}:Worker"), 1, role="slow")
    with pytest.raises(ConfigError, match=r"slow 0: did not start within 0.01 s \(Ray has \d+ CPUs free\)"):
        run(executor.start)


def test_an_unsuitable_interpreter_is_refused(tmp_path: Path) -> None:
    fake = tmp_path / "python"
    fake.write_text("#!/bin/sh\necho 3.9 1.0\n")
    fake.chmod(0o755)
    empty = tmp_path / "empty"
    empty.write_text("#!/bin/sh\necho \"ModuleNotFoundError: No module named 'ray'\" >&2\nexit 1\n")
    empty.chmod(0o755)
    for program, message in (
        (tmp_path / "none", "actor_infer.python: no program .*none; give the path"),
        (fake, "has Python 3.9 and Ray 1.0, this process"),
        (empty, "cannot import roll and ray .*No module named 'ray'.*; install roll there"),
    ):
        with pytest.raises(ConfigError, match=message):
            asyncio.run(check_interpreter(str(program), "actor_infer.python", "2.60.0"))


def test_a_role_may_have_another_interpreter(ray_address: str, tmp_path: Path) -> None:
    wrapper = tmp_path / "python"
    wrapper.write_text(f'#!/bin/sh\nOMP_NUM_THREADS=1 OWN=1 exec {sys.executable} "$@"\n')
    wrapper.chmod(0o755)
    executor = RayExecutor(RayConfig(name="tests", directory=tmp_path))
    cluster = executor.cluster(Spec(f"{PLACE}:Worker"), 1, role="worker", python=str(wrapper))
    run(executor.start)
    assert b"OWN=1" in Path(f"/proc/{cluster.pids[0]}/environ").read_bytes()
    run(executor.stop)


def test_a_worker_runs_on_the_node_of_its_slot_and_sees_only_its_devices(ray_address: str, tmp_path: Path) -> None:
    import ray

    (node,) = [found["NodeID"] for found in ray.nodes()]
    slots = {
        "worker": [WorkerSlot(node=node, visible=(1, 3)), WorkerSlot(visible=())],
        "other": [WorkerSlot(visible=(7,))],
    }
    executor = RayExecutor(RayConfig(name="tests", directory=tmp_path, slots=slots))
    placed = executor.cluster(Spec(f"{PLACE}:Worker"), 2, role="worker")
    anywhere = executor.cluster(Spec(f"{PLACE}:Worker"), 1, role="unnamed")

    async def use() -> None:
        await executor.start()
        assert await placed.each(Worker.gpus) == ["1,3", ""]
        assert await anywhere.each(Worker.gpus) == [os.environ.get("CUDA_VISIBLE_DEVICES")]
        os.kill(placed.pids[0], signal.SIGKILL)
        await placed.replace(0)
        assert await placed.at(0, Worker.gpus) == "1,3", "and so does the one that takes its place"
        await executor.stop()

    run(use)
