"""The weights that rank 0 passes to the other ranks, read from files one tensor at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from roll.engines.native.model_spec import Head
from roll.errors import ConfigError
from roll.weights.huggingface import TensorFiles

_SCORE = "score.weight"


class DirectoryWeights(Mapping[str, Tensor]):
    """The tensors of a model directory for the native decoder, checked by the headers of the files."""

    def __init__(self, directory: Path, decoder: nn.Module, head: Head) -> None:
        """`decoder` has the names and shapes; with `new score` a score head that the files lack is 0."""
        self._files = TensorFiles(directory)
        self._shapes = {name: tuple(parameter.shape) for name, parameter in decoder.named_parameters()}
        self._head: Head = head
        self._check(str(directory))

    def _check(self, where: str) -> None:
        """Raise `ConfigError` for tensors that are missing, unknown, or of another shape."""
        for name in self._files:
            if (name == "lm_head.weight" and name not in self._shapes) or name.endswith("rotary_emb.inv_freq"):
                continue
            if self._shapes.get(name) != (shape := self._files.shape(name)):
                raise ConfigError(f"{where}: tensor {name} {shape} does not fit config.json; take both from one model")
        if missing := sorted(set(self._shapes) - set(self)):
            raise ConfigError(
                f"{where}: tensor {missing[0]} is missing ({len(missing)} in all); the weights are incomplete"
            )

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._shapes:
            raise KeyError(name)
        if name not in self._files and self._starts_at_zero(name):
            return torch.zeros(self._shapes[name])
        return self._files[name]

    def __iter__(self) -> Iterator[str]:
        return (name for name in self._shapes if name in self._files or self._starts_at_zero(name))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def _starts_at_zero(self, name: str) -> bool:
        return self._head == "new score" and name == _SCORE
