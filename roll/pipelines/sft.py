"""The supervised warm start: learn the answers of tasks token by token, until held-out accuracy is high enough."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from roll.algorithms.recipe import Objective
from roll.cluster.handle import Cluster
from roll.data.collate import split, supervised
from roll.data.mixture import Draw, Mixture
from roll.data.templates import Template
from roll.engines.base import Trainer
from roll.errors import ConfigError, RunStopped, leaf
from roll.rollout.episode.demonstration import Demonstrator, Row
from roll.rollout.source import Source
from roll.rollout.validation import Validator, summarise
from roll.serving.publisher import Publisher
from roll.serving.router import Router
from roll.tracking.progress import bar
from roll.types import Batch, Call, Task

_LOSS = Objective(loss=Call("policy_gradient"))
"""With an advantage of one on every answer token this is cross-entropy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmStart:
    """Everything one warm start needs, already built."""

    steps: int
    batch_size: int
    validate_every: int
    stop_at: float | None
    context: int
    mixture: Mixture
    sources: Mapping[str, Source]
    """By name."""
    demonstrator: Demonstrator | None
    """Plays the tasks to be learnt from; None: they have answers."""
    template: Template
    trainers: Cluster[Trainer]
    publisher: Publisher
    router: Router
    validator: Validator
    report: Callable[[int, Mapping[str, float]], None]
    stopping: Callable[[], bool]

    async def run(self) -> int:
        """Train until accuracy, steps or the user say stop; how many steps it took."""
        try:
            async with asyncio.TaskGroup() as background:
                routing = background.create_task(self.router.run())
                finished = await self.train()
                routing.cancel()
        except BaseExceptionGroup as group:
            raise leaf(group) from None
        return finished

    async def train(self) -> int:
        for step in range(1, self.steps + 1):
            batch = await self.batch()
            shards = split(batch, self.trainers.size)
            found = (await self.trainers.scatter(Trainer.update, shards, _LOSS))[0]
            if found["loss/refused"]:
                raise RunStopped(f"step {step}: loss or gradient is not finite; lower sft.optimizer.lr")
            metrics = {"sft/loss": found["loss/policy"], "loss/grad_norm": found["loss/grad_norm"]}
            if self.validator.sources and (step % self.validate_every == 0 or step == self.steps):
                metrics["sft/accuracy"] = await self.accuracy(step)
            self.report(step, metrics)
            reached = self.stop_at is not None and metrics.get("sft/accuracy", 0.0) >= self.stop_at
            if reached or self.stopping():
                return step
        return self.steps

    async def batch(self) -> Batch:
        """The next tasks with what is to be learnt of them."""
        return supervised([row for _ in range(self.batch_size) for row in await self.rows(self.mixture.draw())])

    async def rows(self, draw: Draw) -> Sequence[Row]:
        """The task's answer, or what the demonstrator does with it."""
        if self.demonstrator is None:
            return [self.pair(draw.task)]
        return await self.demonstrator.rows(draw.task, self.sources[draw.source].env)

    def pair(self, task: Task) -> Row:
        """Prompt and answer of one task, as ids."""
        place = f"task {task.id!r}"
        if not isinstance(task.answer, str):
            raise ConfigError(f"{place}: its answer is not text (got {task.answer!r}); a warm start learns text")
        prompt = self.template.open(task.messages, place=place).tolist()
        answer = self.template.answer(task.answer, place=place).tolist()
        if len(prompt) + len(answer) > self.context:
            raise ConfigError(
                f"{place}: {len(prompt)} + {len(answer)} tokens do not fit rollout.context ({self.context}); raise it"
            )
        return [prompt, answer]

    async def accuracy(self, step: int) -> float:
        """Greedy accuracy on the held-out tasks, with the weights as they are."""
        await self.publisher.publish(step)
        with bar(self.validator.num_tasks, "validation") as advance:
            return summarise(await self.validator.run(advance)).get("validation/accuracy", 0.0)
