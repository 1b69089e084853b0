"""Nodes of a Ray cluster: which of them are usable, and where the replacement of a worker is placed.

A replacement starts where the worker was, unless that node is lost or being drained, or the worker has failed there
repeatedly. Then it gets a CPU, and as many devices, that no other worker of this run uses on another node.

| call | waits for | woken by |
|---|---|---|
| `place`, `plan_move`, `unusable` | replies of Ray, and of the node in question | the replies; at most a few seconds |
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import ray as _ray
from ray._private import state as _state

from roll.cluster.move import Move
from roll.cluster.ray.actor import WorkerSlot
from roll.cluster.ray.environment import accepts_connections
from roll.errors import NoRoom

ray: Any = _ray  # its type stubs are incomplete
state: Any = _state
_MOST_FAILURES = 2
"""Failures of one worker on one node after which its replacement is placed elsewhere if it can be."""
_REPLY_S = 5.0
"""Seconds in which a node must accept a connection; a dead raylet refuses at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeState:
    """One node that Ray lists as alive."""

    id: str
    address: str
    """`address:port` of its raylet."""
    num_gpus: int
    free_cpus: float
    draining: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerLocation:
    """A worker, its slot, and the node of its process."""

    worker: str
    slot: WorkerSlot
    node: str
    """Ray's id; empty if it never started."""


