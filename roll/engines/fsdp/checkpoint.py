"""Saves of a sharded model: optimizer state on disk, copies on the host, and a thread that writes them.

All ranks write the optimizer's state at once, each its own shards; any number of ranks can read it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint
from torch import nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.tensor import DTensor

from roll.errors import ConfigError, one_line

_dcp: Any = torch.distributed.checkpoint  # exports less than it defines
_FOLDER = "optimizer"
_MOMENTS = ("exp_avg", "exp_avg_sq")


def write_state(directory: Path, state: Mapping[str, Any], group: Any = None) -> None:
    """Write the optimizer's state into a subdirectory; ranks communicate over `group`."""
    try:
        _dcp.save(dict(state), checkpoint_id=directory / _FOLDER, process_group=group)
    except CheckpointException as error:
        raise _cause(error) from None


def read_state(directory: Path, state: dict[str, Any]) -> int:
    """Read this rank's part of the optimizer's state into tensors; returns the number of updates."""
    path = directory / _FOLDER
    if not path.is_dir():
        raise ConfigError(f"{path}: no such directory; resume with the backend that saved the run")
    try:
        _dcp.load(state, checkpoint_id=path)
    except CheckpointException as error:
        reason = one_line(str(_cause(error)))
        raise ConfigError(f"{path}: cannot be read ({reason}); resume from another checkpoint") from None
    return int(state["num_updates"])


def _cause(error: CheckpointException) -> BaseException:
    """The error of the first rank that has one; a `CheckpointException` itself is not even an `Exception`."""
    return next(failure for failure, _ in error.failures.values())


def optimizer_state(model: nn.Module, optimizer: Any, num_updates: int) -> dict[str, Any]:
    """The tensors that the optimizer works with, by parameter, to write or to read into."""
    state: dict[str, Any] = {"num_updates": torch.tensor(num_updates)}
    if not isinstance(optimizer, torch.optim.AdamW):
        return state  # plain SGD has no state
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        slots = optimizer.state[parameter]
        if not slots:
            slots["step"] = torch.zeros((), device=parameter.device)
            slots.update({moment: torch.zeros_like(parameter.detach()) for moment in _MOMENTS})
        state[name] = {key: slots[key] for key in ("step", *_MOMENTS)}
    return state


def copy_to_host(value: Any) -> Any:
    """A copy on the host of a tensor or of nested dictionaries of tensors; sharded tensors stay sharded."""
    if isinstance(value, dict):
        return {name: copy_to_host(entry) for name, entry in value.items()}
    if not isinstance(value, DTensor):
        return value.detach().to("cpu", copy=True)
    part: Any = value.to_local().detach().to("cpu", copy=True)
    make: Any = DTensor  # `from_local` would move it back to the device of the mesh
    return make(part, value._spec, requires_grad=False)


class BackgroundSave:
    """At most one save that a thread is writing; its outcome stays until `forget`."""

    def __init__(self) -> None:
        self.pool = ThreadPoolExecutor(1, thread_name_prefix="save")
        self._work: Future[None] | None = None

    def begin(self, work: Callable[[], None]) -> None:
        assert self._work is None or self._work.done(), "one save at a time: wait for the last one first"
        self._work = self.pool.submit(work)

    def fault(self) -> str | None:
        """The error of the save; None while it is running, empty if it succeeded."""
        assert self._work is not None, "no save without `wait` has begun"
        if not self._work.done():
            return None
        error = self._work.exception()
        return "" if error is None else f"{type(error).__name__}: {error}".splitlines()[0]

    def settle(self) -> None:
        """Wait for the save, whether it succeeds or not."""
        if self._work is not None:
            self._work.exception()

    def forget(self) -> None:
        """Wait for the save and drop its outcome."""
        self.settle()
        self._work = None

    def close(self) -> None:
        """Finish the save, end the thread, and raise the error of a save whose outcome nobody has asked for."""
        self.pool.shutdown()
        if self._work is not None:
            self._work.result()
