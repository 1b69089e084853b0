"""Training of a reward model: on pairs, ratings, labels or labelled steps of responses, until the steps are done.

A step reads the scores of its examples with the current weights, turns the gradient of the loss into one coefficient
per score, and trains on the positions at which they were read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from roll.algorithms.reward_losses import OBJECTIVE, Scored, reward_losses, scored_examples, with_reward_gradient
from roll.algorithms.reward_metrics import held_out_metrics, reward_metrics
from roll.cluster.handle import Cluster
from roll.data.collate import split
from roll.data.reward_batch import reward_batch
from roll.data.reward_rows import RewardExample
from roll.engines.base import Trainer
from roll.pipelines.offline import FixedLoop, chunks, indices_of
from roll.pipelines.reference_models import values_of
from roll.tracking.progress import bar
from roll.types import Spec


@dataclass(slots=True, kw_only=True)
class RewardLoop(FixedLoop):
    """One run of reward training, with all its parts already built."""

    loss: Spec
    rated: bool
    """Whether targets are ratings, so that scores are no logits."""
    examples: Sequence[RewardExample]
    held_out: Sequence[RewardExample]
    trainers: Cluster[Trainer]

    async def update(self, step: int) -> None:
        """Train on the examples of one step."""
        examples = [self.examples[index] for index in indices_of(step, self.schedule, len(self.examples))]
        with self.meter("score"):
            batch, read = reward_batch(examples)
            scored = _scored(examples, (await values_of(batch, self.trainers))[read])
            batch, losses = with_reward_gradient(batch, read, self.loss, scored)
        self._log(reward_metrics(losses, scored, rated=self.rated))
        with self.meter("update"):
            shards = split(batch, self.trainers.size)
            metrics = (await self.trainers.scatter(Trainer.update, shards, OBJECTIVE))[0]
        self.record_update(step, metrics, int(read.sum()))

    async def validate(self, step: int) -> None:
        """Measure the current weights on the held-out examples."""
        if not self.held_out:
            return
        parts: list[torch.Tensor] = []
        with self.meter("validate"), bar(len(self.held_out), "held-out examples") as advance:
            for indices in chunks(len(self.held_out), self.schedule.batch_size):
                batch, read = reward_batch([self.held_out[index] for index in indices])
                parts.append((await values_of(batch, self.trainers))[read])
                advance(len(indices))
        scored = _scored(self.held_out, torch.cat(parts))
        sources = [each.source for each in self.held_out]
        self._log(held_out_metrics(reward_losses(self.loss, scored), scored, sources, rated=self.rated))

    def _log(self, metrics: dict[str, float]) -> None:
        self.meter.log({f"reward_model/{name}": value for name, value in metrics.items()})


def _scored(examples: Sequence[RewardExample], scores: torch.Tensor) -> Scored:
    """The input of a loss."""
    return scored_examples(scores.double(), [each.targets for each in examples], [each.margin for each in examples])
