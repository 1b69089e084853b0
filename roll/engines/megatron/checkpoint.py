"""The optimizer's state on disk: each rank writes its own part, and ranks of any layout can read it.

Moments are stored with the Hugging Face names of the tensors that they belong to. A rank that reads them maps the files
into memory, and puts together one parameter at a time.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from roll.engines.megatron.model import MegatronModel
from roll.engines.megatron.names import ParameterSource
from roll.errors import ConfigError, one_line

_FOLDER, _LAYOUT = "megatron", "layout.json"
_MOMENTS = ("exp_avg", "exp_avg_sq")


class _OwnedRange(NamedTuple):
    """The part of a parameter that this rank's optimizer steps: AdamW's state is sharded over data-parallel ranks."""

    inner: Any
    """The optimizer of torch."""
    shard: Tensor
    source: ParameterSource
    parameter: Tensor
    start: int
    end: int


def write_state(directory: Path, optimizer: Any, model: MegatronModel, num_updates: int) -> None:
    """Write this rank's part."""
    folder, ranks = directory / _FOLDER, model.ranks
    folder.mkdir(parents=True, exist_ok=True)
    if ranks.rank == 0:
        described = {"layout": ranks.layout.text, "ranks": ranks.layout.size, "updates": num_updates}
        (folder / _LAYOUT).write_text(json.dumps(described), encoding="utf-8")
    entries: list[dict[str, Any]] = []
    for owned in _owned_ranges(optimizer, model):
        state = owned.inner.state.get(owned.shard)
        if not state:
            continue
        part, parts = model.part_of(owned.source)
        entries.append(
            {
                "names": owned.source.names,
                "part": part,
                "parts": parts,
                "shape": tuple(owned.parameter.shape),
                "start": owned.start,
                "end": owned.end,
                "step": state["step"],
                **{moment: state[moment] for moment in _MOMENTS},
            }
        )
    torch.save(entries, folder / f"rank-{ranks.rank:05}.pt")


def read_state(directory: Path, optimizer: Any, model: MegatronModel) -> int:
    """Read this rank's part; returns the number of updates."""
    folder = directory / _FOLDER
    if not (folder / _LAYOUT).is_file():
        raise ConfigError(f"{folder}: no such state; resume with the backend that saved the run, megatron")
    described = json.loads((folder / _LAYOUT).read_text(encoding="utf-8"))
    saved: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for rank in range(described["ranks"]):
        for entry in _read_file(folder / f"rank-{rank:05}.pt"):
            saved.setdefault(tuple(entry["names"]), []).append(entry)
    for owned in _owned_ranges(optimizer, model):
        if not saved:  # saved before the first update
            owned.inner.state.pop(owned.shard, None)
            continue
        entries = saved.get(owned.source.names)
        if entries is None:
            raise ConfigError(
                f"{folder}: no state of {owned.source.names[0]}; it is of another model, resume from another checkpoint"
            )
        owned.inner.state[owned.shard] = {
            "step": entries[0]["step"].clone(),
            **{moment: _moment(entries, moment, owned, model) for moment in _MOMENTS},
        }
    return int(described["updates"])


def _owned_ranges(optimizer: Any, model: MegatronModel) -> Iterator[_OwnedRange]:
    """Empty for an optimizer without state."""
    sources: Mapping[int, ParameterSource] = {id(tensor): source for _, source, tensor in model.tensors}
    for part in optimizer.parts:
        if not hasattr(part, "shard_fp32_groups"):
            continue
        for group, shards in zip(part.model_fp32_groups, part.shard_fp32_groups, strict=True):
            for parameter, shard in zip(group, shards, strict=True):
                span = part._get_model_param_range_map(parameter)["param"]
                source = sources[id(parameter)]
                yield _OwnedRange(part.optimizer, shard, source, parameter, span.start, span.end)


def _moment(entries: Sequence[dict[str, Any]], moment: str, owned: _OwnedRange, model: MegatronModel) -> Tensor:
    """The values of a moment for a range of a parameter, from the ranges and parts of other ranks."""
    shards: list[Tensor] = []
    for part in range(entries[0]["parts"]):
        ranges = [entry for entry in entries if entry["part"] == part]
        flat = torch.zeros(ranges[0]["shape"]).flatten()
        for entry in ranges:
            flat[entry["start"] : entry["end"]] = entry[moment].flatten()
        shards.append(flat.view(ranges[0]["shape"]))
    whole = model.join(owned.source, shards)
    local = model.cut(owned.source, [whole[name] for name in owned.source.names])
    return local.flatten()[owned.start : owned.end].to(owned.shard.device).clone()


def _read_file(file: Path) -> list[dict[str, Any]]:
    try:
        entries: Any = torch.load(file, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:  # noqa: BLE001 - torch raises many types for broken files
        reason = one_line(str(error))[:200]
        raise ConfigError(f"{file}: cannot be read ({reason}); resume from another checkpoint") from None
    return entries
