"""Workers that a run waits for are named, with the state of their process."""

import asyncio
import os
import signal
import time
from pathlib import Path

import pytest

from roll.cluster.pending import PendingCall, describe_pending
from roll.cluster.process import ProcessCluster, ProcessWorker
from roll.cluster.process_state import describe_exit, describe_state
from roll.cluster.ray.config import RayConfig
from roll.cluster.ray.executor import RayExecutor
from roll.types import Spec
from tests.cluster import ray_workers
from tests.cluster.ray_workers import Worker
from tests.cluster.test_ray import run

WORKER = Spec(f"{ray_workers.__name__}:Worker")


class Calls:
    def __init__(self, *calls: PendingCall) -> None:
        self.calls = calls

    def pending_calls(self) -> tuple[PendingCall, ...]:
        return self.calls


def called(worker: str, age_s: float, *, host: str = "") -> PendingCall:
    return PendingCall(
        worker=worker, method="update", since=time.monotonic() - age_s, pid=4242 if host else 0, host=host
    )


def test_calls_as_old_as_half_the_phase_are_named_the_oldest_first() -> None:
    services = Calls(called("a 0", 40.2), called("a 1", 60.2, host="node7")), Calls(called("b 0", 20.2))
    assert describe_pending(services, "update", 80.0) == (
        "waiting for a 1 (pid 4242 on node7) for 60 s in update, a 0 for 40 s in update"
    )
    assert describe_pending([Calls(called("a 0", 1.0))], "update", 1.0) == "", "a long poll"


def test_in_the_start_of_a_run_also_younger_calls_are_named() -> None:
    """It starts Ray, trainers and generators one after another."""
    services = [Calls(called("a 0", 12.2), called("b 0", 1.0))]
    assert describe_pending(services, "update", 40.0) == ""
    assert describe_pending(services, "start", 40.0) == "waiting for a 0 for 12 s in update"


def test_of_many_workers_four_are_named() -> None:
    line = describe_pending([Calls(*(called(f"a {rank}", 90.0) for rank in range(16)))], "update", 100.0)
    assert line.count(" in update") == 4 and line.endswith(", and 12 others")


def test_an_unknown_signal_and_a_missing_process_are_described() -> None:
    assert describe_exit(7, -11) == ("its process (pid 7) was killed by SIGSEGV", "")
    assert describe_exit(7, -63)[0].endswith("was killed by signal 63")
    assert describe_state(2**22 + 1) == "" and describe_state(os.getpid()) == ""


@pytest.mark.slow
def test_processes_that_start_are_named() -> None:
    async def use() -> None:
        cluster = ProcessCluster[Worker](WORKER, 2, name="reward worker")
        starting = asyncio.ensure_future(cluster.start())
        await asyncio.sleep(0)  # the tasks of the start begin
        await asyncio.sleep(0)
        calls = cluster.pending_calls()
        await starting
        await cluster.stop()
        assert [(call.worker, call.method) for call in calls] == [
            ("reward worker 0", "its start"),
            ("reward worker 1", "its start"),
        ]
        assert not cluster.pending_calls()

    asyncio.run(use())


@pytest.mark.slow
def test_a_stopped_process_is_named_and_its_call_goes_on_after_it_continues() -> None:
    async def use() -> None:
        worker = await ProcessWorker[Worker].start(WORKER, 1, name="reward worker")
        try:
            waiting = asyncio.ensure_future(worker.call(Worker.wait))
            await worker.call(Worker.add, 1)
            await _stopped(worker.pid)
            assert _title(worker.pid).endswith(" reward worker 1")
            line = describe_pending([worker], "update", 30.0)
            assert line.startswith(f"waiting for reward worker 1 (pid {worker.pid}) for 0 s in wait: ")
            assert "the process is stopped (state T)" in line
            os.kill(worker.pid, signal.SIGCONT)
            await worker.call(Worker.wake)
            assert await waiting == "woken" and not worker.pending_calls()
        finally:
            worker.kill("the test is over")

    asyncio.run(use())


@pytest.mark.slow
@pytest.mark.xdist_group("ray")
def test_a_stopped_worker_of_ray_is_named_and_its_call_goes_on_after_it_continues(
    ray_address: str, tmp_path: Path
) -> None:
    executor = RayExecutor(RayConfig(name="tests", directory=tmp_path))
    cluster = executor.cluster(WORKER, 1, role="actor_train")

    async def use() -> None:
        await executor.start()
        waiting = asyncio.create_task(cluster.at(0, Worker.wait))
        await cluster.at(0, Worker.add, 1)
        await _stopped(cluster.pids[0])
        assert "actor_train 0 (tests)" in _title(cluster.pids[0])
        line = describe_pending([executor], "update", 30.0)
        assert line.startswith(f"waiting for actor_train 0 (pid {cluster.pids[0]}) for 0 s in wait: ")
        assert "the process is stopped (state T)" in line
        os.kill(cluster.pids[0], signal.SIGCONT)
        await cluster.at(0, Worker.wake)
        assert await waiting == "woken" and not executor.pending_calls()
        await executor.stop()

    run(use)


def _title(pid: int) -> str:
    """What `ps` shows."""
    return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode().strip()


async def _stopped(pid: int) -> None:
    os.kill(pid, signal.SIGSTOP)
    async with asyncio.timeout(300):
        while not describe_state(pid):
            await asyncio.sleep(0.01)
