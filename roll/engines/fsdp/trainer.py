"""The trainer over many ranks: FSDP2 with tensor and context parallelism, for models of the native decoder.

Ranks agree on everything that is not sharded: metrics, the norm of the gradient, and whether an update is skipped.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from roll.algorithms.recipe import Objective
from roll.config.schema import Optimizer
from roll.engines.fsdp.checkpoint import RankSaver, SavedParts, read_state, state_entries
from roll.engines.fsdp.huggingface import ShardedHuggingFace
from roll.engines.fsdp.logprob_model import FsdpLogprobModel
from roll.engines.fsdp.ranks import ParallelLayout, Ranks
from roll.engines.fsdp.sharded import ShardedModel, tp_dim
from roll.engines.hf.experts import ExpertLoad
from roll.engines.hf.router_losses import HuggingFaceRouterLosses
from roll.engines.native.build import WorkerContext, configure_torch
from roll.engines.native.lora import as_served, merge
from roll.engines.native.model_spec import ModelSpec
from roll.engines.native.trainer import (
    LogprobSettings,
    MetricSums,
    NativeTrainer,
    NativeTrainerSettings,
    build_optimizer,
)
from roll.errors import ConfigError
from roll.registry import CHANNELS
from roll.types import Batch, Spec
from roll.weights.adapters import check_base, read_adapter, write_adapter
from roll.weights.buckets import NamedTensor
from roll.weights.channel import Channel, Shared
from roll.weights.digest import Digest, combine, digest
from roll.weights.huggingface import TensorFiles
from roll.weights.optimizer_state import OptimizerState, share_of
from roll.weights.quantization import send_quantised


class FsdpTrainer(FsdpLogprobModel, NativeTrainer):
    """`Trainer`, `AsyncSaver` and `Offloadable` on one of many ranks: an actor or a critic."""

    settings: NativeTrainerSettings

    def __init__(self, model_spec: ModelSpec, settings: NativeTrainerSettings, ranks: Ranks, channel: Channel) -> None:
        super().__init__(model_spec, settings, ranks)
        self.channel, self._num_updates, self._optimizer = channel, 0, None
        self._saver = RankSaver(ranks)
        if settings.router_losses.enabled:
            self.router_losses = HuggingFaceRouterLosses(settings.router_losses, self.decoder)

    def _prepare(self) -> None:
        self._optimizer = _optimizer(self.decoder, self.settings.optimizer)

    async def stop(self) -> None:
        self._saver.background.close()
        self._optimizer = None
        await super().stop()

    async def update(self, batch: Batch, objective: Objective) -> dict[str, float]:
        with self.ranks.blame_peers("an update"):
            return await super().update(batch, objective)

    async def send(self, version: int) -> Digest:
        """Rank 0 sends, one tensor at a time; the digest covers all ranks, or what rank 0 has quantised."""
        dtype, decoder = self.settings.precision.dtype or torch.float32, self.decoder
        adapted = decoder.lora is not None
        tensors = decoder.named_tensors(adapters=adapted, dtype=None if adapted else dtype)
        with self.ranks.blame_peers("a publication"):
            quantised = Digest({})
            if self.ranks.rank == 0 and (kind := self.settings.quantization) is not None:
                quantised = send_quantised(self.channel, tensors, kind, version=version)
            elif self.ranks.rank == 0:
                self.channel.send(tensors, version=version)
            for _ in tensors:  # all ranks have to gather every tensor, including those that the channel did not read
                pass
            if decoder.lora is not None:
                adapters = as_served(decoder.local_parts(adapters=True), decoder.lora.scale, dtype)
                return combine([self._frozen_digest(), self._combine(digest(part for _, part in adapters))])
            if self.settings.quantization is not None:
                return self._combine(quantised)
            return self._combine(digest(part for _, part in decoder.local_parts(dtype=dtype)))

    async def save(self, path: Path, *, resumable: bool = True, wait: bool = True) -> None:
        """For a model with adapters, a resumable save holds the adapters only; the base model is read again.

        Without `wait` it returns once the state is copied to the hosts; `save_completed` tells when it is on disk.
        """
        tensors = self.decoder.named_tensors()
        with self.ranks.blame_peers("a save"):
            if (lora := self.decoder.lora) is not None:
                pairs = dict(self.decoder.named_tensors(adapters=True))
                tensors = merge(tensors, pairs, lora.scale)
            if lora is not None and (resumable or lora.export == "adapter"):
                frozen = self._frozen_digest()
                if self.ranks.rank == 0:
                    write_adapter(path, lora, pairs.items(), base=self.settings.base, frozen=frozen)
                tensors = iter(())
            parts = SavedParts(config=self.decoder.config, model=tensors)
            if resumable:
                entries = share_of(self._state_entries(), self.ranks.rank, self.ranks.layout.size)
                kind = self.settings.optimizer.kind
                parts = replace(parts, state=entries, optimizer=kind, num_updates=self._num_updates)
            self._saver.save(path, parts, wait=wait)

    async def save_completed(self) -> bool:
        """Whether the last save without `wait` is on disk on all ranks; raises the error it failed with."""
        with self.ranks.blame_peers("a save"):
            return self._saver.completed()

    async def load(self, path: Path) -> None:
        """Load a save of any trainer, with any ranks; rank 0 reads the weights one tensor at a time."""
        with self.ranks.blame_peers("a load"):
            self._saver.background.forget()  # it was of a controller that has ended
            saved = OptimizerState(path, self.settings.optimizer.kind)
            if self.decoder.lora is not None:
                adapter = dict(read_adapter(path, self.decoder.lora))  # on all ranks, so that all raise
                check_base(path, self._frozen_digest())
                self.decoder.fill(adapter, adapters=True)
            else:
                tensors = TensorFiles(path)
                self.decoder.check_names(tensors, str(path))
                self.decoder.fill(tensors)
            self._read_state(saved)
            self._num_updates = saved.num_updates

    def _state_entries(self) -> Iterator[NamedTensor]:
        """The optimizer's state, as `roll.engines.fsdp.checkpoint.state_entries` describes it; none of SGD."""
        return state_entries(self.decoder, self._optimizer) if self._has_moments else iter(())

    def _read_state(self, saved: OptimizerState) -> None:
        if self._has_moments:
            read_state(self.decoder, self._optimizer, saved)

    @property
    def _has_moments(self) -> bool:
        return self.settings.optimizer.kind == "adamw"

    @property
    def _expert_load(self) -> ExpertLoad | None:
        return self.decoder.decoder.expert_load if isinstance(self.decoder, ShardedHuggingFace) else None

    def _whole_totals(self, totals: Tensor) -> Tensor:
        dist.all_reduce(totals, group=self.ranks.data)
        return totals

    def _step(self, sums: MetricSums) -> dict[str, float]:
        _sum_metrics(sums, self.ranks.data, self.decoder.device)
        return super()._step(sums)

    def _all_finite(self, *values: Tensor) -> bool:
        """Whether these values are finite on all ranks."""
        refused = torch.tensor(float(not super()._all_finite(*values)), device=values[0].device)
        dist.all_reduce(refused, dist.ReduceOp.MAX)
        return not refused

    def _clip(self, most: float | None) -> Tensor:
        """The norm of the whole gradient, which is then scaled to at most `most`."""
        parameters = [parameter for parameter in self.decoder.parameters() if parameter.grad is not None]
        norm = self._norm(parameters)
        if most is not None and norm > most:
            factor = most / (norm + 1e-6)
            for parameter in parameters:
                gradient = parameter.grad.to_local()
                gradient.mul_(factor.to(gradient))
        return norm

    def _norm(self, parameters: Iterable[Any]) -> Tensor:
        """The norm over all ranks, computed here because sharded and replicated parameters lie on different meshes."""
        squares = torch.zeros(2, dtype=torch.float64, device=self.decoder.device)
        for parameter in parameters:
            square = torch.linalg.vector_norm(parameter.grad.to_local(), dtype=torch.float64).square()
            squares[int(tp_dim(parameter) is None)] += square.to(squares)
        dist.all_reduce(squares)
        return (squares[0] + squares[1] / self.ranks.layout.tp).sqrt().float()

    def _frozen_digest(self) -> Digest:
        """Digest of the frozen weights, computed once because they never change."""
        if self.decoder.frozen_digest is None:
            self.decoder.frozen_digest = self._combine(digest(part for _, part in self.decoder.local_parts()))
        return self.decoder.frozen_digest

    def _combine(self, part: Digest) -> Digest:
        parts: list[Any] = [None] * self.ranks.layout.size
        dist.all_gather_object(parts, part)
        return combine(parts)


