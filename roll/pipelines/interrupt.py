"""Ctrl-C once: finish the step, checkpoint, leave. Twice: leave now, still resumable."""

from __future__ import annotations

import signal
import sys
from types import FrameType, TracebackType


class Interrupt:
    """While entered, the first Ctrl-C sets `requested` and the second raises `KeyboardInterrupt`."""

    def __init__(self) -> None:
        self.requested = False
        self._before: signal.Handlers | int | None = None

    def __enter__(self) -> Interrupt:
        self._before = signal.signal(signal.SIGINT, self._hear)  # type: ignore[assignment]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        signal.signal(signal.SIGINT, self._before)

    def _hear(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True
        sys.stderr.write("finishing this step, then leaving; press Ctrl-C again to leave at once\n")
