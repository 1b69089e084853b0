"""Builds the server of metrics and probes from the configuration, and connects it to the parts of a run."""

from __future__ import annotations

from collections.abc import Mapping

import roll
from roll.config.monitoring import is_loopback
from roll.config.schema import Run
from roll.monitoring.monitor import LiveState, Monitor, RunLabels
from roll.monitoring.server import MetricsServer, bind
from roll.rollout.buffer import Buffer
from roll.serving.policies import Routers
from roll.tracking.log import LogSettings

_STATES = {
    "with generators": "generation",
    "waiting to be dispatched": "dispatch",
    "waiting for environments": "environment",
    "waiting for rewards": "reward",
}
"""States of attempts, and their labels."""


def build_metrics_server(run: Run, name: str, steps: int) -> MetricsServer:
    """The server, which listens already and serves once it is started; without `metrics.port` it serves nothing."""
    labels = RunLabels(
        run=name,
        version=roll.__version__,
        algorithm=run.algorithm.recipe or run.algorithm.loss.kind,
        model=run.model.path or "new",
        steps=steps,
        trajectories_per_step=run.rollout.groups_per_step * run.rollout.group_size,
    )
    config = run.metrics
    monitor = Monitor(labels, stalled_after_s=config.stalled_after_s)
    listener = None if config.port is None else bind(config.host, config.port)
    return MetricsServer(monitor, listener, exposed=not is_loopback(config.host))


def log_settings(run: Run) -> LogSettings:
    """Form and level of the lines of a run."""
    return LogSettings(format=run.logging.format, level=run.logging.level, run=run.name)


def live_state(buffer: Buffer, routers: Routers) -> LiveState:
    """What a scrape reads of the loop."""

    def attempts() -> Mapping[str, int]:
        counts = routers.inflight_counts()
        return {label: counts.get(state, 0) for state, label in _STATES.items()}

    return LiveState(
        num_slots=lambda: buffer.num_slots,
        num_free=lambda: buffer.num_free,
        num_ready=lambda: len(buffer.ready()),
        num_tokens=lambda: routers.counts.tokens,
        attempts=attempts,
    )
