"""A whole run on fake engines: the real scheduler, buffer, router and loop, and nothing that computes."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from roll.algorithms.credit import Memory
from roll.algorithms.recipe import Recipe
from roll.checkpoint import Checkpoints
from roll.cluster.inline import InlineCluster
from roll.data.mixture import Mixture, Part
from roll.data.templates import Template, character_tokenizer
from roll.engines.base import Generator, Trainer
from roll.engines.fake import FakeGenerator, FakeTrainer
from roll.engines.native.sampling import noise_key
from roll.journal.events import Event, Published, RolledBack
from roll.journal.store import Journal
from roll.pipelines.checkpointer import Keeper
from roll.pipelines.learner import Learner
from roll.pipelines.loop import Loop, Pace
from roll.pipelines.reference_models import Models
from roll.rollout.buffer import Buffer
from roll.rollout.episode.runner import EpisodeRunner, Limits
from roll.rollout.inflight import Held
from roll.rollout.resume import standing
from roll.rollout.scheduler import Policy, Scheduler
from roll.rollout.source import Source
from roll.rollout.validation import Validator
from roll.serving.publisher import Publisher
from roll.serving.router import Router
from roll.types import Call, Message, Sampling, Task
from roll.weights.plan import Plan

SEED, GROUP_SIZE, NUM_TASKS = 5, 2, 30
TASKS = [Task(id=f"t{number}", domain="d", messages=(Message("user", "1+1="),)) for number in range(NUM_TASKS)]


def digit(task: Task, reply: str, *, refuse: str = "", tasks: str = "") -> float:
    """The reply's first digit; raises for replies that begin with a digit of `refuse`, and for `tasks`."""
    if reply[0] in refuse or task.id in tasks.split():
        raise RuntimeError(f"no score for {reply[0]}")
    return float(reply[0])


def keys_of(task: str, *, tries: int, epochs: int = 4) -> frozenset[int]:
    """The noise keys of every attempt at one task."""
    return frozenset(
        noise_key(SEED, "train", "d", task, number, sibling, 0)
        for number in range(tries * epochs)
        for sibling in range(GROUP_SIZE)
    )


RECIPE = Recipe(advantage=Call("group_normalised"), loss=Call("clipped"), aggregation=Call("token_mean"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What a run on fakes may differ in."""

    steps: int = 8
    groups_per_step: int = 4
    num_slots: int = 4
    reward: Mapping[str, Any] = field(default_factory=dict[str, Any])
    max_retries: int = 2
    max_failed_groups: int = 16
    filters: tuple[Call, ...] = ()
    max_filtered_groups: int = 100
    stragglers: frozenset[int] = frozenset()
    patience: int = 50
    generators: int = 1
    redundant_groups: int = 0
    redundant_siblings: int = 0
    max_age: int = 0
    max_new_tokens: int = 3
    checkpoint_every: int = 0


class Rig:
    """Everything of one run, open to be looked at."""

    def __init__(
        self, path: Path, setting: Setting, trainer: FakeTrainer | None = None, engine: FakeGenerator | None = None
    ) -> None:
        self.journal = Journal(path / "journal.db")
        self.trainer = trainer or FakeTrainer()
        self.engines = [
            engine or FakeGenerator(stragglers=setting.stragglers, patience=setting.patience)
            for _ in range(setting.generators)
        ]
        # Ids 10 to 19, which the fake generator writes, are the digits.
        self.template = Template(character_tokenizer("+=()?!0123456789"))
        trainers, generators = InlineCluster[Trainer]([self.trainer]), InlineCluster[Generator](self.engines)
        self.router = Router(generators, max_wait_s=0.1)
        self.buffer = Buffer(
            num_slots=setting.num_slots,
            first_ticket=self.journal.last_group() + 1,
            redundant=setting.redundant_groups,
            max_age=setting.max_age,
        )
        self.publisher = Publisher(
            trainers=trainers, generators=generators, router=self.router, journal=self.journal, plan=Plan(names=())
        )
        limits = Limits(
            sampling=Sampling(), context=64, max_new_tokens=setting.max_new_tokens, max_turns=1, stop=frozenset({1})
        )
        runner = EpisodeRunner(router=self.router, template=self.template, limits=limits)
        reward = Call(f"{__name__}:digit", dict(setting.reward))
        source = Source(name="d", tasks=TASKS, env=Call("single_turn"), reward=reward)
        self.mixture = Mixture([Part(name="d", tasks=TASKS)], seed=SEED)
        self.scheduler = Scheduler(
            mixture=self.mixture,
            sources={"d": source},
            runner=runner,
            buffer=self.buffer,
            journal=self.journal,
            policy=Policy(
                group_size=GROUP_SIZE,
                max_retries=setting.max_retries,
                max_failed_groups=setting.max_failed_groups,
                filters=setting.filters,
                max_filtered_groups=setting.max_filtered_groups,
                redundant_groups=setting.redundant_groups,
                redundant_siblings=setting.redundant_siblings,
                seed=SEED,
            ),
            serving=self.publisher.serving,
        )
        self.metrics: dict[int, Mapping[str, float]] = {}
        self.asked_to_stop = False
        keeper = self.keeper = Keeper(
            directory=path,
            checkpoints=Checkpoints(path / "checkpoints", keep=2),
            trainers=trainers,
            critic=None,
            journal=self.journal,
            tokenizer=self.template.tokenizer,
            best="validation/reward",
        )
        self.loop = Loop(
            pace=Pace(
                steps=setting.steps,
                groups_per_step=setting.groups_per_step,
                validate_every=0,
                validate_at_start=False,
                checkpoint_every=setting.checkpoint_every,
                keep_steps=None,
            ),
            scheduler=self.scheduler,
            buffer=self.buffer,
            router=self.router,
            learner=Learner(
                recipe=RECIPE,
                actor=trainers,
                models=Models(),
                journal=self.journal,
                keeper=keeper,
                max_refused=2,
                seed=SEED,
                memory=Memory(),
            ),
            publisher=self.publisher,
            validator=Validator(sources=[], runner=runner, seed=SEED),
            journal=self.journal,
            keeper=keeper,
            report=self.metrics.__setitem__,
            stopping=lambda: self.asked_to_stop,
        )

    def close(self) -> None:
        self.journal.close()

    def events(self, kind: type[Event]) -> list[Any]:
        """What happened, in order."""
        self.journal.flush()
        return [entry.event for entry in self.journal.events(kind)]

    async def run(self, held: Sequence[Held] = ()) -> int:
        """The whole run, with groups of an earlier process; nothing in it may hang."""
        await self.trainer.start()
        async with asyncio.timeout(20):
            return await self.loop.run(0, held)

    async def resume(self) -> list[Held]:
        """Go on from the newest checkpoint to the end; the groups that were found under way."""
        await self.trainer.start()
        before, _ = await self.keeper.restore()
        found = standing(before, self.mixture, self.journal)
        self.scheduler.returned, self.publisher.step_of = found.returned, found.step_of
        self.journal.record(RolledBack(to_step=before["step"], why="resumed"))
        self.publisher.version = max(entry.event.version for entry in self.journal.events(Published))
        async with asyncio.timeout(20):
            await self.loop.run(before["step"], found.held)
        return found.held
