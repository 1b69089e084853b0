"""The optimizer's state on disk: the moments of each trained tensor, under the tensor's name in Hugging Face files.

All trainers write and read this one form, however their ranks divide the model: `optimizer/state.json`, and files in
which each rank has whole moments of some tensors. The weights themselves are in the files of the model, in 32 bits.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from roll.errors import ConfigError
from roll.weights.buckets import NamedTensor
from roll.weights.huggingface import TensorFiles, write_files

MOMENTS = ("exp_avg", "exp_avg_sq")
"""Of AdamW. SGD has no state except for the number of updates."""
STEP = "step"
"""Number of AdamW's steps with a tensor, which corrects the bias of its moments."""
CUSTOM_STATE = "optimizer.pt"
"""File with the state of a user's optimizer, in a form of its own, which only the native trainer writes and reads."""
_FOLDER, _DESCRIPTION, _FORMAT = "optimizer", "state.json", 1
_FILE_BYTES = 2**30
_RESUME = "resume from another checkpoint"


def least_loaded(loads: list[int], num_bytes: int) -> int:
    """The rank with the fewest bytes so far, to which `loads` then adds these."""
    rank = loads.index(min(loads))
    loads[rank] += num_bytes
    return rank


def share_of(entries: Iterable[NamedTensor], rank: int, size: int) -> Iterator[NamedTensor]:
    """Of entries that all ranks iterate over, those that this rank writes."""
    loads = [0] * size
    for key, tensor in entries:
        if least_loaded(loads, tensor.nbytes) == rank:
            yield key, tensor


def write_optimizer_state(
    directory: Path, entries: Iterable[NamedTensor], *, optimizer: str, num_updates: int, rank: int = 0
) -> None:
    """Write this rank's entries: `exp_avg/NAME`, `exp_avg_sq/NAME` and `step/NAME`, whole and each by one rank."""
    folder = directory / _FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    write_files(folder, f"rank-{rank:05}", entries, file_bytes=_FILE_BYTES)
    if rank == 0:
        described = {"format": _FORMAT, "optimizer": optimizer, "num_updates": num_updates}
        (folder / _DESCRIPTION).write_text(json.dumps(described), encoding="utf-8")


def check_optimizer_state(directory: Path, optimizer: str) -> int:
    """The number of updates; raises `ConfigError` if there is no state that this optimizer can continue with."""
    path = directory / _FOLDER / _DESCRIPTION
    if not path.is_file():
        raise ConfigError(
            f"{path}: no such file, so the optimizer's state is of an earlier release, of an optimizer of your own, or "
            "was not saved; resume with what wrote it, or start a new run with this directory as model.path"
        )
    try:
        described: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        version, kind, num_updates = (described.get(key) for key in ("format", "optimizer", "num_updates"))
    except (ValueError, AttributeError):
        raise ConfigError(f"{path}: not a JSON object; {_RESUME}") from None
    if version != _FORMAT or not isinstance(num_updates, int):
        raise ConfigError(f"{path}: format {_FORMAT} expected (got {version!r}); resume with the release that wrote it")
    if kind != optimizer:
        raise ConfigError(
            f"{path}: state of the optimizer {kind} (the run has {optimizer}); set optimizer.kind={kind}, or start a "
            "new run with this directory as model.path"
        )
    return num_updates


class OptimizerState:
    """A saved state, whose tensors are read one at a time."""

    def __init__(self, directory: Path, optimizer: str) -> None:
        self.num_updates = check_optimizer_state(directory, optimizer)
        self._folder = directory / _FOLDER
        self._files: Mapping[str, Tensor] | None = None

    def moment(self, moment: str) -> Mapping[str, Tensor]:
        """One of the `MOMENTS` of all tensors by their names."""
        if self._files is None:
            self._files = TensorFiles(self._folder) if any(self._folder.glob("*.safetensors")) else {}
        return _Entries(self._files, moment, self._folder)

    def step(self, names: Iterable[str]) -> float:
        """AdamW's steps with a parameter that consists of these tensors."""
        steps = self.moment(STEP)
        return max(float(steps[name]) for name in names)


class _Entries(Mapping[str, Tensor]):
    """The entries of one kind."""

    def __init__(self, files: Mapping[str, Tensor], kind: str, folder: Path) -> None:
        self._files, self._kind, self._folder = files, kind, folder

    def __getitem__(self, name: str) -> Tensor:
        key = f"{self._kind}/{name}"
        if key not in self._files:
            raise ConfigError(f"{self._folder}: no {key}; it is incomplete or of another model, {_RESUME}")
        return self._files[key]

    def __iter__(self) -> Iterator[str]:
        prefix = f"{self._kind}/"
        return (key.removeprefix(prefix) for key in self._files if key.startswith(prefix))

    def __len__(self) -> int:
        return sum(1 for _ in self)
