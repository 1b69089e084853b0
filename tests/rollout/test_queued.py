"""How long requests wait for a generator, on virtual time: every number is worked by hand."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path

import pytest

from roll.cluster.inline import InlineCluster
from roll.engines.base import Generator
from roll.serving.dispatch import Concurrency, LoadBalancer, Sampled, Timeouts
from roll.serving.router import Router
from roll.sim.clock import VirtualLoop, run_virtual
from roll.sim.engines import GeneratorSpeed, SimGenerator
from roll.sim.workload import Constant
from tests.engines.models import request
from tests.rollout.rig import Rig, Setting


def routed(use: Callable[[Router], Awaitable[list[Sampled]]], num_generators: int = 1) -> list[Sampled]:
    """What `use` gets of generators that write ten tokens a second of one reply at a time, each twenty tokens long."""
    loop = VirtualLoop()
    lengths, speed = Constant(value=20.0), GeneratorSpeed(slots=1, tokens_per_s=10.0)

    async def run() -> list[Sampled]:
        engines = [SimGenerator(lengths, speed, loop) for _ in range(num_generators)]
        patience = Timeouts(request_s=8.0)
        router = Router(InlineCluster[Generator](engines), timeouts=patience, concurrency=Concurrency(limit=1))
        running = asyncio.create_task(router.run())
        await router.release(0)
        found = await use(router)
        running.cancel()
        return found

    return run_virtual(run(), loop)


def test_a_request_was_queued_until_a_generator_had_room_for_it() -> None:
    async def use(router: Router) -> list[Sampled]:
        return list(await asyncio.gather(*(router.sample(request(name, [1], 50)) for name in "abc")))

    assert [found.queued_s for found in routed(use)] == pytest.approx([0.0, 2.0, 4.0], abs=1e-6)


def test_a_request_is_queued_again_while_a_version_changes() -> None:
    async def use(router: Router) -> list[Sampled]:
        asked = [asyncio.create_task(router.sample(request(name, [1], 50))) for name in "ab"]
        await asyncio.sleep(3.0)
        await router.hold()
        await asyncio.sleep(3.0)
        await router.release(1)
        found = [await each for each in asked]
        assert found[1].versions.tolist() == [0] * 10 + [1] * 10
        return found

    # b waits 2 s for the end of a, decodes for 1 s, waits 3 s for the version and decodes the rest
    assert [found.queued_s for found in routed(use)] == pytest.approx([0.0, 5.0], abs=1e-6)


def test_time_with_a_silent_generator_is_not_queued_time() -> None:
    class Deaf(SimGenerator):
        async def submit(self, requests: object) -> None:
            """Lost on the way."""

    loop = VirtualLoop()

    async def run() -> Sampled:
        lengths, speed = Constant(value=20.0), GeneratorSpeed(slots=1, tokens_per_s=10.0)
        engines: list[Generator] = [Deaf(lengths, speed, loop), SimGenerator(lengths, speed, loop)]
        router = Router(InlineCluster[Generator](engines), timeouts=Timeouts(request_s=8.0))
        running = asyncio.create_task(router.run())
        await router.release(0)
        found = await router.sample(request("a", [1], 50))
        assert router.counts.redispatched == 1
        running.cancel()
        return found

    assert run_virtual(run(), loop).queued_s == pytest.approx(0.0, abs=1e-6)


def test_a_turn_records_its_queued_time(tmp_path: Path) -> None:
    rig = Rig(tmp_path, Setting(steps=1))
    rig.router.balancer = LoadBalancer(1, Concurrency(limit=1))
    with closing(rig):
        asyncio.run(rig.run())
        attempts = [kept.trajectory for kept in rig.journal.trajectories()]
    turns = [turn for attempt in attempts if attempt for turn in attempt.turns]
    assert len(turns) >= 8 and all(0 < turn.queued_s <= turn.generated_s for turn in turns)
