"""One scrape: values by metric and labels, which become families of `prometheus_client`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from roll.monitoring.catalogue import FAMILIES

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

Labels = tuple[str, ...]


class Scrape:
    """Values of the catalogue's metrics; a metric without a value is left out."""

    def __init__(self) -> None:
        self._values: dict[str, dict[Labels, float]] = {}

    def set(self, name: str, value: float, *labels: str) -> None:
        """Set the value of a metric for these values of its labels."""
        assert len(labels) == len(FAMILIES[name].labels), f"{name} has labels {FAMILIES[name].labels}"
        self._values.setdefault(name, {})[labels] = value

    def families(self) -> Iterator[Metric]:
        """The families in the order of the catalogue."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily  # a run without a port starts faster

        for name, family in FAMILIES.items():
            if values := self._values.get(name):
                kind = CounterMetricFamily if family.kind == "counter" else GaugeMetricFamily
                metric = kind(name, family.help, labels=family.labels)
                for labels, value in values.items():
                    metric.add_metric(labels, value)
                yield metric
