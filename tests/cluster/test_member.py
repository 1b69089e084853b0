"""A worker of a cluster with the interface of a process: it replies, is abandoned, and callers learn why."""

import asyncio
from typing import Any

import pytest

from roll.cluster.inline import InlineCluster
from roll.cluster.member import ClusterMember
from roll.envs.worker import EnvWorker
from roll.errors import WorkerDied
from roll.rollout.env_pool import EnvPool, cluster_workers
from roll.types import Message, Spec, Task

GUESS = Spec("guess_number")
TASK = Task(id="t", domain="d", seed=3)


class Worker:
    """Replies, waits without end, raises, or is dead."""

    def __init__(self, rank: int) -> None:
        self.rank, self.cancelled = rank, 0

    async def answer(self) -> None: ...

    async def twice(self, number: int) -> int:
        return 2 * number

    async def wait(self) -> None:
        try:
            await asyncio.sleep(1000)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise

    async def refuse(self) -> None:
        raise ValueError("no")

    async def die(self) -> None:
        raise WorkerDied("worker 0: its process ended")


def member(worker: Worker) -> ClusterMember[Worker]:
    return ClusterMember(InlineCluster[Worker]([worker]), 0, name="worker", ping=Worker.answer)


def test_it_returns_and_raises_what_the_worker_does() -> None:
    async def use() -> None:
        remote = member(Worker(0))
        assert await remote.call(Worker.twice, 4) == 8 and await remote.responds(1.0)
        with pytest.raises(ValueError, match="no"):
            await remote.call(Worker.refuse)
        assert remote.exit_reason == ""

    asyncio.run(use())


def test_calls_in_flight_and_later_ones_raise_the_reason_once_it_is_abandoned() -> None:
    async def use() -> None:
        worker = Worker(0)
        remote = member(worker)
        waiting = asyncio.create_task(remote.call(Worker.wait))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        remote.kill("it hangs")
        with pytest.raises(WorkerDied, match=r"worker 0: it hangs during wait"):
            await waiting
        with pytest.raises(WorkerDied, match="worker 0: it hangs"):
            await remote.call(Worker.twice, 1)
        await asyncio.sleep(0)
        assert worker.cancelled == 1 and not await remote.responds(0.1)

    asyncio.run(use())


def test_a_dead_worker_is_abandoned() -> None:
    async def use() -> None:
        remote = member(Worker(0))
        with pytest.raises(WorkerDied, match="its process ended"):
            await remote.call(Worker.die)
        assert "its process ended" in remote.exit_reason

    asyncio.run(use())


def test_cancelling_a_call_cancels_it_in_the_worker() -> None:
    async def use() -> None:
        worker = Worker(0)
        remote = member(worker)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await remote.call(Worker.wait)
        await asyncio.sleep(0)
        assert worker.cancelled == 1 and remote.exit_reason == ""

    asyncio.run(use())


class Ranks(InlineCluster[EnvWorker]):
    """A cluster that can replace its workers."""

    def __init__(self, size: int) -> None:
        super().__init__([EnvWorker(rank) for rank in range(size)])
        self.replaced: list[int] = []

    async def replace(self, rank: int) -> None:
        self.replaced.append(rank)
        workers: list[Any] = list(self._workers)
        workers[rank] = EnvWorker(rank)
        self._workers = tuple(workers)


def test_a_pool_over_a_cluster_replaces_a_worker_that_it_abandoned() -> None:
    async def use() -> None:
        cluster = Ranks(2)
        pool = EnvPool(2, names=["guess_number"], start_worker=cluster_workers(cluster))
        await pool.start()
        first, second = [await pool.make(GUESS, TASK) for _ in range(2)]
        assert await first.start() == (Message("user", "1-9?"),) and cluster.replaced == []
        lost = pool._workers[1]
        assert lost is not None
        lost.process.kill("gone")
        with pytest.raises(WorkerDied, match="gone"):
            await second.step("5")
        await second.close()
        third = await pool.make(GUESS, TASK)
        assert cluster.replaced == [1] and pool.drain_counts() == {"envs/replaced": 1.0}
        await third.start()
        for env in (first, third):
            await env.close()
        await pool.stop()

    asyncio.run(use())
