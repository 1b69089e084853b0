"""Workers called over a network: answers have latency, and every call costs the controller time."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from roll.cluster.handle import Method, P, R, W
from roll.cluster.inline import InlineCluster
from roll.sim.clock import VirtualLoop


@dataclass(frozen=True, slots=True, kw_only=True)
class CallCost:
    """Cost of one remote call."""

    latency_s: float = 0.001
    """Time until the answer arrives."""
    busy_s: float = 1 / 2100
    """Time in which the controller is busy with the call."""


class RemoteCluster(InlineCluster[W]):
    """`Cluster` whose calls have the cost of remote ones."""

    def __init__(self, workers: Sequence[W], cost: CallCost, loop: VirtualLoop) -> None:
        super().__init__(workers)
        self._cost, self._loop = cost, loop
        self.num_calls = 0

    async def at(self, rank: int, method: Method[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        self.num_calls += 1
        self._loop.spend(self._cost.busy_s)
        answer = await super().at(rank, method, *args, **kwargs)
        await asyncio.sleep(self._cost.latency_s)
        return answer
