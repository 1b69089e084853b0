"""The metrics of one step. Stages return their metrics; the loop collects them here."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager


class Meter:
    """Collects the metrics of one step; `flush` returns them and starts the next."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._metrics: dict[str, float] = {}
        self.on_phase: Callable[[str], None] = lambda phase: None
        """Callback with the name of each phase as it begins, and with "" as it ends."""

    @contextmanager
    def __call__(self, phase: str) -> Generator[None]:
        """Add the seconds this block takes to `time/<phase>`, also when it raises."""
        start = self._clock()
        self.on_phase(phase)
        try:
            yield
        finally:
            self.on_phase("")
            self.count(f"time/{phase}", self._clock() - start)

    def log(self, metrics: Mapping[str, float]) -> None:
        """Set each metric; the last value within a step counts."""
        self._metrics.update(metrics)

    def count(self, name: str, value: float = 1.0) -> None:
        """Add to a metric, which starts every step at 0."""
        self._metrics[name] = self._metrics.get(name, 0.0) + value

    def flush(self) -> dict[str, float]:
        """The metrics since the last flush."""
        metrics, self._metrics = self._metrics, {}
        return metrics
