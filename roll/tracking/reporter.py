"""Sends the metrics of each step to the terminal and to every sink."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from roll.tracking.progress import Progress
from roll.tracking.sinks import Sink


class Reporter:
    """Callable with a step and its metrics."""

    def __init__(self, progress: Progress, sinks: Sequence[Sink]) -> None:
        self._progress, self._sinks = progress, sinks
        progress.start()

    def __call__(self, step: int, metrics: Mapping[str, float]) -> None:
        for sink in self._sinks:
            sink.write(step, metrics)
        self._progress.update(step, metrics)

    def note(self, line: str) -> None:
        """Show the user one line at once."""
        self._progress.note(line)

    def close(self) -> None:
        self._progress.close()
        for sink in self._sinks:
            sink.close()
