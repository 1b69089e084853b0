"""Who sends which tensor to whom. Pure: two layouts in, a plan or a refusal out; how bytes move is up to a channel."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from roll.errors import RunStopped

if TYPE_CHECKING:
    import torch

Layout = Mapping[str, tuple[int, ...]]
"""Hugging Face names of one side's parameters, with their shapes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What one publication carries."""

    names: tuple[str, ...]
    """Hugging Face names, in the order they travel; every one must arrive."""
    together: bool = False
    """Whether sender and receivers must be called at the same time, as a broadcast asks; else one after the other."""
    travels: bool = True
    """Whether anything moves at all; not where sender and receivers hold one module."""


class Channel(Protocol):
    """Moves named tensors from a trainer to a generator."""

    def send(self, tensors: Iterable[tuple[str, torch.Tensor]], *, version: int) -> None: ...

    def receive(self, *, version: int) -> Iterable[tuple[str, torch.Tensor]]:
        """What was sent, each tensor good until the next one is asked for; nothing where both sides share a module."""
        ...


def plan(sender: Layout, receiver: Layout, *, together: bool = False, travels: bool = True) -> Plan:
    """Every parameter once. Sides that do not agree on names or shapes are refused before a byte moves."""
    wrong = [
        f"{name}: {sender.get(name, 'not sent')} against {receiver.get(name, 'not wanted')}"
        for name in sorted({*sender, *receiver})
        if sender.get(name) != receiver.get(name)
    ]
    if wrong:
        raise RunStopped(f"weights: trainer and generator hold different models; {'; '.join(wrong[:3])}")
    return Plan(names=tuple(sorted(sender)), together=together, travels=travels)
