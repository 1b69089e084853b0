"""Preference optimisation: train on pairs of responses, or on labelled ones, until the steps are done.

A step scores its examples with the current weights, turns the gradient of the loss into one coefficient per response,
and trains on the response's tokens with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from roll.algorithms.preferences import OBJECTIVE, compare, losses_of, preference_metrics, with_preference_gradient
from roll.data.collate import split
from roll.data.preference_rows import PreferenceExample
from roll.engines.base import Trainer
from roll.pipelines.offline import OfflineLoop, chunks, indices_of
from roll.pipelines.preference_scores import PreferenceScorer
from roll.types import Spec


@dataclass(slots=True, kw_only=True)
class DpoLoop(OfflineLoop):
    """One run of preference optimisation, with all its parts already built."""

    loss: Spec
    examples: Sequence[PreferenceExample]
    held_out: Sequence[PreferenceExample]
    scorer: PreferenceScorer
    held_out_scorer: PreferenceScorer
    """The same with the saved reference of the held-out examples."""

    async def update(self, step: int) -> None:
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
        self.record_update(step, metrics, int(batch.trained.sum()))

    async def measure_held_out(self) -> dict[str, float]:
        totals: dict[str, float] = {}
        if self.held_out:
            await self.enter_update()
        for indices in chunks(len(self.held_out), self.schedule.batch_size):
            scored = await self.held_out_scorer.score(self.held_out, indices)
            compared = compare(scored.responses, scored.desirable, scored.baseline)
            metrics = preference_metrics(self.loss, losses_of(self.loss, compared), compared)
            for name in ("loss", "accuracy"):
                part = metrics[f"preference/{name}"] * len(indices) / len(self.held_out)
                totals[f"preference/held_out_{name}"] = totals.get(f"preference/held_out_{name}", 0.0) + part
        return totals
