"""A process that does many calls at once: each is answered for itself, and the end of the process is told to all."""

import asyncio
import os
import signal
import subprocess
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from roll.cluster.host import Host
from roll.errors import EnvFailed, WorkerDied
from roll.types import Call


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
        time.sleep(seconds)  # never gives way

    async def die(self) -> None:
        os._exit(3)

    async def leave(self) -> None:
        raise SystemExit(4)

    async def fail(self, message: str) -> None:
        raise EnvFailed(message)

    async def odd(self) -> None:
        raise Odd(1, 2)

    async def lock(self) -> object:
        return threading.Lock()

    async def whereabouts(self) -> tuple[int, bool]:
        return os.getpid(), threading.current_thread() is threading.main_thread()

    async def grow(self, megabytes: int) -> None:
        self.held = bytearray(os.urandom(1)) * (megabytes * 2**20)

    async def child(self) -> int:
        return subprocess.Popen(["sleep", "1000"]).pid


class Broken:
    def __init__(self, rank: int) -> None:
        raise ValueError(f"worker {rank} cannot be made")


def within(use: Callable[[Host[Worker]], Awaitable[Any]], **given: Any) -> Any:
    """What `use` finds on a host that is ended afterwards."""

    async def run() -> Any:
        async with asyncio.timeout(30):
            host = await Host[Worker].open(Call(f"{__name__}:Worker", given), 1, name="worker")
            try:
                return await use(host)
            finally:
                host.kill("the test is over")

    return asyncio.run(run())


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_calls_run_side_by_side_in_the_main_thread_of_another_process() -> None:
    async def use(host: Host[Worker]) -> None:
        waiting = [asyncio.ensure_future(host.ask(Worker.wait)) for _ in range(50)]
        assert await host.ask(Worker.add, 1, twice=True) == 2 * (1 + 1 + 10)
        assert not any(each.done() for each in waiting)
        await host.ask(Worker.open)
        assert await asyncio.gather(*waiting) == ["through"] * 50
        pid, main = await host.ask(Worker.whereabouts)
        assert main and pid == host.pid != os.getpid()
        host.kill("enough")
        assert not alive(pid)

    within(use, bonus=10)


def test_what_a_call_raises_is_its_own_and_the_worker_goes_on() -> None:
    async def use(host: Host[Worker]) -> None:
        waiting = asyncio.ensure_future(host.ask(Worker.wait))
        with pytest.raises(EnvFailed, match="no ice"):
            await host.ask(Worker.fail, "no ice")
        with pytest.raises(RuntimeError, match="SystemExit: 4"):
            await host.ask(Worker.leave)
        with pytest.raises(TypeError, match="cannot be sent"):
            await host.ask(Worker.lock)
        with pytest.raises(Exception, match="cannot be read"):
            await host.ask(Worker.odd)
        with pytest.raises(Exception, match="pickle"):
            await host.ask(Worker.add, threading.Lock())
        await host.ask(Worker.open)
        assert await waiting == "through"

    within(use)


def test_cancelling_a_call_cancels_it_there_and_nowhere_else() -> None:
    async def use(host: Host[Worker]) -> None:
        gone, stays = (asyncio.ensure_future(host.ask(Worker.wait)) for _ in range(2))
        await host.ask(Worker.add, 0)
        gone.cancel()
        await asyncio.wait([gone])
        assert await host.ask(Worker.num_cancelled) == 1
        await host.ask(Worker.open)
        assert await stays == "through"

    within(use)


def test_a_call_that_never_gives_way_is_noticed_from_outside() -> None:
    async def use(host: Host[Worker]) -> None:
        waiting = asyncio.ensure_future(host.ask(Worker.wait))
        assert await host.gives_way(5.0), "waiting is giving way"
        hanging = asyncio.ensure_future(host.ask(Worker.sleep, 1000))
        await asyncio.sleep(0)
        assert not await host.gives_way(0.2)
        host.kill("it hung")
        for call in (waiting, hanging):
            with pytest.raises(WorkerDied, match=r"worker 1: it hung \(during (wait|sleep)\)"):
                await call

    within(use)


@pytest.mark.parametrize("killed", [True, False])
def test_all_calls_hear_of_the_end_of_the_process_and_so_do_later_ones(killed: bool) -> None:
    async def use(host: Host[Worker]) -> None:
        waiting = asyncio.ensure_future(host.ask(Worker.wait))
        child = await host.ask(Worker.child)
        dying = asyncio.ensure_future(host.ask(Worker.wait if killed else Worker.die))
        if killed:
            os.kill(host.pid, signal.SIGKILL)
        for call in (waiting, dying):
            with pytest.raises(WorkerDied, match="worker 1: its process ended"):
                await call
        with pytest.raises(WorkerDied, match="worker 1: its process ended"):
            await host.ask(Worker.add, 1)
        for _ in range(100):
            if not alive(child):
                break
            await asyncio.sleep(0.02)
        assert not _running(child), "what it had started ends with it"
        assert not alive(host.pid), "and nothing is left to be waited for"

    within(use)


def _running(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"  # whoever adopted it may take its time
    except FileNotFoundError:
        return False


def test_memory_is_what_the_process_holds() -> None:
    async def use(host: Host[Worker]) -> None:
        before = host.memory()
        await host.ask(Worker.grow, 40)
        assert 39 * 2**20 < host.memory() - before < 60 * 2**20
        host.kill("enough")
        assert host.memory() == 0

    within(use)


def test_a_worker_that_cannot_be_made_says_why_and_leaves_no_process() -> None:
    async def run() -> None:
        await Host[Any].open(Call(f"{__name__}:Broken"), 2, name="broken")

    with pytest.raises(ValueError, match="worker 2 cannot be made"):
        asyncio.run(run())
