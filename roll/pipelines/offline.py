"""The loops of training on fixed examples: of a policy, and of any model.

The order of examples is a function of seed and epoch, so a resumed run needs only weights, optimizer and step.
"""

from __future__ import annotations

import asyncio
import time
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from roll.errors import RunStopped, root_cause
from roll.journal.events import ValidationFinished, WeightsUpdated
from roll.journal.store import Journal
from roll.pipelines.checkpointer import Checkpointer
from roll.rollout.inflight import SchedulerState
from roll.rollout.validation import Validator, summarise
from roll.serving.device_sharing import DeviceSharing
from roll.serving.policies import Publishers, Routers
from roll.tracking.meter import Meter
from roll.tracking.progress import bar


@dataclass(frozen=True, slots=True, kw_only=True)
class OfflineSchedule:
    """Length of the run, and its intervals in steps."""

    section: str
    """The section of the file with its settings, for errors."""
    steps: int
    batch_size: int
    """Examples per step."""
    validate_every: int
    seed: int


@dataclass(slots=True, kw_only=True)
class FixedLoop(ABC):
    """One run on fixed examples; a subclass knows what a step does and what is measured."""

    schedule: OfflineSchedule
    journal: Journal
    checkpointer: Checkpointer
    report: Callable[[int, Mapping[str, float]], None]
    stopping: Callable[[], bool]
    """Whether the user asked to stop after this step."""
    meter: Meter = field(default_factory=Meter)

    @abstractmethod
    async def update(self, step: int) -> None:
        """Train on the examples of one step."""

    @abstractmethod
    async def validate(self, step: int) -> None:
        """Measure the current weights."""

    async def run(self, start: int = 0) -> int:
        """Train from `start` finished steps to the last; the number of steps finished now."""
        try:
            finished = await self.train(start)
            await self.checkpointer.finish()
        finally:
            await self.checkpointer.settle()
        return finished

    async def train(self, start: int) -> int:
        """One iteration is one step: one batch, one update."""
        schedule, meter = self.schedule, self.meter
        if start == 0:
            await self.validate(0)
            self.report(0, meter.flush())
        for step in range(start + 1, schedule.steps + 1):
            began = time.perf_counter()
            await self.enter_update()
            await self.update(step)
            last = step == schedule.steps or self.stopping()
            if step % schedule.validate_every == 0 or step == schedule.steps:
                await self.validate(step)
            metrics = {**meter.flush(), "time/step": time.perf_counter() - began}
            if self.checkpointer.due(step) or last:
                await self.checkpoint(step, metrics)
            self.report(step, metrics | meter.flush())
            if last:
                return step
        return schedule.steps

    async def enter_update(self) -> None:  # noqa: B027 - without shared devices there is nothing to do
        """Make room for the trainer on shared devices."""

    def record_update(self, step: int, metrics: Mapping[str, float], num_trained: int) -> None:
        """Record an optimizer step; raises `RunStopped` if it was not finite."""
        self.journal.record(WeightsUpdated(step=step, refused=metrics["loss/refused"] > 0))
        if metrics["loss/refused"]:
            optimizer = f"{self.schedule.section}.optimizer"
            raise RunStopped(
                f"step {step}: loss or gradient is not finite; lower {optimizer}.lr or {optimizer}.max_grad_norm"
            )
        self.meter.log({name: metrics[name] for name in ("loss/grad_norm", "loss/lr")})
        self.meter.log({"tokens/trained": float(num_trained)})

    async def checkpoint(self, step: int, metrics: Mapping[str, float]) -> None:
        """Make this step durable: a resumed run continues from here."""
        with self.meter("checkpoint"):
            self.journal.flush(durable=True)
            await self.checkpointer.save(step, SchedulerState(mixture={}), {}, metrics)


@dataclass(slots=True, kw_only=True)
class OfflineLoop(FixedLoop):
    """One run of a policy on fixed examples, with all its parts already built."""

    routers: Routers
    publishers: Publishers
    validator: Validator
    device_sharing: DeviceSharing | None
    """Offloading on shared devices; None: everything fits."""

    @abstractmethod
    async def measure_held_out(self) -> Mapping[str, float]:
        """Metrics of all held-out examples; empty if there are none."""

    async def run(self, start: int = 0) -> int:
        """Train from `start` finished steps to the last; the number of steps finished now."""
        try:
            async with asyncio.TaskGroup() as background:
                tasks = [background.create_task(each.run()) for each in (self.routers, self.publishers)]
                finished = await self.train(start)
                await self.checkpointer.finish()
                for task in tasks:
                    task.cancel()
        except BaseExceptionGroup as group:
            raise root_cause(group) from None
        finally:
            await self.checkpointer.settle()
        return finished

    async def enter_update(self) -> None:
        if self.device_sharing is not None:
            await self.device_sharing.enter("update")

    async def validate(self, step: int) -> None:
        """Measure the current weights on held-out examples, and on held-out tasks."""
        with self.meter("validate"):
            self.meter.log(await self.measure_held_out())
        if not self.validator.sources:
            return
        with self.meter("publish"):
            await self.publishers.publish(step)
        with self.meter("validate"), bar(self.validator.num_tasks, "validation") as advance:
            results = await self.validator.run(advance)
        metrics = summarise(results)
        self.meter.log(metrics)
        self.journal.record(ValidationFinished(step=step, version=self.publishers.version, metrics=dict(metrics)))


def indices_of(step: int, schedule: OfflineSchedule, num_examples: int) -> list[int]:
    """The examples of a step: consecutive ones of an order that is new in every epoch."""
    positions = range((step - 1) * schedule.batch_size, step * schedule.batch_size)
    orders = {
        epoch: np.random.default_rng(zlib.crc32(f"{schedule.seed} {epoch}".encode())).permutation(num_examples)
        for epoch in {position // num_examples for position in positions}
    }
    return [int(orders[position // num_examples][position % num_examples]) for position in positions]


def chunks(num_examples: int, size: int) -> Iterator[list[int]]:
    """The indices of all examples in runs of at most `size`, as even as possible."""
    if num_examples:
        for part in np.array_split(np.arange(num_examples), -(-num_examples // size)):
            yield part.tolist()