class Nodes:
    """Places the replacements of all workers of a run."""

    def __init__(self) -> None:
        self.on_move: Callable[[Move], None] = lambda move: None
        self.slots: dict[str, WorkerSlot] = {}
        """Current slot of each worker with a slot of its own, by name."""
        self._moved: dict[WorkerSlot, WorkerSlot] = {}
        """New slot by lost slot: workers that shared devices share them again."""
        self._planned: dict[str, WorkerSlot] = {}
        """Slots of workers that are about to leave a node."""
        self._starting: Counter[str] = Counter()
        """Workers that start on each node and may not have its CPU yet."""
        self._failures: Counter[tuple[str, str]] = Counter()
        """By worker and node."""
        self.refused: set[str] = set()
        """Nodes on which no worker is added: one that started there could not join."""
        self._choosing = asyncio.Lock()
        self._addresses: dict[str, str] = {}
        """Address of each node seen so far, by id."""

    async def unusable(self, node: str) -> str | None:
        """Why no worker can run on its node, with the node; empty if it can, None if Ray does not reply."""
        if (nodes := await self._list()) is None:
            return None
        reason = await self._unusable(node, nodes) if node else ""
        return f"its node {self._addresses.get(node, node)} {reason}" if reason else ""

    async def draining(self) -> set[str]:
        """Ids of the nodes that are being drained."""
        return {node.id for node in await self._list() or () if node.draining}

    async def plan_move(self, location: WorkerLocation) -> bool:
        """Reserve a slot on another node for a worker that has to leave its own; False if no node has room."""
        if location.worker not in self._planned:
            slot = await self._choose(location, await self._list() or ())
            if slot is None:
                return False
            self._planned[location.worker] = slot
        return True

    @asynccontextmanager
    async def place(self, location: WorkerLocation, *, failed: bool = True) -> AsyncGenerator[WorkerSlot]:
        """The slot of a worker's replacement, which starts in this block; raises `NoRoom` if no node has room.

        `failed` is false for a worker that starts again because another one failed.
        """
        slot, reason = await self._place(location, failed=failed)
        self._starting[slot.node] += 1
        try:
            yield slot
        finally:
            self._starting[slot.node] -= 1
        if reason:
            self.slots[location.worker] = slot
            before, after = (self._addresses.get(node, node) for node in (location.node, slot.node))
            self.on_move(Move(worker=location.worker, before=before, after=after, reason=reason))

    @asynccontextmanager
    async def place_new(self, worker: str, like: WorkerSlot) -> AsyncGenerator[WorkerSlot]:
        """The slot of a worker that joins, with as many devices as `like`; raises `NoRoom` if no node has room."""
        async with self._choosing:  # the next one has to see that this slot is taken
            nodes = [node for node in await self._list() or () if node.id not in self.refused]
            slot = await self._choose(WorkerLocation(worker=worker, slot=like, node=""), nodes)
            if slot is None:
                raise NoRoom(f"{worker}: no node has {_describe_room(like)}")
            self.slots[worker] = slot
        self._starting[slot.node] += 1
        try:
            yield slot
        finally:
            self._starting[slot.node] -= 1

    def describe(self, node: str) -> str:
        """A node as `address:port`, by Ray's id."""
        return self._addresses.get(node, node)

    async def _place(self, location: WorkerLocation, *, failed: bool) -> tuple[WorkerSlot, str]:
        """The slot of a replacement, and why it is on another node; empty if it is not."""
        node, nodes = location.node, await self._list()
        if not node or nodes is None:
            return location.slot, ""
        if lost := await self._unusable(node, nodes):
            reason = lost
        else:
            self._failures[location.worker, node] += failed
            if not failed or (number := self._failures[location.worker, node]) < _MOST_FAILURES:
                return location.slot, ""
            reason = f"is avoided after {number} failures of this worker there"
        planned = self._planned.pop(location.worker, None)
        if planned is not None and await self._unusable(planned.node, nodes):
            planned = None
        if (slot := planned or await self._choose(location, nodes)) is not None:
            if location.slot.visible:
                self._moved[location.slot] = slot
            return slot, reason
        if not lost:
            return location.slot, ""
        needed = _describe_room(location.slot)
        raise NoRoom(f"{location.worker}: its node {self.describe(node)} {lost}, and no other node has {needed}")

    async def _choose(self, location: WorkerLocation, nodes: Sequence[NodeState]) -> WorkerSlot | None:
        """A slot on another usable node with room; None if there is none."""
        if (
            location.node
            and (shared := self._moved.get(location.slot))
            and not await self._unusable(shared.node, nodes)
        ):
            return shared
        others = [node for node in nodes if node.id != location.node and not node.draining]
        planned = Counter(slot.node for slot in self._planned.values())
        free = {node.id: node.free_cpus - self._starting[node.id] - planned[node.id] for node in others}
        for node in sorted(others, key=lambda each: (self._failures[location.worker, each.id], -free[each.id])):
            slot = self._slot_on(node, location) if free[node.id] >= 1 else None
            if slot is not None and await accepts_connections(node.address, _REPLY_S):
                return slot
        return None

    def _slot_on(self, node: NodeState, location: WorkerLocation) -> WorkerSlot | None:
        """A slot with the worker's number of devices of a node; None if others use too many of them."""
        if not location.slot.visible:
            return replace(location.slot, node=node.id)
        slots = [*self.slots.values(), *self._planned.values()]
        used = {device for slot in slots if slot.node in ("", node.id) for device in slot.visible or ()}
        free = [device for device in range(node.num_gpus) if device not in used]
        num = len(location.slot.visible)
        return WorkerSlot(node=node.id, visible=tuple(free[:num])) if len(free) >= num else None

    async def _unusable(self, node: str, nodes: Sequence[NodeState]) -> str:
        listed = next((each for each in nodes if each.id == node), None)
        if listed is None or not await accepts_connections(listed.address, _REPLY_S):
            return "is lost"
        return "is being drained" if listed.draining else ""

    async def _list(self) -> list[NodeState] | None:
        """The nodes that Ray lists as alive; None if Ray does not reply, which the executor watches."""
        if not await accepts_connections(ray.get_runtime_context().gcs_address, _REPLY_S):
            return None  # a call to Ray would block
        nodes = await asyncio.to_thread(_list_nodes)
        self._addresses |= {node.id: node.address for node in nodes}
        return nodes


def _describe_room(slot: WorkerSlot) -> str:
    num = len(slot.visible or ())
    return f"{num} free devices and a free CPU" if num else "a free CPU"


def _list_nodes() -> list[NodeState]:
    free: Mapping[str, Mapping[str, float]] = state.available_resources_per_node()
    draining = state.state.get_draining_nodes()
    return [
        NodeState(
            id=node["NodeID"],
            address=f"{node['NodeManagerAddress']}:{node['NodeManagerPort']}",
            num_gpus=int(node["Resources"].get("GPU", 0)),
            free_cpus=free.get(node["NodeID"], {}).get("CPU", 0.0),
            draining=node["NodeID"] in draining,
        )
        for node in ray.nodes()
        if node["Alive"]
    ]