def trainer(
    rank: int,
    *,
    model_spec: ModelSpec,
    settings: NativeTrainerSettings,
    context: WorkerContext,
    layout: ParallelLayout,
    channel: Spec | None = None,
) -> FsdpTrainer:
    """One rank of a trainer; rank 0 sends weights through `channel`, unless it is None."""
    settings = replace(settings, device=configure_torch(context))
    sends = channel is not None and rank == 0
    end = CHANNELS[channel.name](rank, **channel.kwargs) if channel is not None and sends else Shared()
    return FsdpTrainer(model_spec, settings, Ranks(layout, rank), end)


def logprob_model(
    rank: int, *, model_spec: ModelSpec, settings: LogprobSettings, context: WorkerContext, layout: ParallelLayout
) -> FsdpLogprobModel:
    """One rank of a model with fixed weights."""
    return FsdpLogprobModel(model_spec, replace(settings, device=configure_torch(context)), Ranks(layout, rank))


def _optimizer(decoder: ShardedModel, config: Optimizer) -> Any:
    """Parameters in one group per mesh, because no operation takes tensors of several meshes."""
    if config.custom is not None:
        raise ConfigError(
            f"optimizer {config.kind!r}: fsdp2 saves the state of adamw and sgd alone; choose one of them"
        )
    meshes: dict[int, list[Tensor]] = {}
    for parameter in decoder.parameters():
        assert isinstance(parameter, DTensor)
        if not parameter.requires_grad:
            continue
        meshes.setdefault(parameter.device_mesh.ndim, []).append(parameter)
    return build_optimizer([{"params": parameters} for parameters in meshes.values()], config)


def _sum_metrics(sums: MetricSums, group: Any, device: torch.device) -> None:
    """Sum each rank's metrics over the group."""
    names = sorted(sums._totals)
    row = torch.stack([sums.loss, sums._count, *(sums._totals[name] for name in names)]).to(device, torch.float64)
    largest = sums._mismatch_max.to(device)
    dist.all_reduce(row, group=group)
    dist.all_reduce(largest, dist.ReduceOp.MAX, group=group)
    sums.loss, sums._count, sums._mismatch_max = row[0].float().cpu(), row[1].float().cpu(), largest.cpu()
    sums._totals = {name: total.float().cpu() for name, total in zip(names, row[2:], strict=True)}
