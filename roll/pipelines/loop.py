"""The reinforcement learning loop. Read this first.

    mixture -> [scheduler] -> buffer -> [train] -> publisher -> generators
                    ^                       |
                    +------- release -------+

Background tasks fill the buffer as fast as its slots allow, `train` empties it. How far the first may run ahead of the
second is `max_staleness`, and nothing else; 0 is the synchronous loop.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import partial

from roll.data.collate import collate
from roll.errors import RunStopped, leaf
from roll.journal.events import Generated, Released, Taken, Validated
from roll.journal.store import Journal
from roll.pipelines.checkpointer import Keeper
from roll.pipelines.learner import Learner
from roll.pipelines.policies import Learners
from roll.pipelines.reminders import told
from roll.rollout.buffer import Buffer
from roll.rollout.inflight import Held
from roll.rollout.scheduler import Scheduler
from roll.rollout.statistics import compare, describe
from roll.rollout.validation import Validator, summarise
from roll.serving.counts import Tally
from roll.serving.policies import Publishers, Routers
from roll.serving.publisher import Publisher
from roll.serving.router import Router
from roll.tracking.meter import Meter
from roll.tracking.progress import bar


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How long, and what happens how often."""

    steps: int
    groups_per_step: int
    validate_every: int
    validate_at_start: bool
    checkpoint_every: int
    keep_steps: int | None


@dataclass(slots=True, kw_only=True)
class Loop:
    """Everything one run needs, already built."""

    pace: Pace
    scheduler: Scheduler
    buffer: Buffer
    router: Router | Routers
    learner: Learner | Learners
    publisher: Publisher | Publishers
    validator: Validator
    journal: Journal
    keeper: Keeper
    report: Callable[[int, Mapping[str, float]], None]
    stopping: Callable[[], bool]
    """Whether someone has asked to leave after this step."""
    notice: Callable[[str], None] = print
    """Hears of what a person should know at once."""
    meter: Meter = field(default_factory=Meter)
    counts: Callable[[], Mapping[str, float]] = dict[str, float]
    """What others counted since the last step."""

    async def run(self, start: int = 0, held: Sequence[Held] = ()) -> int:
        """Train from `start` finished steps to the last, and say how many are finished now.

        `held` are groups that an earlier process had under way.
        """
        num_groups = (self.pace.steps - start) * self.pace.groups_per_step
        await self.publisher.publish(start)  # before the first admission, which needs a version to be born at
        try:
            async with asyncio.TaskGroup() as background:  # if one dies, the run dies
                tasks = [
                    background.create_task(self.router.run()),
                    background.create_task(self.scheduler.run(num_groups, held)),
                ]
                try:
                    finished = await self.train(start)
                    await self.keeper.finish()
                finally:
                    self.scheduler.runner.ending()
                for task in tasks:
                    task.cancel()
        except BaseExceptionGroup as group:
            raise leaf(group) from None
        finally:
            with suppress(RunStopped):  # the journal itself may be what failed
                self._account(self.publisher.serving().step)
        return finished

    async def train(self, start: int) -> int:
        """One iteration is one step: one batch, one update, one version."""
        meter, num_groups = self.meter, self.pace.groups_per_step
        if start == 0 and self.pace.validate_at_start:
            await self.validate(0)
            self.report(0, meter.flush())
        for step in range(start + 1, self.pace.steps + 1):
            began = time.perf_counter()
            with meter("wait"):
                taking = self.buffer.take(num_groups, step - 1)  # oldest admitted first
                groups, late = await told(taking, partial(self.stalled, step))
            self.scheduler.abandon(late)
            meter.log(describe(groups, step=step, step_of=self.publisher.step_of))
            meter.log(compare(groups, self.buffer.ready()))
            self.journal.record(Taken(step=step, groups=tuple(group.id for group in groups)))
            self.journal.flush(durable=True)
            with meter("score"):
                batch = await self.learner.score(collate(groups), meter)  # what other models say of it, where needed
            batch = self.learner.credit(batch, meter)
            with meter("update"):
                await self.learner.update(step, batch, meter)
            with meter("publish"):
                await self.publisher.publish(step)  # a new version; attested
            self.scheduler.forget(groups)
            last = step == self.pace.steps or self.stopping()
            if _due(step, self.pace.validate_every) or step == self.pace.steps:
                await self.validate(step)
            if _due(step, self.pace.checkpoint_every) or last:
                await self.checkpoint(step)
            await self.buffer.release(num_groups + len(late))  # only now may fresher groups start
            self.journal.record(Released(step=step))
            self.finish(step, time.perf_counter() - began)
            if last:
                return step
        return self.pace.steps

    def stalled(self, step: int, seconds: float) -> None:
        """Say what a step has been waiting for."""
        where = [f"{number} {what}" for what, number in self.router.whereabouts().items()]
        ready = f"{len(self.buffer.ready())} of {self.pace.groups_per_step} groups are complete"
        self.notice(f"step {step} has waited {seconds:.0f} s: {ready}; attempts: {', '.join(where) or 'none'}")

    async def validate(self, step: int) -> None:
        """Measure the version that is being served; nothing is published meanwhile."""
        if not self.validator.sources:
            return
        with self.meter("validate"), bar(self.validator.num_tasks, "validation") as advance:
            found = await self.validator.run(advance)
        metrics = summarise(found)
        self.meter.log(metrics)
        num_tokens = sum(each.num_sampled for attempts in found.values() for each in attempts)
        version = self.publisher.version
        self.journal.record(Validated(step=step, version=version, metrics=dict(metrics), num_tokens=num_tokens))

    async def checkpoint(self, step: int) -> None:
        """Make this step durable: from here a resumed run goes on."""
        with self.meter("checkpoint"):
            self.journal.flush(durable=True)
            await self.keeper.save(step, self.scheduler.state(), self.learner.memory, self.meter.peek())

    def finish(self, step: int, seconds: float) -> None:
        """Report the step and forget what is too old to keep."""
        metrics = {**self.meter.flush(), **self.scheduler.drain_counts(), **self.counts(), "time/step": seconds}
        self._account(step)
        metrics["speed/tokens_per_s"] = metrics["tokens/generated"] / seconds
        self.report(step, metrics)
        if self.pace.keep_steps is not None:
            self.journal.prune(step - self.pace.keep_steps)

    def _account(self, step: int) -> None:
        """Note what was sampled since the last time."""
        tally, self.router.tally = self.router.tally, Tally()
        self.journal.record(Generated(step=step, **asdict(tally)))


def _due(step: int, every: int) -> bool:
    return every > 0 and step % every == 0
