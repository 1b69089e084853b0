"""Several policies learn from one batch, each from what its own agents did."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch

from roll.algorithms.credit import Memory
from roll.algorithms.partition import Part, joined, parted
from roll.pipelines.learner import Learner
from roll.tracking.meter import Meter
from roll.types import Batch


@dataclass(slots=True, kw_only=True)
class Learners:
    """A `Learner` for each policy: baselines and statistics are over its own agents' attempts, as if others were not.

    A policy whose agents said nothing in a whole batch does not learn in that step. What agents of a frozen policy said
    is not trained on.
    """

    learners: Mapping[str, Learner]
    """By policy; a frozen one has none."""
    policy_of: Mapping[str, str]
    """By agent."""

    @property
    def memory(self) -> Memory:
        """What all of them carry from step to step."""
        return Memory(policies={name: learner.memory for name, learner in self.learners.items()})

    async def score(self, batch: Batch, meter: Meter) -> Batch:
        """The batch with what the recipe needs to know of it."""
        parts = self._parts(batch)
        for name, part in parts.items():
            own = Meter()
            parts[name] = replace(part, batch=await self.learners[name].score(part.batch, own))
            _log(name, own, meter)
        return _whole(batch, parts)

    def credit(self, batch: Batch, meter: Meter) -> Batch:
        """The batch with its advantages."""
        parts = self._parts(batch)
        for name, part in parts.items():
            own = Meter()
            parts[name] = replace(part, batch=self.learners[name].credit(part.batch, own))
            _log(name, own, meter)
        return _whole(batch, parts)

    async def update(self, step: int, batch: Batch, meter: Meter) -> None:
        """Every optimizer step that this batch is good for, policy by policy."""
        for name, part in self._parts(batch).items():
            own = Meter()
            await self.learners[name].update(step, part.batch, own)
            _log(name, own, meter)
        meter.log({"tokens/trained": float(batch.trained.sum())})

    def _parts(self, batch: Batch) -> dict[str, Part]:
        """What is whose, by policy."""
        owners = [self.policy_of[agent] for agent in batch.agents]
        return {
            name: parted(batch, torch.tensor([owner == name for owner in owners]))
            for name in self.learners
            if name in owners
        }


def _whole(batch: Batch, parts: Mapping[str, Part]) -> Batch:
    """The batch of all parts; what is in none of them is not trained on."""
    if not parts:
        return replace(batch, trained=torch.zeros_like(batch.trained))
    return joined(batch, list(parts.values()))


def _log(name: str, own: Meter, meter: Meter) -> None:
    """One policy's metrics under its name."""
    meter.log({f"policy/{name}/{key}": value for key, value in own.flush().items()})
