"""One batch becomes one or more optimizer steps, as a recipe says."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass

from roll.algorithms.credit import Memory, assign_credit, minibatches, weigh
from roll.algorithms.recipe import Objective, Recipe
from roll.cluster.handle import Cluster
from roll.data.collate import split
from roll.engines.base import Trainer
from roll.errors import RunStopped
from roll.journal.events import Updated
from roll.journal.store import Journal
from roll.pipelines.checkpointer import Keeper
from roll.pipelines.reference_models import Models, score
from roll.serving.device_sharing import Turns
from roll.tracking.meter import Meter
from roll.types import Batch


@dataclass(slots=True, kw_only=True)
class Learner:
    """The actor, the models beside it, and what the algorithm remembers from step to step."""

    recipe: Recipe
    actor: Cluster[Trainer]
    models: Models
    journal: Journal
    keeper: Keeper
    max_refused: int
    """Updates in a row that may be refused before the run stops."""
    seed: int
    memory: Memory
    turns: Turns | None = None
    """Who makes room on shared devices; None: all of it fits."""
    name: str = ""
    """Of the policy, where a run has several."""
    notice: Callable[[str], None] = print
    """Hears of updates that are refused."""
    _kl_coefficient: float = 0.0
    """Of this step; what it is adapted to counts from the next on."""
    _num_refused: int = 0
    """Since the last one that was not."""

    async def score(self, batch: Batch, meter: Meter) -> Batch:
        """The batch with what the recipe needs to know of it; from here to the publication the trainers compute."""
        if self.turns is not None:
            await self.turns.enter("update")
        scored = await score(batch, self.actor, self.models, self.recipe.needs)
        if self.models.reward_model is not None:
            meter.log({"reward/model": float((scored.rewards - batch.rewards).mean())})
        return scored

    def credit(self, batch: Batch, meter: Meter) -> Batch:
        """The batch with its advantages."""
        self._kl_coefficient = self.memory.kl_coefficient
        batch, self.memory, metrics = assign_credit(batch, self.recipe, self.memory)
        meter.log(metrics)
        return batch

    async def update(self, step: int, batch: Batch, meter: Meter) -> None:
        """Every optimizer step that this batch is good for; the last one's metrics stand for the step."""
        policy, value = self.recipe.objective(self._kl_coefficient), Objective(loss=self.recipe.value_loss)
        for epoch in range(self.recipe.epochs):
            seed = zlib.crc32(f"{self.seed} {step} {epoch}".encode())
            for part in minibatches(batch, self.recipe.minibatches, seed=seed):
                weighed = weigh(part, self.recipe.aggregation, self.recipe.domains)
                if self.models.critic is not None:
                    found = await self._learn(self.models.critic, step, weighed, value)
                    meter.log({name.replace("loss/", "critic/"): number for name, number in found.items()})
                if step > self.recipe.critic_warmup:
                    meter.log(await self._learn(self.actor, step, weighed, policy))
        meter.log({"tokens/trained": float(batch.trained.sum())})

    async def _learn(
        self, cluster: Cluster[Trainer], step: int, batch: Batch, objective: Objective
    ) -> dict[str, float]:
        """One optimizer step, or its refusal."""
        found = (await cluster.scatter(Trainer.update, split(batch, cluster.size), objective))[0]
        refused = found["loss/refused"] > 0
        self.journal.record(Updated(step=step, refused=refused))
        self._num_refused = self._num_refused + 1 if refused else 0
        if refused:
            saved = self.keeper.save_refused(step, batch, self.name)
            place = f"policy {self.name!r}, step {step}" if self.name else f"step {step}"
            if self._num_refused >= self.max_refused:
                raise RunStopped(
                    f"{place}: {self._num_refused} updates in a row had a non-finite loss or gradient; "
                    f"the last batch is in {saved}; lower the learning rate or look at its rewards"
                )
            self.notice(f"{place}: an update was refused, its loss or gradient is not finite; its batch is in {saved}")
        return found
