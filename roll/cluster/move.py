"""Workers whose replacement runs on another node."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """The replacement of a worker was placed on another node."""

    worker: str
    """Role and rank, such as `actor_infer 1`."""
    before: str
    """The node of the worker before, as `address:port`."""
    after: str
    reason: str
    """Why not on the same node; completes the sentence "the node ..."."""


@runtime_checkable
class MovesWorkers(Protocol):
    """An executor that may place the replacement of a worker on another node."""

    def on_move(self, callback: Callable[[Move], None]) -> None:
        """Call this after each such placement."""
