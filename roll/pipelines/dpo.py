"""Preference optimisation: train on pairs of responses, or on labelled ones, until the steps are done.

A step scores its examples with the current weights, turns the gradient of the loss into one coefficient per response,
and trains on the response's tokens with it. The order of examples is a function of seed and epoch, so a resumed run
needs only weights, optimizer and step.
"""

from __future__ import annotations

import asyncio
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from roll.algorithms.preferences import OBJECTIVE, compare, losses_of, preference_metrics, with_preference_gradient
from roll.data.collate import split
from roll.data.preference_rows import PreferenceExample
from roll.engines.base import Trainer
from roll.errors import RunStopped, root_cause
from roll.journal.events import ValidationFinished, WeightsUpdated
from roll.journal.store import Journal
from roll.pipelines.checkpointer import Checkpointer
from roll.pipelines.preference_scores import PreferenceScorer, chunks
from roll.rollout.inflight import SchedulerState
from roll.rollout.validation import Validator, summarise
from roll.serving.device_sharing import DeviceSharing
from roll.serving.policies import Publishers, Routers
from roll.tracking.meter import Meter
from roll.tracking.progress import bar
from roll.types import Spec


@dataclass(frozen=True, slots=True, kw_only=True)
class DpoSchedule:
    """Length of the run, and its intervals in steps."""

    steps: int
    batch_size: int
    """Examples per step."""
    validate_every: int
    seed: int


@dataclass(slots=True, kw_only=True)
class DpoLoop:
    """One run of preference optimisation, with all its parts already built."""

    schedule: DpoSchedule
    loss: Spec
    examples: Sequence[PreferenceExample]
    held_out: Sequence[PreferenceExample]
    scorer: PreferenceScorer
    held_out_scorer: PreferenceScorer
    """The same with the saved reference of the held-out examples."""
    routers: Routers
    publishers: Publishers
    validator: Validator
    device_sharing: DeviceSharing | None
    """Offloading on shared devices; None: everything fits."""
    journal: Journal
    checkpointer: Checkpointer
    report: Callable[[int, Mapping[str, float]], None]
    stopping: Callable[[], bool]
    """Whether the user asked to stop after this step."""
    meter: Meter = field(default_factory=Meter)

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

    async def train(self, start: int) -> int:
        """One iteration is one step: one batch, one update."""
        schedule, meter = self.schedule, self.meter
        if start == 0:
            await self.validate(0)
            self.report(0, meter.flush())
        for step in range(start + 1, schedule.steps + 1):
            began = time.perf_counter()
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

    async def update(self, step: int) -> None:
        """Train on the examples of one step."""
        if self.device_sharing is not None:
            await self.device_sharing.enter("update")
        with self.meter("score"):
            scored = await self.scorer.score(self.examples, indices_of(step, self.schedule, len(self.examples)))
            batch, losses = with_preference_gradient(
                scored.batch, self.loss, scored.responses, desirable=scored.desirable, baseline=scored.baseline
            )
        compared = compare(scored.responses, scored.desirable, scored.baseline)
        self.meter.log(preference_metrics(self.loss, losses, compared))
        with self.meter("update"):
            trainers = self.scorer.trainers
            metrics = (await trainers.scatter(Trainer.update, split(batch, trainers.size), OBJECTIVE))[0]
        self.journal.record(WeightsUpdated(step=step, refused=metrics["loss/refused"] > 0))
        if metrics["loss/refused"]:
            raise RunStopped(
                f"step {step}: loss or gradient is not finite; lower dpo.optimizer.lr or dpo.optimizer.max_grad_norm"
            )
        self.meter.log({name: metrics[name] for name in ("loss/grad_norm", "loss/lr")})
        self.meter.log({"tokens/trained": float(batch.trained.sum())})

    async def validate(self, step: int) -> None:
        """Measure the current weights on held-out preferences, and on held-out tasks."""
        if self.held_out:
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
        num_tokens = sum(each.num_sampled for attempts in results.values() for each in attempts)
        version = self.publishers.version
        self.journal.record(
            ValidationFinished(step=step, version=version, metrics=dict(metrics), num_tokens=num_tokens)
        )

    async def measure_held_out(self) -> dict[str, float]:
        """Metrics of all held-out preferences."""
        if self.device_sharing is not None:
            await self.device_sharing.enter("update")
        totals: dict[str, float] = {}
        for indices in chunks(len(self.held_out), self.schedule.batch_size):
            scored = await self.held_out_scorer.score(self.held_out, indices)
            compared = compare(scored.responses, scored.desirable, scored.baseline)
            metrics = preference_metrics(self.loss, losses_of(self.loss, compared), compared)
            for name in ("loss", "accuracy"):
                part = metrics[f"preference/{name}"] * len(indices) / len(self.held_out)
                totals[f"preference/held_out_{name}"] = totals.get(f"preference/held_out_{name}", 0.0) + part
        return totals

    async def checkpoint(self, step: int, metrics: Mapping[str, float]) -> None:
        """Make this step durable: a resumed run continues from here."""
        with self.meter("checkpoint"):
            self.journal.flush(durable=True)
            await self.checkpointer.save(step, SchedulerState(mixture={}), {}, metrics)


def indices_of(step: int, schedule: DpoSchedule, num_examples: int) -> list[int]:
    """The examples of a step: consecutive ones of an order that is new in every epoch."""
    positions = range((step - 1) * schedule.batch_size, step * schedule.batch_size)
    orders = {
        epoch: np.random.default_rng(zlib.crc32(f"{schedule.seed} {epoch}".encode())).permutation(num_examples)
        for epoch in {position // num_examples for position in positions}
    }
    return [int(orders[position // num_examples][position % num_examples]) for position in positions]
