"""Ctrl-C once, or a polite kill: finish the step, checkpoint, leave. Twice: leave now, still resumable."""

from __future__ import annotations

import signal
import sys
from types import FrameType, TracebackType
from typing import Any

_HEARD = (signal.SIGINT, signal.SIGTERM)
"""The second is what schedulers of clusters send before they kill."""


class Interrupt:
    """While entered, the first signal sets `requested` and the second raises `KeyboardInterrupt`."""

    def __init__(self) -> None:
        self.requested = False
        self._before: list[Any] = []

    def __enter__(self) -> Interrupt:
        self._before = [signal.signal(number, self._hear) for number in _HEARD]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, before in zip(_HEARD, self._before, strict=True):
            signal.signal(number, before)

    def _hear(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True
        sys.stderr.write("finishing this step, then leaving; press Ctrl-C again to leave at once\n")
