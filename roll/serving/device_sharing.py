"""Time-sharing of devices that are too small for all roles: parts that a phase does not need are offloaded to the host.

| call | waits for | woken by |
|---|---|---|
| `enter("update")` | requests to return, if generators are offloaded; then the moves | generators; the workers |
| `enter("weight_sync")`, `enter("rollout")` | the moves; generators are paused already | the workers |
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from roll.cluster.handle import Cluster
from roll.engines.base import Offloadable
from roll.placement.records import Part, Phase, Placement
from roll.serving.router import Router

Move: TypeAlias = Callable[[Any, Sequence[Part]], Awaitable[None]]
_INFER = "actor_infer"


@dataclass(slots=True, kw_only=True)
class DeviceSharing:
    """Offloads and onloads parts of roles at every phase, as the placement says. Initially all parts are on devices."""

    placement: Placement
    clusters: Mapping[str, Cluster[Any]]
    """Clusters by role; at least those with parts to offload."""
    router: Router
    _off: dict[str, tuple[Part, ...]] = field(default_factory=dict[str, tuple[Part, ...]])
    """Offloaded parts by role."""

    async def enter(self, phase: Phase) -> None:
        """Offload the parts that the phase does not need, then onload those that it does."""
        if _INFER in self.clusters and _less(self.placement.off(_INFER, phase), self._off.get(_INFER, ())):
            await self.router.hold()  # running requests return with their tokens and continue after the weight sync
        await self.move(phase)

    async def move(self, phase: Phase) -> None:
        """Move parts to the host and back, as `enter`, where no generator that moves has requests."""
        offloaded = {role: self.placement.off(role, phase) for role in self.clusters}
        for role, parts in offloaded.items():
            if leaving := _less(parts, self._off.get(role, ())):
                await self._each(role, Offloadable.offload, leaving)
        for role, parts in offloaded.items():
            if coming := _less(self._off.get(role, ()), parts):
                await self._each(role, Offloadable.onload, coming)
        self._off = offloaded

    async def _each(self, role: str, move: Move, parts: Sequence[Part]) -> None:
        """Call the workers of a role that share devices; skips dead generators, which are being replaced."""
        cluster, sharing = self.clusters[role], self.placement.sharing(role)

        async def call(rank: int) -> None:
            if rank in sharing:
                await cluster.at(rank, move, parts)

        if role == _INFER:
            await self._each_generator(call)
        else:
            await asyncio.gather(*map(call, range(cluster.size)))

    async def _each_generator(self, call: Callable[[int], Awaitable[None]]) -> None:
        await self.router.each(call)


def _less(parts: Sequence[Part], others: Sequence[Part]) -> list[Part]:
    return [part for part in parts if part not in others]
