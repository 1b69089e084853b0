"""Generators that do not respond are killed; ones that only load weights are not."""

import asyncio
import time
from collections.abc import Callable

import pytest

from roll.errors import WorkerDied
from roll.serving.liveness import Liveness


class Workers:
    """Two workers; a poll of one waits until the worker is killed."""

    def __init__(self, stopped: set[int]) -> None:
        self._stopped, self.killed = stopped, dict[int, str]()
        self.event = asyncio.Event()

    def kill_worker(self, rank: int, reason: str) -> None:
        self.killed[rank] = reason
        self.event.set()

    def stopped(self, rank: int) -> bool:
        return rank in self._stopped

    async def hang(self) -> None:
        await self.event.wait()
        raise WorkerDied("killed")

    async def answer(self) -> int:
        await asyncio.sleep(0)
        return 7


def killed(stopped: set[int], transferring: Callable[[], bool], *, num_polls: int = 200) -> dict[int, str]:
    """The workers killed while worker 0 hangs and worker 1 answers `num_polls` polls."""

    async def run() -> dict[int, str]:
        workers = Workers(stopped)
        liveness = Liveness(workers, 0.02)
        running = asyncio.create_task(liveness.run(transferring))
        hanging = asyncio.create_task(liveness.track(0, workers.hang()))
        num = 0
        while not hanging.done() and num < num_polls:
            assert await liveness.track(1, workers.answer()) == 7
            await asyncio.sleep(0.001)
            num += 1
        running.cancel()
        if not hanging.done():
            hanging.cancel()
        elif not hanging.cancelled():
            with pytest.raises(WorkerDied):
                hanging.result()
        return workers.killed

    return asyncio.run(run())


def test_a_generator_that_does_not_answer_is_killed_and_others_are_not() -> None:
    reasons = killed(set(), lambda: False, num_polls=100_000)
    assert list(reasons) == [0] and "did not respond for" in reasons[0] and "rollout.request_timeout_s" in reasons[0]


def test_during_a_transfer_only_a_stopped_process_is_killed() -> None:
    assert list(killed({0}, lambda: True, num_polls=100_000)) == [0]
    assert killed(set(), lambda: True) == {}


def test_time_in_which_the_controller_was_blocked_counts_as_one_check() -> None:
    async def run() -> dict[int, str]:
        workers = Workers(set())
        liveness = Liveness(workers, 0.4)
        running = asyncio.create_task(liveness.run(lambda: False))
        poll = asyncio.create_task(liveness.track(0, workers.hang()))
        await asyncio.sleep(0)
        time.sleep(1)  # blocks the event loop on purpose
        await asyncio.sleep(0)
        running.cancel()
        poll.cancel()
        return workers.killed

    assert asyncio.run(run()) == {}
