"""SIGINT or SIGTERM once: finish the step, write a checkpoint, exit. Twice: exit now, still resumable."""

from __future__ import annotations

import signal
import sys
from types import FrameType
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
"""Cluster schedulers send SIGTERM before they kill."""


class Interrupt:
    """While entered, the first signal sets `requested` and the second raises `KeyboardInterrupt`."""

    def __init__(self) -> None:
        self.requested = False
        self._before: list[Any] = []

    def __enter__(self) -> Interrupt:
        self._before = [signal.signal(number, self._on_signal) for number in _SIGNALS]
        return self

    def __exit__(self, *_: object) -> None:
        for number, before in zip(_SIGNALS, self._before, strict=True):
            signal.signal(number, before)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True
        sys.stderr.write("finishing this step, then exiting; press Ctrl-C again to exit at once\n")
