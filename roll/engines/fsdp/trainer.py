"""The trainer on many ranks: FSDP2, with tensor and context parallelism, over the models that the native decoder knows.

What is not sharded the ranks agree on: metrics, the norm of the gradient, and whether an update is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from roll.algorithms.recipe import Objective
from roll.config.schema import Model, Optimizer
from roll.engines.base import Part
from roll.engines.fsdp.logprob_model import FsdpScorer
from roll.engines.fsdp.model import SpreadDecoder, split_dim
from roll.engines.fsdp.ranks import Ranks, Spread
from roll.engines.fsdp.save import Writing, copied
from roll.engines.fsdp.state import copied_slots, read_state, slots_of, write_state
from roll.engines.native.build import Surroundings, settle
from roll.engines.native.lora import merged, served
from roll.engines.native.model_spec import Origin, build
from roll.engines.native.schedule import lr_at
from roll.engines.native.trainer import NativeTrainer, ScoreSettings, Settings, Sums
from roll.registry import CHANNELS
from roll.types import Batch, Call, Digest
from roll.weights.adapters import check_base, read_adapter, write_adapter, write_base
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
        self._writing = Writing()

    async def start(self) -> None:
        await super().start()
        self._optimizer = _optimizer(self.decoder, self.settings.optimizer)

    async def stop(self) -> None:
        self._writing.close()
        self._optimizer = None
        await super().stop()

    async def update(self, batch: Batch, objective: Objective) -> dict[str, float]:
        with self.ranks.together("an update"):
            return await super().update(batch, objective)

    async def send(self, plan: Plan, version: int) -> Digest:
        """Rank 0 sends, a tensor at a time; all ranks together know the digest."""
        dtype, decoder = self.settings.reading.dtype or torch.float32, self.decoder
        tensors = ((name, tensor.to(dtype)) for name, tensor in decoder.named_tensors())
        if decoder.lora is not None:
            tensors = decoder.adapter_tensors()
        with self.ranks.together("a publication"):
            if self.ranks.rank == 0:
                self.channel.send(tensors, version=version)
            for _ in tensors:  # what the channel did not ask for, or all of it, since gathering takes everybody
                pass
            if decoder.lora is not None:
                held = served(decoder.own_parts(adapters=True), decoder.lora.scale, dtype)
                return added([self._frozen(), self._agreed(digest(part for _, part in held))])
            return self._agreed(digest(part.to(dtype) for _, part in decoder.own_parts()))

    async def save(self, path: Path, *, resumable: bool = True, wait: bool = True) -> None:
        """Of a model with adapters, what goes on is the adapters alone; the model itself is where it was read.

        Without `wait` it is done once there is a copy on the hosts, and `written` says when that is on disk.
        """
        tensors = self.decoder.named_tensors()
        with self.ranks.together("a save"):
            self._writing.finish()
            if (lora := self.decoder.lora) is not None:
                pairs = dict(self.decoder.adapter_tensors())
                tensors = merged(tensors, pairs, lora.scale)
            if lora is not None and (resumable or lora.export == "apart"):
                self._save_adapter(path, pairs)
                tensors = iter(())
            state = slots_of(self.decoder, self._optimizer, self._num_updates) if resumable else None
            if wait:
                self._write_model(path, tensors)
                dist.barrier()
                if state is not None:
                    write_state(path, state)
            else:
                self._write_aside(path, tensors, state)

    async def written(self) -> bool:
        """Whether what was saved last without waiting is on disk, all of it; raises what went wrong with it."""
        with self.ranks.together("a save"):
            found: list[Any] = [None] * self.ranks.spread.size
            dist.all_gather_object(found, self._writing.fault())
        if None in found:
            return False
        self._writing.forget()
        if fault := next(filter(None, found), None):
            raise OSError(fault)
        return True

    async def load(self, path: Path) -> None:
        """Whatever the number of ranks that saved it."""
        head = "logits" if self.decoder.score is None else "score"
        origin = Origin(model=Model(path=str(path)), head=head)
        with self.ranks.together("a load"):
            if self.decoder.lora is not None:
                found = dict(read_adapter(path, self.decoder.lora))  # by all: a refusal is everybody's
                check_base(path, self._frozen())
                self.decoder.fill(found, adapters=True)
            else:
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

    def _write_model(self, path: Path, tensors: Iterator[tuple[str, Tensor]]) -> None:
        """A task of rank 0; the others only gather with it. Nothing where there are no tensors."""
        first = next(tensors, None)
        if first is not None and self.ranks.rank == 0:
            write_pieces(path, self.decoder.config, chain([first], tensors), most_bytes=_FILE_BYTES)
        for _ in tensors:
            pass

    def _write_aside(self, path: Path, tensors: Iterator[tuple[str, Tensor]], state: Any) -> None:
        """The same of copies, by a thread that talks to those of other ranks over a group of their own."""
        held = [each for each in copied(tensors) if self.ranks.rank == 0]
        slots, group = None if state is None else copied_slots(state), self.ranks.aside

        def write() -> None:
            self._write_model(path, iter(held))
            if slots is not None:
                write_state(path, slots, group)

        self._writing.begin(write)

    def _save_adapter(self, path: Path, pairs: dict[str, Tensor]) -> None:
        lora, frozen = self.decoder.lora, self._frozen()
        if self.ranks.rank == 0:
            write_adapter(path, lora, pairs.items(), base=self.settings.base)
            write_base(path, frozen)

    def _frozen(self) -> Digest:
        """Of what adapters stand beside, which is counted once: nobody writes to it."""
        if self.decoder.frozen_digest is None:
            self.decoder.frozen_digest = self._agreed(digest(part for _, part in self.decoder.own_parts()))
        return self.decoder.frozen_digest

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
        if not parameter.requires_grad:
            continue
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
