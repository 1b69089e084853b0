"""The optimizer's state on disk: each rank writes its own part, which ranks of the same layout can read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from roll.engines.megatron.ranks import MegatronRanks
from roll.errors import ConfigError, one_line

_FOLDER, _LAYOUT = "megatron", "layout.json"


def write_state(directory: Path, optimizer: Any, ranks: MegatronRanks, num_updates: int) -> None:
    """Write this rank's part."""
    folder = directory / _FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    if ranks.rank == 0:
        described = {"layout": ranks.layout.text, "ranks": ranks.layout.size, "updates": num_updates}
        (folder / _LAYOUT).write_text(json.dumps(described), encoding="utf-8")
    torch.save([_states(part) for part in optimizer.parts], folder / f"rank-{ranks.rank:05}.pt")


def read_state(directory: Path, optimizer: Any, ranks: MegatronRanks) -> int:
    """Read this rank's part; returns the number of updates."""
    folder = directory / _FOLDER
    if not (folder / _LAYOUT).is_file():
        raise ConfigError(f"{folder}: no such state; resume with the backend that saved the run, megatron")
    described = json.loads((folder / _LAYOUT).read_text(encoding="utf-8"))
    if (described["layout"], described["ranks"]) != (ranks.layout.text, ranks.layout.size):
        raise ConfigError(
            f"{folder}: its optimizer state is of {described['ranks']} ranks with {described['layout']} (this run: "
            f"{ranks.layout.size} with {ranks.layout.text}); resume with the same, or start a run from its model"
        )
    file = folder / f"rank-{ranks.rank:05}.pt"
    try:
        states: Any = torch.load(file, map_location=ranks_device(optimizer), weights_only=True)
        for part, saved in zip(optimizer.parts, states, strict=True):
            _restore(part, saved)
    except Exception as error:  # noqa: BLE001 - torch raises many types for broken files
        raise ConfigError(
            f"{file}: cannot be read ({one_line(str(error))[:200]}); resume from another checkpoint"
        ) from None
    return int(described["updates"])


def ranks_device(optimizer: Any) -> torch.device:
    """The device of the optimizer's parameters."""
    return next(each.device for part in optimizer.parts for each in part.get_parameters())


def _states(part: Any) -> list[dict[str, Tensor]]:
    """For each parameter that the optimizer steps, its weights in 32 bits and its state."""
    inner = part.optimizer
    if inner is None:  # a rank without a part of the parameters
        return []
    return [
        {"weights": parameter.detach(), **inner.state.get(parameter, {})}
        for group in inner.param_groups
        for parameter in group["params"]
    ]


def _restore(part: Any, saved: list[dict[str, Tensor]]) -> None:
    inner: Any = part.optimizer
    if inner is None:
        return
    parameters = [each for group in inner.param_groups for each in group["params"]]
    for parameter, state in zip(parameters, saved, strict=True):
        with torch.no_grad():
            parameter.copy_(state.pop("weights"))
        if state:
            inner.state[parameter] = state
