"""Optimizer steps on one batch, as a recipe says."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import torch

from roll.algorithms.credit import AlgorithmState, assign_credit, minibatches, with_loss_weights
from roll.algorithms.partition import SubBatch, join, take
from roll.algorithms.recipe import Objective, Recipe
from roll.cluster.handle import Cluster
from roll.data.collate import split
from roll.engines.base import Trainer
from roll.errors import RunStopped
from roll.journal.events import WeightsUpdated
from roll.journal.store import Journal
from roll.pipelines.checkpointer import Checkpointer
from roll.pipelines.reference_models import AuxiliaryModels, score
from roll.pipelines.refused_batch import save_refused_batch
from roll.serving.device_sharing import DeviceSharing
from roll.tracking.meter import Meter
from roll.types import Batch

_ALL = slice(None)


@dataclass(slots=True, kw_only=True)
class Learner:
    """Trains one policy: its actor and other models, and the state of its algorithm."""

    recipe: Recipe
    actor: Cluster[Trainer]
    models: AuxiliaryModels
    journal: Journal
    checkpointer: Checkpointer
    max_nonfinite_updates: int
    """Consecutive non-finite updates at which the run stops."""
    seed: int
    state: AlgorithmState
    device_sharing: DeviceSharing | None = None
    """Offloading on shared devices; None: everything fits."""
    name: str = ""
    """The policy's name; empty in a run with one."""
    notice: Callable[[str], None] = print
    """Callback for notices about refused updates."""
    _kl_coefficient: float = 0.0
    """The coefficient of this step; an adapted one applies from the next step."""
    _num_refused: int = 0
    """Consecutive refused updates."""

    async def score(self, batch: Batch, meter: Meter) -> Batch:
        """The batch with the rows that the recipe needs; from here to the weight sync the trainers use the devices."""
        if self.device_sharing is not None:
            await self.device_sharing.enter("update")
        scored = await score(batch, self.actor, self.models, self.recipe.needs)
        if self.models.reward_model is not None:
            meter.log({"reward/model": float((scored.rewards - batch.rewards).mean())})
        return scored

    def credit(self, batch: Batch, meter: Meter) -> Batch:
        """The batch with its advantages."""
        self._kl_coefficient = self.state.kl_coefficient
        batch, self.state, metrics = assign_credit(batch, self.recipe, self.state)
        meter.log(metrics)
        return batch

    async def update(self, step: int, batch: Batch, meter: Meter) -> None:
        """Run all optimizer steps on this batch; the metrics are those of the last one, but all refusals count."""
        policy, value = self.recipe.objective(self._kl_coefficient), Objective(loss=self.recipe.value_loss)
        refused = dict[str, float]()
        for epoch in range(self.recipe.epochs):
            seed = zlib.crc32(f"{self.seed} {step} {epoch}".encode())
            for part in minibatches(batch, self.recipe.minibatches, seed=seed):
                weighed = with_loss_weights(part, self.recipe.aggregation, self.recipe.domains)
                if self.models.critic is not None:
                    metrics = await self._step(self.models.critic, step, weighed, value)
                    meter.log({name.replace("loss/", "critic/"): number for name, number in metrics.items()})
                    refused["critic/refused"] = refused.get("critic/refused", 0.0) + metrics["loss/refused"]
                if step > self.recipe.critic_warmup:
                    metrics = await self._step(self.actor, step, weighed, policy)
                    meter.log(metrics)
                    refused["loss/refused"] = refused.get("loss/refused", 0.0) + metrics["loss/refused"]
        meter.log({**refused, "tokens/trained": float(batch.trained.sum())})

    async def _step(self, cluster: Cluster[Trainer], step: int, batch: Batch, objective: Objective) -> dict[str, float]:
        """One optimizer step. The trainer refuses a non-finite update, whose batch is then written to disk."""
        metrics = (await cluster.scatter(Trainer.update, split(batch, cluster.size), objective))[0]
        refused = metrics["loss/refused"] > 0
        self.journal.record(WeightsUpdated(step=step, refused=refused))
        self._num_refused = self._num_refused + 1 if refused else 0
        if refused:
            path = save_refused_batch(self.checkpointer.directory, step, batch, self.name)
            where = f"policy {self.name!r}, step {step}" if self.name else f"step {step}"
            if self._num_refused >= self.max_nonfinite_updates:
                raise RunStopped(
                    f"{where}: {self._num_refused} updates in a row had a non-finite loss or gradient; "
                    f"the last batch is in {path}; {self._advice(cluster)}"
                )
            self.notice(
                f"{where}: an update was refused, its loss or gradient is not finite; its batch is in {path}; "
                f"if this happens again, {self._advice(cluster)}"
            )
        return metrics

    def _advice(self, cluster: Cluster[Trainer]) -> str:
        """The keys to change after a non-finite update of these trainers."""
        section = "critic" if cluster is self.models.critic else "actor_train"
        keys = f"lower {section}.optimizer.lr or {section}.optimizer.max_grad_norm"
        return f"{keys}, set actor_train.dtype to float32, or look at the rewards of the batch"


