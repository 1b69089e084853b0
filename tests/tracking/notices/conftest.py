"""Gives made-up series to all detectors."""

from collections.abc import Callable, Iterable, Mapping

import pytest

from roll.config.notices import NoticeKind
from roll.tracking.notices.monitor import Notice, NoticeMonitor, build_detectors

Observe = Callable[..., list[Notice]]


@pytest.fixture
def observe() -> Observe:
    """Notices over series by metric, from step 1; in the names, a double underscore is a slash. None: no value."""

    def notices(*, uncorrected: bool = False, **series: Iterable[float | None]) -> list[Notice]:
        monitor = NoticeMonitor(build_detectors(uncorrected=uncorrected))
        columns = {name.replace("__", "/"): list(values) for name, values in series.items()}
        assert len({len(values) for values in columns.values()}) == 1
        steps: list[Mapping[str, float | None]] = [
            dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)
        ]
        return [notice for step, metrics in enumerate(steps, 1) for notice in monitor.observe(step, metrics)]

    return notices


@pytest.fixture
def begins(observe: Observe) -> Callable[..., list[tuple[int, NoticeKind]]]:
    """The steps in which problems begin, with their kinds."""
    return lambda **series: [(each.step, each.kind) for each in observe(**series) if each.since is None]
