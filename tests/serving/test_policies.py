"""The parts of several policies as one: counted together, and each at the same version."""

import asyncio
from contextlib import closing
from pathlib import Path

from roll.cluster.inline import InlineCluster
from roll.engines.base import Generator, Request, Trainer
from roll.engines.fake import FakeGenerator, FakeTrainer
from roll.journal.events import Published
from roll.journal.store import Journal
from roll.serving.policies import Publishers, Routers
from roll.serving.publisher import Publisher
from roll.serving.router import Router, Tally
from roll.types import Sampling
from roll.weights.plan import Plan


def router() -> Router:
    return Router(InlineCluster[Generator]([FakeGenerator()]), max_wait_s=0.1)


def request(name: str) -> Request:
    return Request(id=name, ids=(5,), max_new_tokens=3, sampling=Sampling(), stop=frozenset(), key=1)


def test_what_routers_saw_is_counted_together_and_begins_anew() -> None:
    async def go() -> None:
        routers = router(), router()
        both = Routers(routers)
        running = asyncio.create_task(both.run())
        assert await both.release(0) == (0, 0)
        found = await asyncio.gather(*(each.sample(request(str(place))) for place, each in enumerate(routers)))
        assert both.tally.tokens == sum(len(sampled.ids) for sampled in found) > 3
        both.tally = Tally()
        assert both.tally == Tally() and routers[0].tally is not routers[1].tally
        running.cancel()

    asyncio.run(go())


def test_an_attempt_that_waits_for_its_environment_waits_once() -> None:
    async def go() -> None:
        routers = router(), router()
        both = Routers(routers)
        waiting = [asyncio.create_task(each.sample(request("r"))) for each in routers]
        await asyncio.sleep(0)
        with routers[0].waits.on("environments"):
            assert both.whereabouts() == {"waiting to be dispatched": 2, "waiting for environments": 1}
            assert routers[1].waits.reason() == "environments", "an idle generator of either policy knows why"
        for task in waiting:
            task.cancel()

    asyncio.run(go())


def test_all_policies_have_one_version_and_a_resumed_run_sets_it_for_all(tmp_path: Path) -> None:
    async def go(journal: Journal) -> None:
        parts: dict[str, Publisher] = {}
        for name in ("one", "two"):
            way = router()
            parts[name] = Publisher(
                trainers=InlineCluster[Trainer]([FakeTrainer()]),
                generators=way._generators,
                router=way,
                journal=journal,
                plan=Plan(names=()),
                policy=name,
            )
        both = Publishers(publishers=parts)
        both.version, both.step_of = 6, {6: 2}
        assert both.serving().step == 2
        await both.publish(3)
        assert [part.version for part in parts.values()] == [7, 7] and both.serving().step == 3
        assert parts["one"].step_of is not parts["two"].step_of
        journal.flush()
        published = [entry.event for entry in journal.events(Published)]
        assert [(event.version, event.step, event.digest.split()[0]) for event in published] == [
            (7, 3, "one"),
            (7, 3, "two"),
        ]

    with closing(Journal(tmp_path / "journal.db")) as journal:
        asyncio.run(go(journal))
