"""What happened in one step, as named numbers. Stages return their metrics; the loop gathers them here."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager


class Meter:
    """Gathers the metrics of one step; `flush` hands them over and begins the next."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._metrics: dict[str, float] = {}
        self.tell: Callable[[str], None] = _nobody
        """Hears of each phase as it begins, and of "" as it ends."""

    @contextmanager
    def __call__(self, phase: str) -> Generator[None]:
        """Add the seconds this block takes to `time/<phase>`, also when it raises."""
        began = self._clock()
        self.tell(phase)
        try:
            yield
        finally:
            self.tell("")
            self.count(f"time/{phase}", self._clock() - began)

    def log(self, metrics: Mapping[str, float]) -> None:
        """Set each metric; the last value within a step stands."""
        self._metrics.update(metrics)

    def count(self, name: str, value: float = 1.0) -> None:
        """Add to a metric, which begins every step at 0."""
        self._metrics[name] = self._metrics.get(name, 0.0) + value

    def flush(self) -> dict[str, float]:
        """The metrics since the last flush."""
        metrics, self._metrics = self._metrics, {}
        return metrics

    def peek(self) -> dict[str, float]:
        """The metrics since the last flush, which stay."""
        return dict(self._metrics)


def _nobody(phase: str) -> None: ...
