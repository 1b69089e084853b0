"""The interface of a weight channel, and the two facts that a publisher needs about one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class Transport:
    """How a publisher has to call the two ends of a channel."""

    concurrent: bool = False
    """Whether send and receive must run at the same time, as in a broadcast; otherwise send completes first."""
    moves: bool = True
    """Whether tensors are copied at all; False where trainer and generator share one module."""


class Channel(Protocol):
    """Moves named tensors from a trainer to its generators."""

    def send(self, tensors: Iterable[tuple[str, torch.Tensor]], *, version: int) -> None: ...

    def receive(self, *, version: int) -> Iterable[tuple[str, torch.Tensor]]:
        """The tensors of `version`, each valid until the next is read; none where both sides share a module."""
        ...
