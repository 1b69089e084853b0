"""Settings of the Ray workers of one run. Does not import Ray."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from roll.cluster.ray.actor import WorkerSlot
from roll.cluster.ray.keeping import KeptWorkers
from roll.tracking.log import LogSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class RayConfig:
    """Where the workers of one run are started, and where their logs are."""

    name: str
    """Name of the run."""
    directory: Path
    """Directory of the run; logs are in `logs/<role>-<rank>.log` below it."""
    fresh: bool = True
    """Whether existing logs belong to an earlier run and are deleted."""
    address: str | None = None
    """Address of an existing cluster; None: a local one is started and ends with the run."""
    start_timeout_s: float = 300.0
    hang_timeout_s: float = 120.0
    """A worker whose process is stopped for this time is killed."""
    watch_s: float = 3.0
    """Seconds between two checks that Ray is still reachable."""
    slots: Mapping[str, Sequence[WorkerSlot]] = field(default_factory=dict[str, Sequence[WorkerSlot]])
    """Slot of each rank, by role; Ray places the workers of other roles."""
    most: Mapping[str, int] = field(default_factory=dict[str, int])
    """Most workers of each role whose workers join and leave while it runs."""
    scratch: Path | None = None
    """Prefix of files that workers share at run time. Deleted at the end, unless it is the directory itself, which has
    the logs, and a worker died."""
    logging: LogSettings = field(default_factory=LogSettings)
    """Form and level of the lines in the logs."""
    kept: KeptWorkers | None = None
    """Which workers outlive the controller; None: none."""
