"""Virtual time: it jumps, it stays in order, and it moves for nothing but timers and what is charged to it."""

import asyncio
import time

import pytest

from roll.errors import RunStopped
from roll.sim.clock import VirtualLoop, run_virtual
from roll.sim.engines import CallCost, RemoteCluster


def test_an_hour_of_sleep_takes_no_time_and_ends_on_the_second() -> None:
    loop, began = VirtualLoop(), time.perf_counter()

    async def main() -> float:
        await asyncio.sleep(3600)
        return loop.time()

    assert run_virtual(main(), loop) == 3600.0
    assert time.perf_counter() - began < 60


def test_timers_fire_in_order_each_at_its_time() -> None:
    loop = VirtualLoop()
    rung: list[tuple[float, int]] = []

    async def ring(after_s: float, number: int) -> None:
        await asyncio.sleep(after_s)
        rung.append((loop.time(), number))

    async def main() -> None:
        await asyncio.gather(
            *(ring(after_s, number) for number, after_s in enumerate((5.0, 0.5, 3.0, 0.5, 86400.0 * 3)))
        )

    run_virtual(main(), loop)
    assert rung == [(0.5, 1), (0.5, 3), (3.0, 2), (5.0, 0), (259200.0, 4)]


def test_computing_takes_no_time_unless_it_is_charged() -> None:
    async def compute(loop: VirtualLoop) -> tuple[float, float]:
        began = time.thread_time()
        while time.thread_time() - began < 0.02:
            pass
        await asyncio.sleep(0)
        return loop.time(), loop.busy_s

    free, charged = VirtualLoop(), VirtualLoop(charge_cpu=True)
    assert run_virtual(compute(free), free) == (0.0, 0.0)
    now, busy_s = run_virtual(compute(charged), charged)
    assert 0.02 <= now < 2
    assert busy_s == now


@pytest.mark.slow
def test_work_of_another_machine_is_not_charged() -> None:
    loop = VirtualLoop(charge_cpu=True)

    async def main() -> float:
        with loop.elsewhere():
            began = time.thread_time()
            while time.thread_time() - began < 0.5:
                pass
        await asyncio.sleep(0)
        return loop.time()

    assert run_virtual(main(), loop) < 0.4


def test_a_busy_controller_handles_a_timer_late_and_no_time_is_counted_twice() -> None:
    loop = VirtualLoop()

    async def main() -> list[float]:
        timer = asyncio.create_task(asyncio.sleep(2.0))
        await asyncio.sleep(0)
        loop.spend(5.0)
        await timer
        heard = loop.time()
        await asyncio.sleep(1.0)
        return [heard, loop.time(), loop.busy_s]

    assert run_virtual(main(), loop) == [5.0, 6.0, 5.0]


def test_a_remote_call_costs_its_latency_and_keeps_the_controller_busy() -> None:
    loop = VirtualLoop()

    class Worker:
        async def nothing(self) -> None: ...

    async def main() -> float:
        workers = RemoteCluster[Worker]([Worker()] * 10, CallCost(latency_s=0.25, busy_s=0.5), loop)
        await workers.each(Worker.nothing)
        assert workers.num_calls == 10
        return loop.time()

    assert run_virtual(main(), loop) == 5.0  # ten half seconds one after the other; the latency passes meanwhile


def test_a_deadlock_is_an_error() -> None:
    async def main() -> None:
        await asyncio.Event().wait()

    loop = VirtualLoop(last_chance_s=0.01)
    with pytest.raises(RunStopped, match="deadlock"):
        run_virtual(main(), loop)
