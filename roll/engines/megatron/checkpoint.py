"""The state of Megatron-Core's optimizer under the names of files: parts of parameters are joined for a save, and cut.

AdamW's state is sharded over data-parallel ranks, as ranges of parameters that are themselves parts of tensors.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from roll.engines.megatron.model import MegatronModel
from roll.engines.megatron.names import ParameterSource
from roll.weights.buckets import NamedTensor
from roll.weights.optimizer_state import MOMENTS, STEP, OptimizerState, least_loaded


class _OwnedRange(NamedTuple):
    """The range of a parameter that this rank's optimizer steps."""

    inner: Any
    """The optimizer of torch."""
    shard: Tensor
    source: ParameterSource
    parameter: Tensor
    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _SentRange:
    """A range of any rank, as all ranks know it."""

    rank: int
    index: int
    """Index among the rank's ranges."""
    source: ParameterSource
    part: int
    """Which of the shards of the parameter."""
    shape: tuple[int, ...]
    """Of the shard."""
    start: int
    end: int
    step: float


def state_entries(optimizer: Any, model: MegatronModel) -> Iterator[NamedTensor]:
    """The entries that this rank writes: whole moments of some tensors. All ranks must iterate to the end."""
    ranges, loads = list(_owned_ranges(optimizer, model)), [0] * model.ranks.layout.size
    for pieces in _plan(ranges, model):
        source, num_bytes = pieces[0].source, sum(4 * (piece.end - piece.start) for piece in pieces)
        writer = least_loaded(loads, len(MOMENTS) * num_bytes)
        if writer == model.ranks.rank:
            for name in source.names:
                yield f"{STEP}/{name}", torch.tensor(max(piece.step for piece in pieces))
        for moment in MOMENTS:
            shards = _collect(moment, pieces, ranges, writer, model)
            if shards:
                yield from ((f"{moment}/{name}", whole) for name, whole in model.join(source, shards).items())


@torch.no_grad()
def read_state(optimizer: Any, model: MegatronModel, saved: OptimizerState) -> None:
    """Read this rank's ranges, of one parameter after the other."""
    for owned in _owned_ranges(optimizer, model):
        slots: dict[str, Tensor] = {"step": torch.tensor(saved.step(owned.source.names))}
        for moment in MOMENTS:
            tensors = saved.moment(moment)
            local = model.cut(owned.source, [tensors[name] for name in owned.source.names])
            slots[moment] = local.flatten()[owned.start : owned.end].to(owned.shard.device, copy=True)
        owned.inner.state[owned.shard] = slots


def _owned_ranges(optimizer: Any, model: MegatronModel) -> Iterator[_OwnedRange]:
    """Empty for an optimizer without state."""
    sources = {id(tensor): source for _, source, tensor in model.tensors}
    for part in optimizer.parts:
        if not hasattr(part, "shard_fp32_groups"):
            continue
        groups = [*part.model_fp32_groups, *part.model_float16_groups]
        for group, shards in zip(groups, [*part.shard_fp32_groups, *part.shard_fp32_from_float16_groups], strict=True):
            for parameter, shard in zip(group, shards, strict=True):
                span = part._get_model_param_range_map(parameter)["param"]
                source = sources[id(parameter)]
                yield _OwnedRange(part.optimizer, shard, source, parameter, span.start, span.end)


def _plan(ranges: Sequence[_OwnedRange], model: MegatronModel) -> list[list[_SentRange]]:
    """The ranges of each parameter, without copies: a rank whose range another one has sends nothing."""
    mine = [
        _SentRange(
            rank=model.ranks.rank,
            index=index,
            source=owned.source,
            part=model.part_of(owned.source)[0],
            shape=tuple(owned.parameter.shape),
            start=owned.start,
            end=owned.end,
            step=float(owned.inner.state[owned.shard].get("step", 0.0)),
        )
        for index, owned in enumerate(ranges)
    ]
    every: list[Any] = [None] * model.ranks.layout.size
    dist.all_gather_object(every, mine)
    by_names: dict[tuple[str, ...], dict[tuple[int, int, int], _SentRange]] = {}
    for piece in (each for pieces in every for each in pieces):
        by_names.setdefault(piece.source.names, {}).setdefault((piece.part, piece.start, piece.end), piece)
    return [list(pieces.values()) for pieces in by_names.values()]


def _collect(
    moment: str, pieces: Sequence[_SentRange], ranges: Sequence[_OwnedRange], writer: int, model: MegatronModel
) -> list[Tensor]:
    """The shards of a parameter's moment on the rank that writes it; the other ranks send theirs and get none."""
    rank, shards = model.ranks.rank, dict[int, Tensor]()
    for piece in pieces:
        if rank not in (piece.rank, writer):
            continue
        values = torch.zeros(piece.end - piece.start, device=model.device)
        if rank == piece.rank:
            owned = ranges[piece.index]
            values = owned.inner.state[owned.shard].get(moment, values).flatten()
            if rank != writer:
                dist.send(values.contiguous(), writer)
        elif rank == writer:
            dist.recv(values, piece.rank)
        if rank == writer:
            flat = shards.setdefault(piece.part, torch.zeros(piece.shape, device=model.device).flatten())
            flat[piece.start : piece.end] = values
    return [shards[part].view(pieces[0].shape) for part in sorted(shards)]
