"""Workers in processes of their own: the same handles, and none that hangs or dies holds anyone up."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from roll.cluster.processes import ProcessCluster, TimedOut
from roll.errors import RewardFailed, WorkerDied
from roll.types import Call


class Worker:
    def __init__(self, rank: int, *, bonus: int = 0) -> None:
        self.rank, self.bonus = rank, bonus

    async def add(self, number: int, *, twice: bool = False) -> int:
        return (self.rank + self.bonus + number) * (2 if twice else 1)

    async def whereabouts(self) -> tuple[int, bool]:
        return os.getpid(), threading.current_thread() is threading.main_thread()

    async def hang(self, seconds: float) -> str:
        time.sleep(seconds)
        return "awake"

    async def hang_with_a_child(self) -> int:
        child = subprocess.Popen(["sleep", "1001"])
        time.sleep(1000)
        return child.pid

    async def die(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    async def fail(self, message: str) -> None:
        raise RewardFailed(message)

    async def odd(self) -> object:
        return threading.Lock()

    async def chat(self) -> str:
        sys.stdout.write("something that user code prints\n")
        return "said"


class Broken:
    def __init__(self, rank: int) -> None:
        raise ValueError(f"worker {rank} cannot be made")


def within(
    use: Callable[[ProcessCluster[Worker]], Awaitable[Any]],
    *,
    size: int = 2,
    limit_s: float | None = 20.0,
    **given: Any,
) -> Any:
    """What `use` finds on a cluster that is ended afterwards."""

    async def run() -> Any:
        cluster = ProcessCluster[Worker](Call(f"{__name__}:Worker", given), size, name="worker", limit_s=limit_s)
        try:
            async with asyncio.timeout(60):
                await cluster.start()
                return await use(cluster)
        finally:
            await cluster.stop()

    return asyncio.run(run())


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_calls_go_as_with_workers_that_are_here() -> None:
    async def use(cluster: ProcessCluster[Worker]) -> None:
        assert cluster.size == 2
        assert await cluster.each(Worker.add, 1, twice=True) == [22, 24]
        assert await cluster.scatter(Worker.add, [1, 2]) == [11, 13]
        assert await cluster.at(1, Worker.add, 5) == 16
        assert await cluster.any(Worker.add, 5) in (15, 16)
        assert await cluster.any(Worker.chat) == "said"

    within(use, bonus=10)


def test_each_worker_is_a_process_and_calls_run_in_its_main_thread() -> None:
    found = within(lambda cluster: cluster.each(Worker.whereabouts))
    pids = {pid for pid, _ in found}
    assert len(pids) == 2 and os.getpid() not in pids and all(main for _, main in found)
    assert not any(alive(pid) for pid in pids), "stop leaves nobody behind"


def test_what_a_worker_raises_is_raised_here_and_it_goes_on() -> None:
    async def use(cluster: ProcessCluster[Worker]) -> None:
        before = await cluster.at(0, Worker.whereabouts)
        with pytest.raises(RewardFailed, match="no score"):
            await cluster.at(0, Worker.fail, "no score")
        with pytest.raises(TypeError, match="cannot be sent"):
            await cluster.at(0, Worker.odd)
        assert await cluster.at(0, Worker.whereabouts) == before

    within(use, size=1)


def test_a_call_past_its_limit_is_ended_from_outside_and_its_worker_replaced() -> None:
    async def use(cluster: ProcessCluster[Worker]) -> None:
        old = (await cluster.at(0, Worker.whereabouts))[0]
        began = time.monotonic()
        with pytest.raises(TimedOut, match=r"worker 0: hang did not end within 0.5 s"):
            await cluster.at(0, Worker.hang, 1000)
        assert time.monotonic() - began < 5
        assert not alive(old)
        assert await cluster.at(0, Worker.add, 1) == 1

    within(use, size=1, limit_s=0.5)


def test_what_a_killed_worker_had_started_dies_with_it() -> None:
    def sleepers() -> int:
        # A time that no other test sleeps for: others run beside this one.
        return subprocess.run(["pgrep", "-fc", "^sleep 1001$"], capture_output=True, text=True).stdout.strip()

    async def use(cluster: ProcessCluster[Worker]) -> None:
        with pytest.raises(TimedOut):
            await cluster.at(0, Worker.hang_with_a_child)

    before = sleepers()
    within(use, size=1, limit_s=0.5)
    ended = time.monotonic() + 20  # of a thousand seconds: a killed process is listed until the system has buried it
    while sleepers() != before and time.monotonic() < ended:
        time.sleep(0.05)
    assert sleepers() == before


def test_a_worker_that_dies_is_named_and_replaced() -> None:
    async def use(cluster: ProcessCluster[Worker]) -> None:
        with pytest.raises(WorkerDied, match="worker 0: its process ended during die"):
            await cluster.at(0, Worker.die)
        assert await cluster.at(0, Worker.add, 1) == 1

    within(use, size=1)


def test_one_that_hangs_does_not_hold_up_the_others() -> None:
    async def use(cluster: ProcessCluster[Worker]) -> int:
        hanging = asyncio.ensure_future(cluster.any(Worker.hang, 1000))
        await asyncio.sleep(0)
        found = sum([await cluster.any(Worker.add, 0) >= 0 for _ in range(20)])
        assert not hanging.done()
        hanging.cancel()
        await asyncio.wait([hanging])
        return found

    assert within(use) == 20


def test_an_answer_that_nobody_waits_for_any_more_is_not_taken_for_the_next() -> None:
    async def use(cluster: ProcessCluster[Worker]) -> None:
        waiting = asyncio.ensure_future(cluster.at(0, Worker.hang, 0.2))
        await asyncio.sleep(0.05)
        waiting.cancel()
        await asyncio.wait([waiting])
        await asyncio.sleep(0.3)
        assert await cluster.at(0, Worker.add, 7) == 7

    within(use, size=1)


def test_a_worker_that_cannot_be_made_says_why() -> None:
    async def run() -> None:
        cluster = ProcessCluster[Broken](Call(f"{__name__}:Broken"), 1, name="broken")
        try:
            await cluster.start()
        finally:
            await cluster.stop()

    with pytest.raises(ValueError, match="worker 0 cannot be made"):
        asyncio.run(run())


def test_workers_end_with_the_process_that_started_them() -> None:
    script = (
        "import asyncio, os, signal\n"
        "from roll.cluster.processes import ProcessCluster\n"
        "from roll.types import Call\n"
        f"from {__name__} import Worker\n"
        "async def go():\n"
        f"    cluster = ProcessCluster(Call('{__name__}:Worker'), 1, name='w')\n"
        "    print((await cluster.at(0, Worker.whereabouts))[0], flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "asyncio.run(go())\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment, timeout=60)
    assert done.returncode == -signal.SIGKILL, done.stderr
    pid = int(done.stdout)
    for _ in range(100):
        if not alive(pid):
            return
        time.sleep(0.05)
    raise AssertionError("the worker outlived the process that started it")


def test_a_call_cancelled_while_its_worker_starts_leaves_no_answer_for_the_next() -> None:
    async def use(cluster: ProcessCluster[Worker]) -> None:
        for moment_s in (0.0, 0.001, 0.01, 0.05, 0.2):
            with pytest.raises(WorkerDied):
                await cluster.at(0, Worker.die)  # the next call has to start a worker first
            asked = asyncio.create_task(cluster.at(0, Worker.add, 1000))
            await asyncio.sleep(moment_s)
            asked.cancel()
            await asyncio.wait([asked])
            assert [await cluster.at(0, Worker.add, number) for number in (1, 2)] == [1, 2]

    within(use, size=1)


def test_a_worker_that_could_not_start_is_not_taken_for_one_that_did() -> None:
    async def run() -> None:
        cluster = ProcessCluster[Worker](Call(f"{__name__}:Broken"), 1, name="worker", limit_s=20.0)
        try:
            for _ in range(2):
                with pytest.raises(Exception, match="worker 0 cannot be made"):
                    await cluster.at(0, Worker.add, 1)
        finally:
            await cluster.stop()

    asyncio.run(run())
