"""Records of devices and of their assignment to roles. Device numbers run over the whole cluster, node by node.

Executors read `Placement.workers_of(role)`: for each rank a `WorkerPlacement` with `node` (index into
`Inventory.nodes`, whose `Node.id` is Ray's), `devices` (numbers in the cluster) and `visible` (the value of
`CUDA_VISIBLE_DEVICES` in its process, in numbers of its node; None: unchanged). A worker that is not `pinned` may run
on any node.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal

Phase = Literal["rollout", "update", "weight_sync"]
PHASES: tuple[Phase, ...] = ("rollout", "update", "weight_sync")
Part = Literal["weights", "optimizer", "kv"]
CPU = "cpu"
"""The kind of a CPU slot, a part of a machine without GPUs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One machine with devices of one kind."""

    name: str
    kind: str
    """Such as `H200`, or `cpu` for slots."""
    num_devices: int
    memory: int
    """Bytes per device; 0 if unknown."""
    id: str = ""
    """Ray's node id; empty if it does not come from Ray."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """The devices of a cluster."""

    nodes: tuple[Node, ...]
    known: bool = True
    """Whether the run will use these devices; false if `ray.address` names another cluster."""

    @property
    def num_devices(self) -> int:
        return sum(node.num_devices for node in self.nodes)

    @property
    def gpus(self) -> bool:
        """Whether the devices are GPUs, not CPU slots."""
        return any(node.kind != CPU for node in self.nodes)

    def locate(self, device: int) -> tuple[int, int]:
        """Index of the node of a device, and the device's number there."""
        if device < self.nodes[0].num_devices:
            return 0, device
        ends = list(accumulate(node.num_devices for node in self.nodes))
        node = bisect_right(ends, device)
        return node, device - ends[node] + self.nodes[node].num_devices

    def node_of(self, device: int) -> Node:
        return self.nodes[self.locate(device)[0]]

    def by_node(self, devices: Iterable[int]) -> list[list[int]]:
        """These devices, one list per node that has any."""
        lists: list[list[int]] = [[] for _ in self.nodes]
        ends = list(accumulate(node.num_devices for node in self.nodes))
        for device in devices:
            lists[bisect_right(ends, device)].append(device)
        return [local for local in lists if local]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerPlacement:
    """Node and devices of one process of a role."""

    rank: int
    node: int
    devices: tuple[int, ...]
    """Numbers in the cluster; empty for a worker on the CPU of a machine with GPUs."""
    visible: tuple[int, ...] | None
    """Devices that its process may see, in numbers of its node. None: all; the role names its device by a word."""
    pinned: bool = True
    """Whether it must run on that node; false if the file names no device."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RolePlacement:
    """Workers of one role."""

    role: str
    backend: str
    workers: tuple[WorkerPlacement, ...]
    tp: int = 1
    cp: int = 1
    pp: int = 1
    ep: int = 1
    offload: bool = False
    """Whether `offload` of the role is on, by the file or by `auto`."""

    @property
    def devices(self) -> tuple[int, ...]:
        """All devices of the role, in order."""
        return tuple(sorted({device for worker in self.workers for device in worker.devices}))


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """Bytes per device of one part of a role, in one phase."""

    role: str
    phase: Phase
    part: str
    """`weights`, `gradients`, `optimizer`, `activations`, `logits`, `kv`, `buckets`."""
    bytes: int
    temporary: bool = False
    """Allocated only during computation; roles that alternate do not need theirs at the same time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Offload:
    """Parts of a role that are not on its devices during a phase."""

    role: str
    phase: Phase
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Devices, memory and offloading of all roles, with the reasons for automatic choices."""

    inventory: Inventory
    roles: tuple[RolePlacement, ...]
    shares: tuple[Share, ...] = ()
    """Empty if the model's dimensions are unknown."""
    offloads: tuple[Offload, ...] = ()
    reasons: tuple[str, ...] = ()
    """Reasons for the choices of `auto`, one line each."""

    def role(self, name: str) -> RolePlacement:
        return next(role for role in self.roles if role.role == name)

    def workers_of(self, role: str) -> tuple[WorkerPlacement, ...]:
        return self.role(role).workers

    def off(self, role: str, phase: Phase) -> tuple[Part, ...]:
        """Parts of a role that are not on its devices in a phase."""
        return next((each.parts for each in self.offloads if (each.role, each.phase) == (role, phase)), ())

    def present(self, role: str, phase: Phase) -> list[Share]:
        """Parts of a role that are on its devices in a phase."""
        off = self.off(role, phase)
        return [each for each in self.shares if (each.role, each.phase) == (role, phase) and each.part not in off]

    def sharing(self, role: str) -> tuple[int, ...]:
        """Ranks of a role that share a device with another role."""
        others = {device for each in self.roles if each.role != role for device in each.devices}
        return tuple(worker.rank for worker in self.workers_of(role) if others & set(worker.devices))

    def shared(self, first: str, second: str) -> tuple[int, ...]:
        """Devices that both roles use."""
        return tuple(sorted(set(self.role(first).devices) & set(self.role(second).devices)))
