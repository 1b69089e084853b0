"""Routers and publishers of several policies: counted together, and at the same version."""

import asyncio
from contextlib import closing
from pathlib import Path

from roll.cluster.inline import InlineCluster
from roll.engines.base import Generator, Request, Trainer
from roll.engines.fake import FakeGenerator, FakeTrainer
from roll.journal.events import WeightsPublished
from roll.journal.store import Journal
from roll.serving.counts import IdleReasons
from roll.serving.policies import Publishers, Routers
from roll.serving.publisher import Publisher
from roll.serving.router import GenerationCounts, Router
from roll.types import Sampling


def router(idle_reasons: IdleReasons | None = None) -> Router:
    return Router(InlineCluster[Generator]([FakeGenerator()]), max_wait_s=0.1, idle_reasons=idle_reasons)


def request(name: str) -> Request:
    return Request(id=name, ids=(5,), max_new_tokens=3, sampling=Sampling(), stop=frozenset(), key=1)


def test_routers_are_counted_together_and_reset_together() -> None:
    async def go() -> None:
        routers = router(), router()
        both = Routers(dict(zip("ab", routers, strict=True)))
        running = asyncio.create_task(both.run())
        assert await both.release(0) == (0, 0)
        replies = await asyncio.gather(*(each.sample(request(str(index))) for index, each in enumerate(routers)))
        assert both.counts.tokens == sum(len(reply.ids) for reply in replies) > 3
        both.counts = GenerationCounts()
        assert both.counts == GenerationCounts() and routers[0].counts is not routers[1].counts
        running.cancel()

    asyncio.run(go())


def test_an_attempt_that_waits_for_its_environment_waits_once() -> None:
    async def go() -> None:
        idle_reasons = IdleReasons()
        routers = router(idle_reasons), router(idle_reasons)
        both = Routers(dict(zip("ab", routers, strict=True)))
        waiting = [asyncio.create_task(each.sample(request("r"))) for each in routers]
        await asyncio.sleep(0)
        with routers[0].idle_reasons.waiting_for("environments"):
            assert both.inflight_counts() == {"waiting to be dispatched": 2, "waiting for environments": 1}
            assert routers[1].idle_reasons.reason() == "environments", "both policies share the reason"
        for task in waiting:
            task.cancel()

    asyncio.run(go())


def test_all_policies_share_one_version_and_a_resumed_run_continues_it(tmp_path: Path) -> None:
    async def go(journal: Journal) -> None:
        parts: dict[str, Publisher] = {}
        for name in ("one", "two"):
            own_router = router()
            parts[name] = Publisher(
                trainers=InlineCluster[Trainer]([FakeTrainer()]),
                generators=own_router._generators,
                router=own_router,
                journal=journal,
                policy=name,
                version=6,
                step_of={6: 2},
            )
        both = Publishers(parts)
        assert both.serving().step == 2
        await both.publish(3)
        assert [part.version for part in parts.values()] == [7, 7] and both.serving().step == 3
        journal.flush()
        published = [entry.event for entry in journal.events(WeightsPublished)]
        assert [(event.version, event.step, event.digest.split()[0]) for event in published] == [
            (7, 3, "one"),
            (7, 3, "two"),
        ]

    with closing(Journal(tmp_path / "journal.db")) as journal:
        asyncio.run(go(journal))
