"""The trainer over Megatron-Core's blocks: tensor, sequence, pipeline, context, expert and data parallelism.

Ranks agree on metrics, on the norm of the gradient, and on whether an update is skipped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor

from roll.algorithms.recipe import Objective
from roll.engines.fsdp.checkpoint import RankSaver, SavedParts
from roll.engines.hf.experts import load_metrics
from roll.engines.megatron.logprob_model import MegatronLogprobModel
from roll.engines.megatron.ranks import MegatronLayout, MegatronRanks
from roll.engines.native.build import WorkerContext, configure_torch
from roll.engines.native.model_spec import ModelSpec
from roll.engines.native.trainer import (
    ForwardOutput,
    LogprobSettings,
    MetricSums,
    NativeTrainer,
    NativeTrainerSettings,
    lr_at,
)
from roll.errors import ConfigError
from roll.registry import CHANNELS
from roll.types import Batch, Spec
from roll.weights.channel import Channel, Shared
from roll.weights.digest import Digest, combine, digest
from roll.weights.huggingface import TensorFiles
from roll.weights.optimizer_state import OptimizerState

if TYPE_CHECKING:
    from roll.engines.megatron.router_losses import MegatronRouterLosses


class MegatronTrainer(MegatronLogprobModel, NativeTrainer):
    """`Trainer` and `AsyncSaver` on one of many ranks: an actor or a critic."""

    settings: NativeTrainerSettings

    def __init__(
        self, model_spec: ModelSpec, settings: NativeTrainerSettings, ranks: MegatronRanks, channel: Channel
    ) -> None:
        super().__init__(model_spec, settings, ranks)
        self.channel, self._num_updates, self._optimizer = channel, 0, None
        self._saver = RankSaver(ranks)
        if settings.optimizer.layer_grad_norms:
            raise ConfigError(
                "optimizer.layer_grad_norms: backend megatron has the norm of all layers only; leave it out"
            )

    def _prepare(self) -> None:
        from roll.engines.megatron.optimizer import MegatronOptimizer

        if (losses := self.settings.router_losses).enabled:
            if not self.decoder.core.num_moe_experts:
                raise ConfigError("actor_train.router_losses: the model has no experts; leave it out")
            from roll.engines.megatron.router_losses import MegatronRouterLosses

            self.router_losses = MegatronRouterLosses(losses, self.decoder.module, self.decoder.core)
        self._optimizer = MegatronOptimizer(self.decoder, self.settings.optimizer)

    async def stop(self) -> None:
        self._saver.background.close()
        if self._optimizer is not None:
            from roll.engines.megatron.experts import free_activations

            free_activations(self.decoder.module)
        self._optimizer = None
        await super().stop()

    @property
    def _module(self) -> Any:
        return self._optimizer.module

    async def update(self, batch: Batch, objective: Objective) -> dict[str, float]:
        with self.ranks.blame_peers("an update"):
            microbatches = list(self._microbatches(batch))
            sums, parts = MetricSums(), [part for _, part in microbatches]

            def read(index: int, output: ForwardOutput) -> Tensor:
                return self._loss(parts[index], output, objective, sums)

            self._count_experts(batch, microbatches)
            self._optimizer.zero()
            trained = [part.trained for part in parts]
            self._run(parts, trained, read, entropy_gradient=objective.entropy > 0)
            if self.router_losses is not None:
                self.router_losses.end()
            return self._step(self._whole_sums(sums))

    def _count_experts(self, batch: Batch, microbatches: Sequence[tuple[list[int], Batch]]) -> None:
        """Count the experts of the whole batch, which the load-balancing loss of routers needs."""
        losses: MegatronRouterLosses | None = self.router_losses
        if losses is None:
            return
        losses.begin(batch, [rows for rows, _ in microbatches])
        if losses.statistics.counting:
            parts = [part for _, part in microbatches]
            with torch.no_grad():
                nothing = [torch.zeros_like(part.trained) for part in parts]
                self._run(parts, nothing, lambda _, output: output.logprobs.sum(), backward=False)
            losses.statistics.finish(self.decoder.device, _sum_over_ranks)

    def _whole_sums(self, sums: MetricSums) -> MetricSums:
        """The sums over all ranks, on all ranks."""
        parts: list[Any] = [None] * self.ranks.layout.size
        dist.all_gather_object(parts, sums.on_host() if self.ranks.reports else None)
        return MetricSums.combine([part for part in parts if part is not None])

    def _step(self, sums: MetricSums) -> dict[str, float]:
        """Clip the gradient and apply the optimizer step, unless loss or gradient is not finite."""
        config = self.settings.optimizer
        lr, norm = lr_at(self._num_updates, self.settings.total_steps, config), self._optimizer.norm()
        finite = self._all_finite(norm, sums.loss)
        if finite:
            if config.max_grad_norm is not None and norm > config.max_grad_norm:
                self._optimizer.scale(float(config.max_grad_norm / (norm + 1e-6)))
            self._optimizer.step(lr)
            self._num_updates += 1
        self._optimizer.zero()
        step = {"loss/grad_norm": float(norm), "loss/lr": lr, "loss/refused": float(not finite)}
        return {**sums.means(), **self._expert_metrics(), **step}

    def _expert_metrics(self) -> dict[str, float]:
        totals = self.decoder.router_load.totals(self.decoder.device)
        if totals is None:
            return {}
        replayed = self.decoder.router_load.take_replayed(totals.device)
        dist.all_reduce(totals)
        dist.all_reduce(replayed)
        return load_metrics(self.decoder.router_load.with_experts(totals), replayed)

    def _all_finite(self, *values: Tensor) -> bool:
        """Whether these values are finite on all ranks."""
        refused = torch.tensor(float(not super()._all_finite(*values)), device=self.decoder.device)
        dist.all_reduce(refused, dist.ReduceOp.MAX)
        return not refused

    async def send(self, version: int) -> Digest:
        """Rank 0 sends, one tensor at a time; the digest covers all ranks."""
        dtype = self.settings.precision.dtype or torch.float32
        tensors = self.decoder.named_tensors(dtype)
        with self.ranks.blame_peers("a publication"):
            if self.ranks.rank == 0:
                self.channel.send(tensors, version=version)
            for _ in tensors:  # all ranks have to send every tensor, including those that the channel did not read
                pass
            parts: list[Any] = [None] * self.ranks.layout.size
            dist.all_gather_object(parts, digest(self.decoder.local_parts(dtype)))
            return combine(parts)

    async def save(self, path: Path, *, resumable: bool = True, wait: bool = True) -> None:
        """The model is written by rank 0 tensor by tensor, the optimizer's state by each rank.

        Without `wait` it returns once the state is copied to the hosts; `save_completed` tells when it is on disk.
        """
        with self.ranks.blame_peers("a save"):
            parts = SavedParts(config=self.decoder.config, model=self.decoder.named_tensors())
            if resumable:
                from roll.engines.megatron.checkpoint import state_entries

                entries, kind = state_entries(self._optimizer, self.decoder), self.settings.optimizer.kind
                parts = replace(parts, state=entries, optimizer=kind, num_updates=self._num_updates)
            self._saver.save(path, parts, wait=wait)

    async def save_completed(self) -> bool:
        """Whether the last save without `wait` is on disk on all ranks; raises the error it failed with."""
        with self.ranks.blame_peers("a save"):
            return self._saver.completed()

    async def load(self, path: Path) -> None:
        """Load a save of any trainer, with any ranks."""
        with self.ranks.blame_peers("a load"):
            from roll.engines.megatron.checkpoint import read_state

            self._saver.background.forget()  # it was of a controller that has ended
            saved = OptimizerState(path, self.settings.optimizer.kind)
            self.decoder.fill(TensorFiles(path), str(path))
            read_state(self._optimizer, self.decoder, saved)
            self._num_updates = saved.num_updates


def _sum_over_ranks(counts: Tensor) -> Tensor:
    dist.all_reduce(counts)
    return counts


def trainer(
    rank: int,
    *,
    model_spec: ModelSpec,
    settings: NativeTrainerSettings,
    context: WorkerContext,
    layout: MegatronLayout,
    channel: Spec | None = None,
) -> MegatronTrainer:
    """One rank of a trainer; rank 0 sends weights through `channel`, unless it is None."""
    settings = replace(settings, device=configure_torch(context))
    sends = channel is not None and rank == 0
    end = CHANNELS[channel.name](rank, **channel.kwargs) if channel is not None and sends else Shared()
    return MegatronTrainer(model_spec, settings, MegatronRanks(layout, rank), end)


def logprob_model(
    rank: int, *, model_spec: ModelSpec, settings: LogprobSettings, context: WorkerContext, layout: MegatronLayout
) -> MegatronLogprobModel:
    """One rank of a model with fixed weights."""
    return MegatronLogprobModel(
        model_spec, replace(settings, device=configure_torch(context)), MegatronRanks(layout, rank)
    )
