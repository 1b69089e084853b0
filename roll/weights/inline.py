"""Weight channels inside one process: nothing moves between two views of one module, or tensors pass by reference."""

from __future__ import annotations

from collections.abc import Iterable

from roll.weights.buckets import NamedTensor


class Shared:
    """Trainer and generator are two views of one module: the optimizer step is the publication."""

    def send(self, tensors: Iterable[NamedTensor], *, version: int) -> None:
        """Nothing to move."""

    def receive(self, *, version: int) -> Iterable[NamedTensor]:
        return ()


class Mailbox:
    """Holds one version of the trainer's tensors, by reference, until the generator has copied them."""

    def __init__(self) -> None:
        self._letter: tuple[int, list[NamedTensor]] | None = None

    def send(self, tensors: Iterable[NamedTensor], *, version: int) -> None:
        self._letter = (version, list(tensors))

    def receive(self, *, version: int) -> Iterable[NamedTensor]:
        assert self._letter is not None and self._letter[0] == version, f"version {version} was not sent"
        _, tensors = self._letter
        self._letter = None
        return tensors
