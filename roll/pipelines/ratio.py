"""Applies the asynchronous ratio that its controller chooses, and records every change in the journal."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from roll.config.rollout import Rollout
from roll.journal.events import AsyncRatioChanged
from roll.journal.store import Journal
from roll.rollout.adapt import AsyncRatio, RatioBounds, RatioController, StepWaits, last_ratio
from roll.rollout.buffer import Buffer
from roll.serving.policies import Routers
from roll.tracking.log import announce


@dataclass(slots=True, kw_only=True)
class RatioRecorder:
    """Gives the waits of every step to the controller, and its decisions to the buffer and the journal."""

    controller: RatioController | None
    """None: the ratio is constant."""
    rollout: Rollout
    buffer: Buffer
    routers: Routers
    journal: Journal
    clock: Callable[[], float] = field(default=lambda: asyncio.get_running_loop().time())
    _began: float | None = None
    """End of the step before; None before the first of this process, whose length is not known."""

    def __post_init__(self) -> None:
        if self.controller is not None:
            self._apply(self.controller.ratio)

    def observe(self, step: int, metrics: Mapping[str, float]) -> None:
        """Change the ratio after this step if its controller decides so."""
        if self.controller is None:
            return
        now = self.clock()
        idle_s, began, self._began = self.routers.drain_idle_s(now), self._began, now
        if began is None:
            return
        other_s = sum(metrics.get(f"time/{phase}", 0.0) for phase in ("validate", "checkpoint"))
        waits = StepWaits(
            seconds=now - began - other_s,
            trainer_s=metrics["time/wait"],
            generators_s=idle_s,
            num_lost=int(metrics.get("stale/groups", 0)),
        )
        if (change := self.controller.observe(waits)) is None:
            return
        self._apply(change.ratio)
        event = AsyncRatioChanged(
            step=step,
            max_staleness=change.ratio.max_staleness,
            redundant_groups=change.ratio.redundant_groups,
            reason=change.reason,
        )
        self.journal.record(event)
        announce(f"step {step}: {change.reason}")

    def metrics(self) -> dict[str, float]:
        """The current ratio, unless it is constant."""
        if self.controller is None:
            return {}
        ratio = self.controller.ratio
        return {
            "adapt/max_staleness": ratio.max_staleness,
            "adapt/redundant_groups": float(ratio.redundant_groups),
        }

    def _apply(self, ratio: AsyncRatio) -> None:
        num_slots = self.rollout.slots_at(ratio.max_staleness)
        self.buffer.resize(num_slots=num_slots, redundant=ratio.redundant_groups)


def build_ratio_recorder(
    rollout: Rollout, buffer: Buffer, routers: Routers, journal: Journal, resumed_from: int | None
) -> RatioRecorder:
    """The recorder of a run, with the ratio after the step that it continues from."""
    if rollout.adapt is None:
        return RatioRecorder(controller=None, rollout=rollout, buffer=buffer, routers=routers, journal=journal)
    ratio = AsyncRatio(max_staleness=rollout.max_staleness, redundant_groups=rollout.redundant_groups)
    if resumed_from is not None:
        ratio = last_ratio((entry.event for entry in journal.events()), ratio, resumed_from)
    bounds = RatioBounds(max_staleness=rollout.staleness_bounds, redundant_groups=rollout.redundancy_bounds)
    (low, high), (fewest, most) = bounds.max_staleness, bounds.redundant_groups
    ratio = AsyncRatio(  # a resumed run may have other bounds
        max_staleness=min(max(ratio.max_staleness, low), high),
        redundant_groups=min(max(ratio.redundant_groups, fewest), most),
    )
    controller = RatioController(bounds, ratio)
    return RatioRecorder(controller=controller, rollout=rollout, buffer=buffer, routers=routers, journal=journal)
