"""A worker of a cluster as a host: it answers, is given up, and whoever waited hears why."""

import asyncio
from typing import Any

import pytest

from roll.cluster.host_member import Member
from roll.cluster.inline import InlineCluster
from roll.envs.worker import EnvWorker
from roll.errors import WorkerDied
from roll.rollout.env_pool import EnvPool, members_of
from roll.types import Call, Message, Task

GUESS = Call("guess_number")
TASK = Task(id="t", domain="d", seed=3)


class Worker:
    """Answers, waits for ever, raises, or is dead."""

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


def member(worker: Worker) -> Member[Worker]:
    return Member(InlineCluster[Worker]([worker]), 0, name="worker", answer=Worker.answer)


def test_it_answers_and_raises_what_the_worker_does() -> None:
    async def use() -> None:
        host = member(Worker(0))
        assert await host.ask(Worker.twice, 4) == 8 and await host.gives_way(1.0)
        with pytest.raises(ValueError, match="no"):
            await host.ask(Worker.refuse)
        assert host.why == ""

    asyncio.run(use())


def test_whoever_waits_for_one_that_is_given_up_hears_why_and_so_does_whoever_comes_later() -> None:
    async def use() -> None:
        worker = Worker(0)
        host = member(worker)
        waiting = asyncio.create_task(host.ask(Worker.wait))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        host.kill("it hangs")
        with pytest.raises(WorkerDied, match=r"worker 0: it hangs \(during wait\)"):
            await waiting
        with pytest.raises(WorkerDied, match="worker 0: it hangs"):
            await host.ask(Worker.twice, 1)
        await asyncio.sleep(0)
        assert worker.cancelled == 1 and not await host.gives_way(0.1)

    asyncio.run(use())


def test_a_worker_that_died_is_given_up() -> None:
    async def use() -> None:
        host = member(Worker(0))
        with pytest.raises(WorkerDied, match="its process ended"):
            await host.ask(Worker.die)
        assert "its process ended" in host.why

    asyncio.run(use())


def test_cancelling_a_call_cancels_it_there() -> None:
    async def use() -> None:
        worker = Worker(0)
        host = member(worker)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await host.ask(Worker.wait)
        await asyncio.sleep(0)
        assert worker.cancelled == 1 and host.why == ""

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


def test_a_pool_over_a_cluster_plays_and_has_the_worker_of_a_rank_replaced_that_it_gave_up() -> None:
    async def use() -> None:
        cluster = Ranks(2)
        pool = EnvPool(2, names=["guess_number"], open_host=members_of(cluster))
        await pool.start()
        first, second = [await pool.make(GUESS, TASK) for _ in range(2)]
        assert await first.start() == (Message("user", "1-9?"),) and cluster.replaced == []
        lost = pool._seats[1]
        assert lost is not None
        lost.host.kill("gone")
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
