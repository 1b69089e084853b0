"""What an optimizer remembers, written by all ranks at once and read by any number of them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint
from torch import nn

from roll.engines.fsdp.save import copy_of
from roll.errors import ConfigError

_dcp: Any = torch.distributed.checkpoint  # which exports less than it has
_FOLDER = "optimizer"
_MOMENTS = ("exp_avg", "exp_avg_sq")


def write_state(directory: Path, slots: Mapping[str, Any], group: Any = None) -> None:
    """A folder in `directory`, by parameters' names; each rank writes its own shards, and they talk over `group`."""
    _dcp.save(dict(slots), checkpoint_id=directory / _FOLDER, process_group=group)


def copied_slots(slots: Mapping[str, Any]) -> dict[str, Any]:
    """The same on the host."""
    found = {name: slot for name, slot in slots.items() if isinstance(slot, torch.Tensor)}
    states = {name: slot for name, slot in slots.items() if name not in found}
    return {
        **{name: copy_of(tensor) for name, tensor in found.items()},
        **{name: {key: copy_of(tensor) for key, tensor in state.items()} for name, state in states.items()},
    }


def read_state(directory: Path, model: nn.Module, optimizer: Any) -> int:
    """Let the optimizer remember what is there, as far as this rank needs it; how many updates there were."""
    folder = directory / _FOLDER
    if not folder.is_dir():
        raise ConfigError(f"{folder}: no such folder; a run goes on with the backend that it was saved with, fsdp2")
    slots = slots_of(model, optimizer, 0)
    _dcp.load(slots, checkpoint_id=folder)
    return int(slots["num_updates"])


def slots_of(model: nn.Module, optimizer: Any, num_updates: int) -> dict[str, Any]:
    """The very tensors that the optimizer works with, to be written or to be read into."""
    slots: dict[str, Any] = {"num_updates": torch.tensor(num_updates)}
    if not isinstance(optimizer, torch.optim.AdamW):
        return slots  # plain SGD remembers nothing
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        state = optimizer.state[parameter]
        if not state:
            state["step"] = torch.zeros((), device=parameter.device)
            state.update({moment: torch.zeros_like(parameter.detach()) for moment in _MOMENTS})
        slots[name] = {key: state[key] for key in ("step", *_MOMENTS)}
    return slots
