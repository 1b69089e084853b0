"""Publication between processes through files in a folder that all of them see."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, cast

import safetensors.torch
import torch
from safetensors import safe_open

from roll.errors import RunStopped


class Disk:
    """Holds the newest version in `directory`, written aside and renamed, so that nobody ever reads half of one.

    The version before is deleted when the next is sent: by then every receiver has loaded it.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def send(self, tensors: Iterable[tuple[str, torch.Tensor]], *, version: int) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        whole = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors}
        file = self._file(version)
        aside = file.with_suffix(".part")
        cast(Any, safetensors.torch).save_file(whole, aside)
        aside.rename(file)
        for old in self.directory.glob("version-*"):
            if old != file:
                old.unlink()

    def receive(self, *, version: int) -> Iterator[tuple[str, torch.Tensor]]:
        path = self._file(version)
        if not path.is_file():
            raise RunStopped(
                f"weights: version {version} is not in {self.directory}; "
                "let the run's directory lie where every machine of the cluster sees it"
            )
        with cast(Any, safe_open)(path, framework="pt") as opened:
            for name in opened.keys():  # noqa: SIM118 - not a mapping
                yield name, opened.get_tensor(name)

    def _file(self, version: int) -> Path:
        return self.directory / f"version-{version}.safetensors"


def disk(rank: int, *, directory: str) -> Disk:
    """The same for every worker, whichever side it is on."""
    return Disk(Path(directory))