@dataclass(frozen=True, slots=True, kw_only=True)
class Learners:
    """One `Learner` per policy, with baselines and statistics over the trajectories of its agents alone.

    A policy without trajectories in a batch does not learn in that step. Trajectories of frozen policies are not
    trained on. A run with one policy names it "" and trains it on whole batches.
    """

    by_policy: Mapping[str, Learner]
    """Frozen policies have none."""
    policy_of: Mapping[str, str] = field(default_factory=dict[str, str])
    """Policy by agent; empty: the only policy plays all agents."""

    @property
    def state(self) -> dict[str, AlgorithmState]:
        """The state of each policy's algorithm, for a checkpoint."""
        return {name: learner.state for name, learner in self.by_policy.items()}

    async def score(self, batch: Batch, meter: Meter) -> Batch:
        """The batch with the rows that the recipe needs."""
        parts = self._split(batch)
        for name, part in parts.items():
            metrics = Meter()
            parts[name] = replace(part, batch=await self.by_policy[name].score(part.batch, metrics))
            _log(name, metrics, meter)
        return _join(batch, parts)

    def credit(self, batch: Batch, meter: Meter) -> Batch:
        """The batch with its advantages."""
        parts = self._split(batch)
        for name, part in parts.items():
            metrics = Meter()
            parts[name] = replace(part, batch=self.by_policy[name].credit(part.batch, metrics))
            _log(name, metrics, meter)
        return _join(batch, parts)

    async def update(self, step: int, batch: Batch, meter: Meter) -> None:
        """Run all optimizer steps on this batch, one policy after the other."""
        for name, part in self._split(batch).items():
            metrics = Meter()
            await self.by_policy[name].update(step, part.batch, metrics)
            _log(name, metrics, meter)
        meter.log({"tokens/trained": float(batch.trained.sum())})

    def _split(self, batch: Batch) -> dict[str, SubBatch]:
        """The part of each policy that has trajectories in the batch."""
        if not self.policy_of:
            return dict.fromkeys(self.by_policy, SubBatch(batch=batch, trajectories=_ALL, turns=_ALL, tokens=_ALL))
        owners = [self.policy_of[agent] for agent in batch.agents]
        return {
            name: take(batch, torch.tensor([owner == name for owner in owners]))
            for name in self.by_policy
            if name in owners
        }


def _join(batch: Batch, parts: Mapping[str, SubBatch]) -> Batch:
    """The batch from its parts; trajectories outside all parts are not trained on."""
    if not parts:
        return replace(batch, trained=torch.zeros_like(batch.trained))
    first, *others = parts.values()
    if not others and len(first.batch.rewards) == len(batch.rewards):
        return first.batch
    return join(batch, [first, *others])


def _log(name: str, metrics: Meter, meter: Meter) -> None:
    """Log one policy's metrics, under its name if the run has several."""
    prefix = f"policy/{name}/" if name else ""
    meter.log({f"{prefix}{key}": value for key, value in metrics.flush().items()})
