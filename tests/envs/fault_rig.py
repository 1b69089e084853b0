"""A run over faulty environments: the real scheduler, episode runner, router and journal, and a fake engine."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from roll.cluster.inline import InlineCluster
from roll.data.mixture import Mixture, MixturePart
from roll.data.templates import Template, character_tokenizer
from roll.engines.base import Generator
from roll.engines.fake import FakeGenerator
from roll.journal.events import Event
from roll.journal.store import Journal
from roll.rollout.buffer import Buffer
from roll.rollout.environments import Environments
from roll.rollout.episode.runner import Attempt, EpisodeLimits, EpisodeRunner
from roll.rollout.scheduler import Scheduler, SchedulerConfig
from roll.rollout.source import TaskSource
from roll.serving.policies import ServedVersion
from roll.serving.router import Router
from roll.types import Sampling, Task, Trajectory
from tests.envs.faulty import CONTEXT, FAULTY, MAX_TURNS


class Watched:
    """A source of which every trajectory is remembered, by task."""

    def __init__(self, source: TaskSource, found: dict[str, list[Trajectory]]) -> None:
        self.source, self.found = source, found

    async def attempt(self, runner: EpisodeRunner, attempt: Attempt) -> Trajectory:
        trajectory = await self.source.attempt(runner, attempt)
        self.found.setdefault(attempt.task.id, []).append(trajectory)
        return trajectory


def tasks(faults: Sequence[str], **metadata: Any) -> list[Task]:
    return [Task(id=fault, domain="d", metadata={"fault": fault, **metadata}) for fault in faults]


def attempts(
    path: Path, wanted: list[Task], make: Callable[[], Environments], *, until: Callable[[Trajectory], bool]
) -> tuple[Mapping[str, list[Trajectory]], list[Event]]:
    """A run until two groups attempted every task, once with that end; and what the journal has of it."""
    with closing(Journal(path / "journal.db")) as journal:
        found = asyncio.run(_attempts(journal, wanted, make, until))
        journal.flush()
        return found, [entry.event for entry in journal.events()]


async def _attempts(
    journal: Journal, wanted: list[Task], make: Callable[[], Environments], until: Callable[[Trajectory], bool]
) -> dict[str, list[Trajectory]]:
    generators = InlineCluster[Generator]([FakeGenerator()])
    router = Router(generators, max_wait_s=0.05)
    template = Template(character_tokenizer("+=()?!0123456789"))  # ids 10 to 19, which the fake writes, are digits
    limits = EpisodeLimits(
        sampling=Sampling(),
        max_seq_len=CONTEXT,
        max_new_tokens=2,
        max_turns=MAX_TURNS,
        stop=frozenset({1}),
        env_timeout_s=0.4,
    )
    envs, found = make(), dict[str, list[Trajectory]]()
    source = TaskSource(name="d", tasks=wanted, env=FAULTY, reward=None, make_env=envs.make)
    sources: Any = {"d": Watched(source, found)}
    buffer = Buffer(num_slots=2 * len(wanted))
    scheduler = Scheduler(
        mixture=Mixture([MixturePart(name="d", tasks=wanted)], seed=0),
        sources=sources,
        runner=EpisodeRunner(router=router, template=template, limits=limits),
        buffer=buffer,
        journal=journal,
        config=SchedulerConfig(group_size=2, max_retries=1, max_failed_groups=1000, seed=0),
        serving=lambda: ServedVersion(0, 0),
    )

    def over() -> bool:
        ended = [each for each in found.values() if len(each) >= (4 if each[-1].status.valid else 6)]
        return len(ended) == len(wanted) and all(any(map(until, each)) for each in ended)

    async with asyncio.timeout(60):
        await envs.start()
        running = [asyncio.create_task(router.run()), asyncio.create_task(scheduler.run(2 * len(wanted)))]
        await router.release(0)
        try:
            while not over():
                done = [task for task in running if task.done()]
                assert not done, [await task for task in done]
                await asyncio.sleep(0.02)
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
            await envs.stop()
    return found
