"""An optimizer of the user's: a subclass of torch.optim.Optimizer, named in the configuration."""

from __future__ import annotations

import pickle
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from roll.config.schema import Optimizer
from roll.device_failure import DEVICE_ERRORS
from roll.errors import ConfigError, RollError, describe_error, source_of
from roll.registry import OPTIMIZERS
from roll.types import Spec
from roll.weights.optimizer_state import CUSTOM_STATE


def build_custom(parameters: Any, spec: Spec) -> torch.optim.Optimizer:
    """The user's optimizer of these parameters; raises `ConfigError` if it cannot be made or is none."""
    with _blame(spec.name, "__init__"):
        optimizer = OPTIMIZERS[spec.name](parameters, **spec.kwargs)
    if not isinstance(optimizer, torch.optim.Optimizer):
        kind = type(optimizer).__name__
        raise ConfigError(f"optimizer {spec.name!r}: not a torch.optim.Optimizer (got {kind}); derive it from that")
    return optimizer


@contextmanager
def blame_optimizer(config: Optimizer) -> Generator[None]:
    """Around a step: an exception of a user's optimizer ends the run with one line."""
    if config.custom is None:
        yield
        return
    with _blame(config.kind, "step"):
        yield


def write_custom_state(directory: Path, optimizer: torch.optim.Optimizer, num_updates: int) -> None:
    """Write the state of a user's optimizer, whose form is its own; only the native trainer reads it."""
    torch.save({"optimizer": optimizer.state_dict(), "num_updates": num_updates}, directory / CUSTOM_STATE)


def read_custom_state(directory: Path, optimizer: torch.optim.Optimizer, device: torch.device) -> int:
    """Read the state, of which only tensors, numbers, text and containers of them; returns the number of updates."""
    path = directory / CUSTOM_STATE
    try:
        state = torch.load(path, map_location=device, weights_only=True)
    except pickle.UnpicklingError as error:
        reason = str(error).partition("\n")[0]
        raise ConfigError(
            f"{path}: the state of the optimizer has objects that are not read ({reason}); keep only tensors in it"
        ) from error
    optimizer.load_state_dict(state["optimizer"])
    return int(state["num_updates"])


@contextmanager
def _blame(name: str, method: str) -> Generator[None]:
    try:
        yield
    except (RollError, *DEVICE_ERRORS):
        raise
    except Exception as error:
        what = describe_error(error, source_of(OPTIMIZERS[name]))
        raise ConfigError(f"optimizer {name!r}: {method}: {what}; fix its code") from error
