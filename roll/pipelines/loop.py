"""The reinforcement learning loop. Read this first.

    mixture -> [scheduler] -> buffer -> [train] -> publishers -> generators
                    ^                       |
                    +------- release -------+

Background tasks fill the buffer as fast as its slots allow; `train` empties it. `max_staleness` alone bounds how far
sampling may run ahead of training; 0 is the synchronous loop.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field

from roll.data.collate import collate
from roll.errors import RunStopped, root_cause
from roll.journal.events import AdvantagesAssigned, SlotsReleased, StepStarted, TokensGenerated, ValidationFinished
from roll.journal.store import Journal
from roll.pipelines.checkpointer import Checkpointer
from roll.pipelines.learner import Learners
from roll.rollout.buffer import Buffer
from roll.rollout.inflight import InflightGroup
from roll.rollout.scheduler import Scheduler
from roll.rollout.statistics import compare, describe, mean_advantages, token_values
from roll.rollout.validation import Validator, describe_failures, summarise
from roll.serving.counts import GenerationCounts
from roll.serving.policies import Publishers, Routers
from roll.tracking.meter import Meter
from roll.tracking.progress import bar
from roll.types import Group, Trajectory

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopSchedule:
    """Length of the run, and intervals in steps; 0 is never."""

    steps: int
    groups_per_step: int
    validate_every: int
    validate_at_start: bool
    keep_steps: int | None
    """Steps whose trajectories stay in the journal; None: all."""


@dataclass(slots=True, kw_only=True)
class Loop:
    """One run, with all its parts already built."""

    schedule: LoopSchedule
    scheduler: Scheduler
    buffer: Buffer
    routers: Routers
    learners: Learners
    publishers: Publishers
    validator: Validator
    journal: Journal
    checkpointer: Checkpointer
    report: Callable[[int, Mapping[str, float]], None]
    stopping: Callable[[], bool]
    """Whether the user asked to stop after this step."""
    notice: Callable[[str], None] = print
    """Callback for user-facing notices."""
    meter: Meter = field(default_factory=Meter)
    counts: Callable[[], Mapping[str, float]] = dict[str, float]
    """Counts of other components since the last step."""
    inspect: Callable[[int, Sequence[Group]], Mapping[str, float]] = lambda step, groups: {}
    """Looks for reward hacking in the groups of a step; returns metrics."""
    save_attempts: Callable[[int, Mapping[str, Sequence[Trajectory]]], None] = lambda step, results: None
    """Stores the attempts of a validation, by source."""

    async def run(self, start: int = 0, inflight: Sequence[InflightGroup] = ()) -> int:
        """Train from `start` finished steps to the last; the number of steps finished now.

        `inflight` are groups that an earlier process had in flight.
        """
        num_new = (self.schedule.steps - start) * (self.schedule.groups_per_step - self.buffer.replay.num_groups)
        try:
            async with asyncio.TaskGroup() as background:  # if one fails, the run fails
                tasks = [background.create_task(each.run()) for each in (self.routers, self.publishers)]  # they recover
                await self.publishers.publish(start)  # before the first admission, which records the served version
                self.scheduler.restore_trained(inflight)
                tasks.append(background.create_task(self.scheduler.run(num_new, inflight)))
                finished = await self.train(start)
                await self.checkpointer.finish()
                for task in tasks:
                    task.cancel()
        except BaseExceptionGroup as group:
            raise root_cause(group) from None
        finally:
            await self.checkpointer.settle()
            with suppress(RunStopped):  # the journal itself may be what failed
                self._account(self.publishers.step_of.get(self.publishers.version, start))
        return finished

    async def train(self, start: int) -> int:
        """One iteration is one step: one batch, one update, one version."""
        meter = self.meter
        if start == 0 and self.schedule.validate_at_start:
            await self.validate(0)
            self.report(0, meter.flush())
        for step in range(start + 1, self.schedule.steps + 1):
            began = time.perf_counter()
            self.scheduler.admit_more(self.buffer.num_missing(step - 1))
            with meter("wait"):
                taken = await self.buffer.take(self.schedule.groups_per_step, step - 1)
            groups = taken.groups
            self.scheduler.abandon(taken.late)
            meter.log(describe(groups, step=step, step_of=self.publishers.step_of, num_reused=taken.num_reused))
            meter.log(taken.metrics | compare(groups, self.buffer.ready()) | self.scheduler.describe_stops(groups))
            self.journal.record(StepStarted(step=step, groups=tuple(group.id for group in groups)))
            meter.log(self.inspect(step, groups))
            self.journal.flush(durable=True)
            with meter("score"):
                batch = await self.learners.score(collate(groups), meter)  # reference, values, old logprobs
            batch = self.learners.credit(batch, meter)
            self.journal.record(AdvantagesAssigned(step=step, advantages=mean_advantages(groups, batch)))
            self.journal.record_token_values(token_values(step, groups, batch))
            with meter("update"):
                await self.learners.update(step, batch, meter)
            with meter("publish"):
                await self.publishers.publish(step)  # a new version; attested
            self.scheduler.forget(groups, step, taken.usable)
            last = step == self.schedule.steps or self.stopping()
            if _due(step, self.schedule.validate_every) or step == self.schedule.steps:
                await self.validate(step)
            metrics = self.collect_metrics(step, began)
            if self.checkpointer.due(step) or last:
                await self.checkpoint(step, metrics)
            await self.buffer.release(taken.num_freed)  # only now may fresher groups start
            self.journal.record(SlotsReleased(step=step))
            self.finish(step, _timed(metrics | meter.flush(), began))  # with the time of the checkpoint
            if last:
                return step
        return self.schedule.steps

    def describe_wait(self) -> str:
        """What a step that has no batch yet is waiting for."""
        attempts = [f"{number} {state}" for state, number in self.routers.inflight_counts().items()]
        ready = f"{len(self.buffer.ready())} of {self.schedule.groups_per_step} groups are complete"
        return f"{ready}; attempts: {', '.join(attempts) or 'none'}"

    async def validate(self, step: int) -> None:
        """Measure the served version; nothing is published meanwhile."""
        if not self.validator.sources:
            return
        with self.meter("validate"), bar(self.validator.num_tasks, "validation") as advance:
            results = await self.validator.run(advance)
        self.save_attempts(step, results)
        if failures := describe_failures(results):
            _LOG.warning("step %d: %s", step, failures)
        metrics = summarise(results)
        self.meter.log(metrics)
        self.journal.record(ValidationFinished(step=step, version=self.publishers.version, metrics=dict(metrics)))

    def collect_metrics(self, step: int, began: float) -> dict[str, float]:
        """The metrics of a step that began at this time, up to now."""
        metrics = {**self.meter.flush(), **self.scheduler.drain_counts(), **self.counts()}
        self._account(step)
        return _timed(metrics, began)

    async def checkpoint(self, step: int, metrics: Mapping[str, float]) -> None:
        """Make this step and its metrics durable: a resumed run continues from here."""
        with self.meter("checkpoint"):
            self.journal.flush(durable=True)
            await self.checkpointer.save(step, self.scheduler.state(), self.learners.state, metrics)

    def finish(self, step: int, metrics: Mapping[str, float]) -> None:
        """Report the step and prune old trajectories from the journal."""
        self.report(step, metrics)
        if self.schedule.keep_steps is not None:
            oldest = self.buffer.oldest_use(self.checkpointer.checkpoints.resume_step() or step)
            self.journal.prune(min(step - self.schedule.keep_steps, oldest or step))

    def _account(self, step: int) -> None:
        """Record the tokens generated since the last call."""
        counts, self.routers.counts = self.routers.counts, GenerationCounts()
        self.journal.record(TokensGenerated(step=step, **asdict(counts)))


def _timed(metrics: Mapping[str, float], began: float) -> dict[str, float]:
    seconds = time.perf_counter() - began
    return {**metrics, "time/step": seconds, "speed/tokens_per_s": metrics["tokens/generated"] / seconds}


def _due(step: int, every: int) -> bool:
    return every > 0 and step % every == 0
