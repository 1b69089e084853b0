"""Workers in this process, called through the handles of remote ones."""

import asyncio
import os
import threading

import pytest

from roll.cluster.inline import InlineCluster


class Worker:
    def __init__(self, rank: int) -> None:
        self.rank, self.calls = rank, list[object]()

    async def add(self, number: int, *, twice: bool = False) -> int:
        self.calls.append(number)
        await asyncio.sleep(0)
        return (self.rank + number) * (2 if twice else 1)

    async def whereabouts(self) -> tuple[int, bool]:
        return os.getpid(), threading.current_thread() is threading.main_thread()

    async def fail(self) -> None:
        raise ValueError(f"worker {self.rank}")


def cluster(size: int = 3) -> tuple[InlineCluster[Worker], list[Worker]]:
    workers = [Worker(rank) for rank in range(size)]
    return InlineCluster(workers), workers


def test_each_calls_every_worker_and_returns_in_rank_order() -> None:
    assert asyncio.run(cluster()[0].each(Worker.add, 10, twice=True)) == [20, 22, 24]


def test_scatter_gives_shard_i_to_rank_i() -> None:
    handle, workers = cluster()
    assert asyncio.run(handle.scatter(Worker.add, [100, 200, 300])) == [100, 201, 302]
    assert [worker.calls for worker in workers] == [[100], [200], [300]]


def test_the_number_of_shards_has_to_match_the_workers() -> None:
    with pytest.raises(AssertionError, match="2 shards for 3 workers"):
        asyncio.run(cluster()[0].scatter(Worker.add, [1, 2]))


def test_at_calls_one_worker_and_its_error_reaches_the_caller() -> None:
    handle, workers = cluster()
    assert asyncio.run(handle.at(2, Worker.add, 5)) == 7
    assert [len(worker.calls) for worker in workers] == [0, 0, 1]
    with pytest.raises(ValueError, match="worker 1"):
        asyncio.run(handle.at(1, Worker.fail))


def test_workers_run_in_the_main_thread_of_this_process() -> None:
    assert asyncio.run(cluster(1)[0].each(Worker.whereabouts)) == [(os.getpid(), True)]
