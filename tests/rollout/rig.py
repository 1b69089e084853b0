"""A whole run on fake engines: the real scheduler, buffer, router and loop, and nothing that computes."""

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from roll.algorithms.credit import AlgorithmState
from roll.algorithms.recipe import Recipe
from roll.checkpoint import Checkpoints
from roll.cluster.inline import InlineCluster
from roll.config.rollout import Rollout
from roll.data.mixture import Mixture, MixturePart
from roll.data.templates import Template, character_tokenizer
from roll.engines.base import Generator, Trainer
from roll.engines.fake import FakeGenerator, FakeTrainer
from roll.engines.native.sampling import noise_key
from roll.journal.events import Event, RolledBack
from roll.journal.store import Journal
from roll.pipelines.checkpointer import Checkpointer
from roll.pipelines.learner import Learner, Learners
from roll.pipelines.loop import Loop, LoopSchedule
from roll.pipelines.ratio import build_ratio_recorder
from roll.pipelines.reference_models import AuxiliaryModels
from roll.rollout.buffer import Buffer
from roll.rollout.early_stop import EarlyStop
from roll.rollout.episode.runner import EpisodeLimits, EpisodeRunner
from roll.rollout.inflight import InflightGroup
from roll.rollout.resume import resume_from
from roll.rollout.scheduler import Scheduler, SchedulerConfig
from roll.rollout.selection import Priority, ReplayLimits
from roll.rollout.source import TaskSource
from roll.rollout.validation import Validator
from roll.serving.policies import Publishers, Routers
from roll.serving.publisher import Publisher
from roll.serving.router import Router
from roll.types import Message, Sampling, Spec, Task

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


