"""Weight channel through files in a directory that all processes see."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, cast

import safetensors.torch
from safetensors import safe_open

from roll.errors import RunStopped
from roll.weights.buckets import NamedTensor


class Disk:
    """Stores the newest version in `directory`; a file is written aside and renamed, so readers never see half of one.

    Sending a version deletes the one before: by then every receiver has loaded it.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def send(self, tensors: Iterable[NamedTensor], *, version: int) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        contents = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors}
        file = self._file(version)
        partial = file.with_suffix(".part")
        cast(Any, safetensors.torch).save_file(contents, partial)
        partial.rename(file)
        for old in self.directory.glob("version-*"):
            if old != file:
                old.unlink()

    def receive(self, *, version: int) -> Iterator[NamedTensor]:
        path = self._file(version)
        if not path.is_file():
            raise RunStopped(
                f"weights: version {version} is not in {self.directory}; "
                "put the run's directory on a file system that every machine of the cluster sees"
            )
        with cast(Any, safe_open)(path, framework="pt") as opened:
            for name in opened.keys():  # noqa: SIM118 - not a mapping
                yield name, opened.get_tensor(name)

    def _file(self, version: int) -> Path:
        return self.directory / f"version-{version}.safetensors"


def disk(rank: int, *, directory: str) -> Disk:
    """Either end of the channel, the same for every rank."""
    return Disk(Path(directory))
