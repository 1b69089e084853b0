"""Roles that share devices too small for all of them take turns: what a phase does not need waits in the host's memory.

| call | waits for | woken by |
|---|---|---|
| `enter("update")` | requests to come back, where generators make room; then the moves | generators; the answers |
| `enter("publication")`, `enter("rollout")` | the moves; generators are held already | the answers |
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from roll.cluster.handle import Cluster
from roll.engines.base import Resident
from roll.placement.records import Part, Phase, Placement
from roll.serving.router import Router

Move: TypeAlias = Callable[[Any, Sequence[Part]], Awaitable[None]]
_INFER = "actor_infer"


@dataclass(slots=True, kw_only=True)
class Turns:
    """Moves parts off devices and back, from phase to phase, as the placement says. At the start all is on them."""

    placement: Placement
    clusters: Mapping[str, Cluster[Any]]
    """By role; those that have something to put aside, at least."""
    router: Router
    _off: dict[str, tuple[Part, ...]] = field(default_factory=dict[str, tuple[Part, ...]])
    """What is not on its devices now."""

    async def enter(self, phase: Phase) -> None:
        """Make room first, then bring back what the phase needs."""
        wanted = {role: self.placement.off(role, phase) for role in self.clusters}
        if set(wanted.get(_INFER, ())) - set(self._off.get(_INFER, ())):
            await self.router.hold()  # whatever runs comes back with its tokens, and goes on after the publication
        for role, parts in wanted.items():
            if leaving := _less(parts, self._off.get(role, ())):
                await self._each(role, Resident.offload, leaving)
        for role, parts in wanted.items():
            if coming := _less(self._off.get(role, ()), parts):
                await self._each(role, Resident.onload, coming)
        self._off = wanted

    async def _each(self, role: str, move: Move, parts: Sequence[Part]) -> None:
        """Ask the workers of a role that have neighbours; a generator that died is left out, to be mended."""
        cluster, sharing = self.clusters[role], self._sharing(role)

        async def ask(rank: int) -> None:
            if rank in sharing:
                await cluster.at(rank, move, parts)

        if role == _INFER:
            await self.router.each(ask)
        else:
            await asyncio.gather(*map(ask, range(cluster.size)))

    def _sharing(self, role: str) -> set[int]:
        """The workers of a role on whose devices another role lives."""
        others = {device for place in self.placement.roles if place.role != role for device in place.devices}
        return {worker.rank for worker in self.placement.workers_of(role) if others & set(worker.devices)}


def _less(parts: Sequence[Part], others: Sequence[Part]) -> list[Part]:
    return [part for part in parts if part not in others]
