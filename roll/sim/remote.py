"""Workers that are called over a network: an answer takes a while, and every call costs the controller something."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from roll.cluster.handle import Method, P, R, W
from roll.cluster.inline import InlineCluster
from roll.sim.clock import VirtualLoop


@dataclass(frozen=True, slots=True, kw_only=True)
class CallCost:
    """What one remote call costs."""

    latency_s: float = 0.001
    """Until its answer is there."""
    busy_s: float = 1 / 2100
    """That the controller is busy with it and does nothing else."""


class RemoteCluster(InlineCluster[W]):
    """`Cluster` whose calls cost what remote ones do."""

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
