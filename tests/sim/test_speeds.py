"""Pools of generators of different speed: the router measures it, on virtual time."""

import asyncio
import itertools
from collections.abc import Sequence

import pytest

from roll.cluster.inline import InlineCluster
from roll.engines.base import Generator
from roll.serving.dispatch import Concurrency, LoadBalancer, Timeouts
from roll.serving.router import Router
from roll.sim.batched import BatchedGenerator, DecodeSpeed
from roll.sim.clock import VirtualLoop, run_virtual
from roll.sim.engines import GeneratorSpeed, SimGenerator
from roll.sim.workload import LogNormal
from tests.engines.models import request

LENGTHS = LogNormal(median=100, sigma=0.3)
NUM = 800


def batches(speeds: Sequence[GeneratorSpeed | DecodeSpeed], num_batches: int, *, by_speed: bool = True) -> list[float]:
    """Seconds of each batch of requests, all sent at once, the next when all have returned."""
    loop = VirtualLoop()

    async def run() -> list[float]:
        engines = [
            BatchedGenerator(LENGTHS, speed, loop)
            if isinstance(speed, DecodeSpeed)
            else SimGenerator(LENGTHS, speed, loop)
            for speed in speeds
        ]
        router = Router(
            InlineCluster[Generator](engines),
            timeouts=Timeouts(request_s=1e6),
            concurrency=Concurrency(by_speed=by_speed),
        )
        running, ends = asyncio.create_task(router.run()), [loop.time()]
        await router.release(0)
        for batch in range(num_batches):
            await asyncio.gather(*(router.sample(request(f"{batch}.{at}", [1], 10**6)) for at in range(NUM)))
            ends.append(loop.time())
        running.cancel()
        return [end - begin for begin, end in itertools.pairwise(ends)]

    return run_virtual(run(), loop)


def proportional_s(batch: int, tokens_per_s: float) -> float:
    """The time of a batch if every generator works to its end."""
    keys = [request(f"{batch}.{at}", [1], 10**6).key for at in range(NUM)]
    return sum(LENGTHS.draw(key) for key in keys) / tokens_per_s


@pytest.mark.parametrize("fast", [2.0, 3.0])
def test_two_speeds_are_within_five_percent_of_the_proportional_split(fast: float) -> None:
    slow = GeneratorSpeed(slots=8, tokens_per_s=10.0)
    speeds = [slow, GeneratorSpeed(slots=8, tokens_per_s=10.0 * fast)]
    first, _, last = batches(speeds, 3)
    assert last <= 1.05 * proportional_s(2, 80.0 * (1 + fast))
    assert first >= (1 + fast) / 2 * 0.9 * last, "before a measurement the fast one waits for the slow one"


def test_equal_generators_keep_equal_shares_and_a_batch_gets_no_slower() -> None:
    speeds = [DecodeSpeed(slots=400, step_s=0.02, sequence_s=0.0002)] * 3
    times, equal = batches(speeds, 4), batches(speeds, 4, by_speed=False)
    assert max(times) <= 1.05 * max(equal)


def test_the_last_requests_of_a_batch_and_a_replaced_generator_do_not_count() -> None:
    balancer = LoadBalancer(2)

    def window(rank: int, num_requests: int, tokens: int, now: float) -> None:
        balancer.record_outputs(rank, tokens=tokens, outputs=num_requests, num_requests=num_requests, now=now)

    def shares(tokens: int) -> list[int]:
        chosen = [0, 0]
        for _ in range(tokens // 100):
            rank = balancer.choose(1, "")
            assert rank is not None
            balancer.add_request(rank, 100, "")
            chosen[rank] += 1
        for rank, number in enumerate(chosen):
            for _ in range(number):
                balancer.remove_request(rank, 100)
        return chosen

    assert shares(6000) == [30, 30], "nothing was measured"
    for at in range(1, 4):
        window(0, 10, 100, float(at))
        window(1, 10, 200, float(at))
    assert shares(6000) == [20, 40], "100 and 200 tokens per second"
    for at in range(4, 30):
        window(1, 1, 5, float(at))
    assert shares(6000) == [20, 40], "one request is left"
    balancer.mark_ready(1)
    assert shares(6000) == [30, 30]
