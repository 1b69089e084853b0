"""Publication inside one process: there is one module and nothing moves, or tensors are copied to a second one."""

from __future__ import annotations

from collections.abc import Iterable

import torch


class Shared:
    """Trainer and generator are two views of one module: the optimizer step is the publication."""

    def send(self, tensors: Iterable[tuple[str, torch.Tensor]], *, version: int) -> None:
        """Nothing to move."""

    def receive(self, *, version: int) -> Iterable[tuple[str, torch.Tensor]]:
        return ()


class Mailbox:
    """Holds one version of the trainer's tensors, by reference, until the generator has copied them."""

    def __init__(self) -> None:
        self._letter: tuple[int, list[tuple[str, torch.Tensor]]] | None = None

    def send(self, tensors: Iterable[tuple[str, torch.Tensor]], *, version: int) -> None:
        self._letter = (version, list(tensors))

    def receive(self, *, version: int) -> Iterable[tuple[str, torch.Tensor]]:
        assert self._letter is not None and self._letter[0] == version, f"version {version} was not sent"
        _, tensors = self._letter
        self._letter = None
        return tensors