RECIPE = Recipe(advantage=Spec("group_normalised"), loss=Spec("clipped"), aggregation=Spec("token_mean"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What a run on fakes may differ in."""

    steps: int = 8
    groups_per_step: int = 4
    num_slots: int = 4
    reward: Mapping[str, Any] = field(default_factory=dict[str, Any])
    max_retries: int = 2
    max_failed_groups: int = 16
    filters: tuple[Spec, ...] = ()
    max_filtered_groups: int = 100
    stragglers: frozenset[int] = frozenset()
    delay: int = 50
    generators: int = 1
    redundant_groups: int = 0
    redundant_siblings: int = 0
    max_age: int = 0
    max_new_tokens: int = 3
    checkpoint_every: int = 0
    checkpoint_every_s: float = math.inf
    clock: Callable[[], float] = time.monotonic
    in_order: bool = False
    reuse: int = 1
    replayed: int | None = None
    """Groups per step that are trained on again; None: so many that every group is used `reuse` times."""
    priority: Priority = "age"
    keep_steps: int | None = None
    stop_quantile: float | None = None
    adapted: Rollout | None = None
    """Its `adapt` has the bounds of a controller, if there is one."""

    @property
    def num_replayed(self) -> int:
        all_uses = self.groups_per_step - self.groups_per_step // self.reuse
        return all_uses if self.replayed is None else self.replayed


class Rig:
    """Everything of one run, open to be looked at."""

    def __init__(
        self,
        path: Path,
        setting: Setting,
        trainer: FakeTrainer | None = None,
        make_engine: Callable[..., FakeGenerator] = FakeGenerator,
        cluster: InlineCluster[Generator] | None = None,
    ) -> None:
        self.journal = Journal(path / "journal.db")
        self.trainer = trainer or FakeTrainer()
        self.engines = [
            make_engine(stragglers=setting.stragglers, delay=setting.delay) for _ in range(setting.generators)
        ]
        # Ids 10 to 19, which the fake generator writes, are the digits.
        self.template = Template(character_tokenizer("+=()?!0123456789"))
        trainers, generators = InlineCluster[Trainer]([self.trainer]), cluster or InlineCluster[Generator](self.engines)
        self.router = Router(generators, max_wait_s=0.1)
        self.buffer = Buffer(
            num_slots=setting.num_slots,
            first_ticket=self.journal.last_group() + 1,
            redundant=setting.redundant_groups,
            max_age=setting.max_age,
            replay=ReplayLimits(max_uses=setting.reuse, num_groups=setting.num_replayed),
            priority=setting.priority,
        )
        self.publisher = Publisher(trainers=trainers, generators=generators, router=self.router, journal=self.journal)
        limits = EpisodeLimits(
            sampling=Sampling(), max_seq_len=64, max_new_tokens=setting.max_new_tokens, max_turns=1, stop=frozenset({1})
        )
        runner = EpisodeRunner(router=self.router, template=self.template, limits=limits)
        reward = Spec(f"{__name__}:digit", dict(setting.reward))
        source = TaskSource(name="d", tasks=TASKS, env=Spec("single_turn"), reward=reward)
        self.mixture = Mixture([MixturePart(name="d", tasks=TASKS)], seed=SEED)
        self.scheduler = Scheduler(
            mixture=self.mixture,
            sources={"d": source},
            runner=runner,
            buffer=self.buffer,
            journal=self.journal,
            config=SchedulerConfig(
                group_size=GROUP_SIZE,
                max_retries=setting.max_retries,
                max_failed_groups=setting.max_failed_groups,
                filters=setting.filters,
                max_filtered_groups=setting.max_filtered_groups,
                redundant_groups=setting.redundant_groups,
                redundant_siblings=setting.redundant_siblings,
                in_order=setting.in_order,
                seed=SEED,
            ),
            serving=Publishers({"": self.publisher}).serving,
        )
        if setting.stop_quantile is not None:
            self.scheduler.early_stop = EarlyStop(
                quantile=setting.stop_quantile, group_size=GROUP_SIZE, due=lambda: self.buffer.due
            )
        self.metrics: dict[int, Mapping[str, float]] = {}
        self.asked_to_stop = False
        checkpointer = self.checkpointer = Checkpointer(
            directory=path,
            checkpoints=Checkpoints(path / "checkpoints", keep=2),
            trainers={"": trainers},
            critic=None,
            journal=self.journal,
            tokenizer=self.template.tokenizer,
            best="validation/reward",
            every=setting.checkpoint_every,
            every_s=setting.checkpoint_every_s,
            clock=setting.clock,
        )
        learner = Learner(
            recipe=RECIPE,
            actor=trainers,
            models=AuxiliaryModels(),
            journal=self.journal,
            checkpointer=checkpointer,
            max_nonfinite_updates=2,
            seed=SEED,
            state=AlgorithmState(),
        )
        self.loop = Loop(
            schedule=LoopSchedule(
                steps=setting.steps,
                groups_per_step=setting.groups_per_step,
                validate_every=0,
                validate_at_start=False,
                keep_steps=setting.keep_steps,
            ),
            scheduler=self.scheduler,
            buffer=self.buffer,
            routers=Routers({"": self.router}),
            learners=Learners(by_policy={"": learner}),
            publishers=Publishers({"": self.publisher}),
            validator=Validator(sources=[], runner=runner, seed=SEED),
            journal=self.journal,
            checkpointer=checkpointer,
            report=self.report,
            stopping=lambda: self.asked_to_stop,
        )

        self.adapted = setting.adapted or Rollout()
        self.ratio = build_ratio_recorder(self.adapted, self.buffer, self.loop.routers, self.journal, None)

    def report(self, step: int, metrics: Mapping[str, float]) -> None:
        self.metrics[step] = metrics
        self.ratio.observe(step, metrics)

    def close(self) -> None:
        self.journal.close()

    def events(self, kind: type[Event]) -> list[Any]:
        """What happened, in order."""
        self.journal.flush()
        return [entry.event for entry in self.journal.events(kind)]

    async def run(self, inflight: Sequence[InflightGroup] = ()) -> int:
        """The whole run, with groups of an earlier process; nothing in it may hang."""
        await self.trainer.start()
        async with asyncio.timeout(20):
            return await self.loop.run(0, inflight)

    async def resume(self) -> list[InflightGroup]:
        """Continue from the newest checkpoint to the end; the groups that were in flight."""
        await self.trainer.start()
        state = resume_from(await self.checkpointer.restore(), self.mixture, self.journal)
        self.scheduler.returned = deque(state.returned)
        self.ratio = build_ratio_recorder(self.adapted, self.buffer, self.loop.routers, self.journal, state.step)
        self.publisher.version, self.publisher.step_of = state.version, dict(state.step_of)
        self.journal.record(RolledBack(to_step=state.step, reason="resumed"))
        async with asyncio.timeout(20):
            await self.loop.run(state.step, state.groups)
        return list(state.groups)
