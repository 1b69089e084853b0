"""One child process with concurrent calls: each gets its own result, and all learn of the end of the process."""

import asyncio
import os
import signal
import subprocess
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from roll.cluster.process import ProcessWorker
from roll.errors import EnvFailed, WorkerDied
from roll.types import Spec

pytestmark = pytest.mark.slow


class Odd(Exception):
    """Pickles, and cannot be made again from that."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} and {two}")


class Worker:
    def __init__(self, rank: int, *, bonus: int = 0) -> None:
        self.rank, self.bonus = rank, bonus
        self.gate = asyncio.Event()
        self.cancelled = 0

    async def add(self, number: int, *, twice: bool = False) -> int:
        return (number + self.rank + self.bonus) * (2 if twice else 1)

    async def wait(self) -> str:
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return "through"

    async def open(self) -> None:
        self.gate.set()

    async def num_cancelled(self) -> int:
        return self.cancelled

    async def sleep(self, seconds: float) -> None:
        time.sleep(seconds)  # blocks the event loop

    async def die(self) -> None:
        os._exit(7)

    async def leave(self) -> None:
        raise SystemExit(4)

    async def fail(self, message: str) -> None:
        raise EnvFailed(message)

    async def odd(self) -> None:
        raise Odd(1, 2)

    async def lock(self) -> object:
        return threading.Lock()

    async def identify(self) -> tuple[int, bool]:
        return os.getpid(), threading.current_thread() is threading.main_thread()

    async def grow(self, megabytes: int) -> None:
        self.memory = bytearray(os.urandom(1)) * (megabytes * 2**20)

    async def child(self) -> int:
        return subprocess.Popen(["sleep", "1000"]).pid


class Broken:
    def __init__(self, rank: int) -> None:
        raise ValueError(f"worker {rank} cannot be built")


def within(use: Callable[[ProcessWorker[Worker]], Awaitable[Any]], **options: Any) -> Any:
    """The result of `use` with a worker that is killed afterwards."""

    async def run() -> Any:
        async with asyncio.timeout(30):
            worker = await ProcessWorker[Worker].start(Spec(f"{__name__}:Worker", options), 1, name="worker")
            try:
                return await use(worker)
            finally:
                worker.kill("the test is over")

    return asyncio.run(run())


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_calls_run_concurrently_in_the_main_thread_of_another_process() -> None:
    async def use(worker: ProcessWorker[Worker]) -> None:
        waiting = [asyncio.ensure_future(worker.call(Worker.wait)) for _ in range(50)]
        assert await worker.call(Worker.add, 1, twice=True) == 2 * (1 + 1 + 10)
        assert not any(each.done() for each in waiting)
        await worker.call(Worker.open)
        assert await asyncio.gather(*waiting) == ["through"] * 50
        pid, main = await worker.call(Worker.identify)
        assert main and pid == worker.pid != os.getpid()
        worker.kill("enough")
        assert not alive(pid)

    within(use, bonus=10)


def test_an_error_concerns_its_own_call_alone() -> None:
    async def use(worker: ProcessWorker[Worker]) -> None:
        waiting = asyncio.ensure_future(worker.call(Worker.wait))
        with pytest.raises(EnvFailed, match="no ice"):
            await worker.call(Worker.fail, "no ice")
        with pytest.raises(RuntimeError, match="SystemExit: 4"):
            await worker.call(Worker.leave)
        with pytest.raises(TypeError, match="cannot be sent"):
            await worker.call(Worker.lock)
        with pytest.raises(Exception, match="cannot be read"):
            await worker.call(Worker.odd)
        with pytest.raises(Exception, match="pickle"):
            await worker.call(Worker.add, threading.Lock())
        await worker.call(Worker.open)
        assert await waiting == "through"

    within(use)


def test_cancelling_a_call_cancels_it_in_the_child_and_no_other() -> None:
    async def use(worker: ProcessWorker[Worker]) -> None:
        cancelled, stays = (asyncio.ensure_future(worker.call(Worker.wait)) for _ in range(2))
        await worker.call(Worker.add, 0)
        cancelled.cancel()
        await asyncio.wait([cancelled])
        assert await worker.call(Worker.num_cancelled) == 1
        await worker.call(Worker.open)
        assert await stays == "through"

    within(use)


def test_a_call_that_blocks_the_event_loop_is_detected_from_outside() -> None:
    async def use(worker: ProcessWorker[Worker]) -> None:
        waiting = asyncio.ensure_future(worker.call(Worker.wait))
        assert await worker.responds(5.0), "a waiting call blocks nothing"
        hanging = asyncio.ensure_future(worker.call(Worker.sleep, 1000))
        await asyncio.sleep(0)
        assert not await worker.responds(0.2)
        worker.kill("it hung")
        for call in (waiting, hanging):
            with pytest.raises(WorkerDied, match=r"worker 1: it hung during (wait|sleep)"):
                await call

    within(use)


@pytest.mark.parametrize("killed", [True, False])
def test_calls_in_flight_and_later_ones_raise_once_the_process_has_ended(
    killed: bool, caplog: pytest.LogCaptureFixture
) -> None:
    how = "was killed by SIGKILL" if killed else "exited with code 7"

    async def use(worker: ProcessWorker[Worker]) -> None:
        waiting = asyncio.ensure_future(worker.call(Worker.wait))
        child = await worker.call(Worker.child)
        dying = asyncio.ensure_future(worker.call(Worker.wait if killed else Worker.die))
        if killed:
            os.kill(worker.pid, signal.SIGKILL)
        reason = f"worker 1: its process (pid {worker.pid}) {how}"
        for call in (waiting, dying):
            with pytest.raises(WorkerDied) as raised:
                await call
            assert str(raised.value).startswith(f"{reason} during ")
            assert ("out-of-memory killer" in str(raised.value)) is killed
        with pytest.raises(WorkerDied, match=how):
            await worker.call(Worker.add, 1)
        (line,) = caplog.messages
        assert line.startswith(reason) and ("dmesg" in line) is killed
        for _ in range(100):
            if not alive(child):
                break
            await asyncio.sleep(0.02)
        assert not _running(child), "its children end with it"
        assert not alive(worker.pid), "and no zombie is left"

    within(use)


def _running(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"  # its new parent may reap it later
    except FileNotFoundError:
        return False


def test_memory_is_the_resident_memory_of_the_process() -> None:
    async def use(worker: ProcessWorker[Worker]) -> None:
        before = worker.memory()
        await worker.call(Worker.grow, 40)
        assert 39 * 2**20 < worker.memory() - before < 60 * 2**20
        worker.kill("enough")
        assert worker.memory() == 0

    within(use)


def test_a_worker_that_cannot_be_built_raises_the_reason() -> None:
    async def run() -> None:
        await ProcessWorker[Any].start(Spec(f"{__name__}:Broken"), 2, name="broken")

    with pytest.raises(ValueError, match="worker 2 cannot be built"):
        asyncio.run(run())
