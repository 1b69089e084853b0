"""The trainer on many ranks: FSDP2, with tensor and context parallelism, over the models that the native decoder knows.

What is not sharded the ranks agree on: metrics, the norm of the gradient, and whether an update is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from roll.algorithms.recipe import Objective
from roll.config.schema import Model, Optimizer
from roll.engines.base import Part
from roll.engines.native import Surroundings, settle
from roll.engines.origin import Origin, build
from roll.engines.train.fsdp_model import SpreadDecoder, split_dim
from roll.engines.train.fsdp_ranks import Ranks, Spread
from roll.engines.train.fsdp_score import FsdpScorer
from roll.engines.train.fsdp_state import read_state, write_state
from roll.engines.train.native import NativeTrainer, ScoreSettings, Settings, Sums
from roll.engines.train.schedule import lr_at
from roll.registry import CHANNELS
from roll.types import Batch, Call, Digest
from roll.weights.digest import added, digest
from roll.weights.huggingface import write_pieces
from roll.weights.inline import Shared
from roll.weights.plan import Channel, Plan

_FILE_BYTES = 4 * 2**30
"""Of a saved model, about: as much of it as rank 0 holds whole at a time."""


class FsdpTrainer(FsdpScorer, NativeTrainer):
    """`Trainer` and `Resident` on one of many ranks: an actor or a critic."""

    settings: Settings

    def __init__(self, origin: Origin, settings: Settings, ranks: Ranks, channel: Channel) -> None:
        super().__init__(origin, settings, ranks)
        self.channel, self._num_updates, self._optimizer = channel, 0, None

    async def start(self) -> None:
        await super().start()
        self._optimizer = _optimizer(self.decoder, self.settings.optimizer)

    async def stop(self) -> None:
        self._optimizer = None
        await super().stop()

    async def update(self, batch: Batch, objective: Objective) -> dict[str, float]:
        with self.ranks.together("an update"):
            return await super().update(batch, objective)

    async def send(self, plan: Plan, version: int) -> Digest:
        """Rank 0 sends, a tensor at a time; all ranks together know the digest."""
        dtype = self.settings.reading.dtype or torch.float32
        tensors = ((name, tensor.to(dtype)) for name, tensor in self.decoder.named_tensors())
        with self.ranks.together("a publication"):
            if self.ranks.rank == 0:
                self.channel.send(tensors, version=version)
            for _ in tensors:  # what the channel did not ask for, or all of it, since gathering takes everybody
                pass
            return self._agreed(digest(part.to(dtype) for part in self.decoder.own_parts()))

    async def save(self, path: Path, *, resumable: bool = True) -> None:
        tensors = self.decoder.named_tensors()
        with self.ranks.together("a save"):
            if self.ranks.rank == 0:
                write_pieces(path, self.decoder.config, tensors, most_bytes=_FILE_BYTES)
            for _ in tensors:
                pass
            dist.barrier()
            if resumable:
                write_state(path, self.decoder, self._optimizer, self._num_updates)

    async def load(self, path: Path) -> None:
        """Whatever the number of ranks that saved it."""
        head = "logits" if self.decoder.score is None else "score"
        origin = Origin(model=Model(path=str(path)), head=head)
        with self.ranks.together("a load"):
            self.decoder.fill(dict(build(origin).named_tensors()) if self.ranks.rank == 0 else {})
            self._num_updates = read_state(path, self.decoder, self._optimizer)

    def _move(self, parts: Sequence[Part], device: torch.device) -> None:
        super()._move(parts, device)
        if "optimizer" in parts and not self.ranks.spread.offload:
            for state in self._optimizer.state.values():
                for name in state.keys() & {"exp_avg", "exp_avg_sq"}:
                    state[name] = state[name].to(device)

    def _step(self, sums: Sums) -> dict[str, float]:
        """Clip, refuse what is not finite on any rank, and let the optimizer move the weights."""
        knobs = self.settings.optimizer
        lr = lr_at(self._num_updates, self.settings.total_steps, knobs)
        _add_up(sums, self.ranks.data, self.decoder.device)
        norm = self._clip(knobs.clip_norm)
        refused = torch.tensor(float(not (torch.isfinite(norm) and torch.isfinite(sums.loss))), device=norm.device)
        dist.all_reduce(refused, dist.ReduceOp.MAX)
        if not refused:
            for group in self._optimizer.param_groups:
                group["lr"] = lr
            self._optimizer.step()
            self._num_updates += 1
        self._optimizer.zero_grad(set_to_none=True)
        return {**sums.means(), "loss/grad_norm": float(norm), "loss/lr": lr, "loss/refused": float(refused)}

    def _clip(self, most: float | None) -> Tensor:
        """The norm of the whole gradient, which is then no longer than `most`.

        By hand, since parameters that tensor-parallel ranks share and those that they all have lie on other meshes.
        """
        gradients = [(p.grad.to_local(), split_dim(p)) for p in self.decoder.parameters() if p.grad is not None]
        squares = torch.zeros(2, dtype=torch.float64, device=self.decoder.device)
        for gradient, dim in gradients:
            squares[int(dim is None)] += torch.linalg.vector_norm(gradient, dtype=torch.float64).square().to(squares)
        dist.all_reduce(squares)
        norm = (squares[0] + squares[1] / self.ranks.spread.tp).sqrt().float()
        if most is not None and norm > most:
            factor = most / (norm + 1e-6)
            for gradient, _ in gradients:
                gradient.mul_(factor.to(gradient))
        return norm

    def _agreed(self, part: Digest) -> Digest:
        found: list[Any] = [None] * self.ranks.spread.size
        dist.all_gather_object(found, part)
        return added(found)


def trainer(
    rank: int,
    *,
    origin: Origin,
    settings: Settings,
    around: Surroundings,
    spread: Spread,
    channel: Call | None = None,
) -> FsdpTrainer:
    """One of the ranks, of which the first sends weights through `channel`, or nobody does."""
    settings = replace(settings, device=settle(around))
    sends = channel is not None and rank == 0
    made = CHANNELS[channel.name](rank, **channel.arguments) if channel is not None and sends else Shared()
    return FsdpTrainer(origin, settings, Ranks(spread, rank), made)


def scorer(rank: int, *, origin: Origin, settings: ScoreSettings, around: Surroundings, spread: Spread) -> FsdpScorer:
    """One of the ranks of a model whose weights stay as they are."""
    return FsdpScorer(origin, replace(settings, device=settle(around)), Ranks(spread, rank))


def _optimizer(decoder: SpreadDecoder, knobs: Optimizer) -> Any:
    """Parameters in groups of one mesh each: no operation takes tensors of several."""
    meshes: dict[int, list[Tensor]] = {}
    for parameter in decoder.parameters():
        assert isinstance(parameter, DTensor)
        meshes.setdefault(parameter.device_mesh.ndim, []).append(parameter)
    groups: Any = [{"params": parameters} for parameters in meshes.values()]
    if knobs.kind == "sgd":
        return torch.optim.SGD(groups, lr=knobs.lr, weight_decay=knobs.weight_decay)
    return torch.optim.AdamW(
        groups, lr=knobs.lr, betas=knobs.betas, eps=knobs.eps, weight_decay=knobs.weight_decay, fused=True
    )


def _add_up(sums: Sums, group: Any, device: torch.device) -> None:
    """Metrics of all rows from those of each rank's."""
    names = sorted(sums._totals)
    row = torch.stack([sums.loss, sums._count, *(sums._totals[name] for name in names)]).to(device, torch.float64)
    largest = sums._gap_max.to(device)
    dist.all_reduce(row, group=group)
    dist.all_reduce(largest, dist.ReduceOp.MAX, group=group)
    sums.loss, sums._count, sums._gap_max = row[0].float().cpu(), row[1].float().cpu(), largest.cpu()
    sums._totals = {name: total.float().cpu() for name, total in zip(names, row[2:], strict=True)}
