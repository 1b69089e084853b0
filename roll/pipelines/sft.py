"""Supervised fine-tuning as a warm start: train on the answers of tasks until held-out accuracy is high enough."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from roll.algorithms.recipe import Objective
from roll.cluster.handle import Cluster
from roll.data.answer_rows import AnswerEncoder
from roll.data.collate import split, supervised
from roll.data.mixture import Draw, Mixture
from roll.engines.base import Trainer
from roll.errors import RunStopped, root_cause
from roll.rollout.episode.demonstration import Demonstrator, Row
from roll.rollout.source import TaskSource
from roll.rollout.validation import Validator, summarise
from roll.serving.publisher import Publisher
from roll.serving.router import Router
from roll.tracking.progress import bar
from roll.types import Spec

_LOSS = Objective(loss=Spec("policy_gradient"))
"""Equal to cross-entropy, as every answer token has advantage 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SftLoop:
    """One supervised run, with all its parts already built."""

    steps: int
    batch_size: int
    validate_every: int
    stop_at: float | None
    encoder: AnswerEncoder
    mixture: Mixture
    sources: Mapping[str, TaskSource]
    """Task sources by name."""
    demonstrator: Demonstrator | None
    """Plays the tasks to learn from; None: tasks have answers."""
    trainers: Cluster[Trainer]
    publisher: Publisher
    router: Router
    validator: Validator
    report: Callable[[int, Mapping[str, float]], None]
    stopping: Callable[[], bool]
    on_phase: Callable[[str], None] = lambda phase: None
    """Callback with the name of each phase as it begins."""

    async def run(self) -> int:
        """Train until the accuracy is reached, the steps are done or the user stops; the number of steps."""
        try:
            async with asyncio.TaskGroup() as background:
                routing = background.create_task(self.router.run())
                finished = await self.train()
                routing.cancel()
        except BaseExceptionGroup as group:
            raise root_cause(group) from None
        return finished

    async def train(self) -> int:
        for step in range(1, self.steps + 1):
            self.on_phase("wait")
            rows = await self.next_rows()
            self.on_phase("update")
            shards = split(supervised(rows), self.trainers.size)
            update = (await self.trainers.scatter(Trainer.update, shards, _LOSS))[0]
            if update["loss/refused"]:
                raise RunStopped(
                    f"step {step}: loss or gradient is not finite; lower sft.optimizer.lr "
                    "or sft.optimizer.max_grad_norm"
                )
            metrics = {"sft/loss": update["loss/policy"], "loss/grad_norm": update["loss/grad_norm"], **_counts(rows)}
            if self.validator.sources and (step % self.validate_every == 0 or step == self.steps):
                self.on_phase("validate")
                metrics["sft/accuracy"] = await self.accuracy(step)
            self.report(step, metrics)
            reached = self.stop_at is not None and metrics.get("sft/accuracy", 0.0) >= self.stop_at
            if reached or self.stopping():
                return step
        return self.steps

    async def next_rows(self) -> list[Row]:
        """The rows of the next batch."""
        return [row for _ in range(self.batch_size) for row in await self.rows(self.mixture.draw())]

    async def rows(self, draw: Draw) -> Sequence[Row]:
        """The task's chat, its prompt and answer, or the demonstrator's play."""
        if self.demonstrator is None:
            return [[*self.encoder.row(draw.task)]]
        return await self.demonstrator.rows(draw.task, self.sources[draw.source].env)

    async def accuracy(self, step: int) -> float:
        """Greedy accuracy of the current weights on the held-out tasks."""
        await self.publisher.publish(step)
        with bar(self.validator.num_tasks, "validation") as advance:
            return summarise(await self.validator.run(advance)).get("validation/accuracy", 0.0)


def _counts(rows: Sequence[Row]) -> dict[str, float]:
    """Responses that a batch trains on, and their tokens."""
    responses = [response for row in rows for response in row[1::2]]
    return {"sft/turns": float(len(responses)), "sft/tokens": float(sum(map(len, responses)))}
