"""What there is to compute on, and who computes where. Devices are numbered over the whole cluster, node by node.

The seam to an executor is `Placement.workers_of(role)`: for each rank a `Worker` with `node` (place in
`Inventory.nodes`, whose `Node.id` is Ray's), `devices` (numbers over the cluster) and `visible` (what
`CUDA_VISIBLE_DEVICES` is to say in its process, in numbers of its own node; None: leave it as it is); one that is not
`pinned` may be on any node.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import Literal

Phase = Literal["rollout", "update", "publication"]
PHASES: tuple[Phase, ...] = ("rollout", "update", "publication")
Part = Literal["weights", "optimizer", "kv"]
CPU = "cpu"
"""The kind of a device that is a part of a machine without GPUs: a slot."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One machine with devices of one kind."""

    name: str
    kind: str
    """Such as `H200`, or `cpu` for slots."""
    num_devices: int
    memory: int
    """Bytes of one device; 0 where nobody knows."""
    id: str = ""
    """Ray's name of it; empty where nobody has asked Ray."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """The devices of a cluster."""

    nodes: tuple[Node, ...]
    known: bool = True
    """Whether this is what the run will find; else it is a stand-in, such as this machine for a cluster elsewhere."""

    @property
    def num_devices(self) -> int:
        return sum(node.num_devices for node in self.nodes)

    @property
    def gpus(self) -> bool:
        """Whether devices are GPUs; else they are slots."""
        return any(node.kind != CPU for node in self.nodes)

    def locate(self, device: int) -> tuple[int, int]:
        """The node of a device, and its number there."""
        ends = list(accumulate(node.num_devices for node in self.nodes))
        node = next(place for place, end in enumerate(ends) if device < end)
        return node, device - ends[node] + self.nodes[node].num_devices

    def node_of(self, device: int) -> Node:
        return self.nodes[self.locate(device)[0]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """Where one process of a role lives."""

    rank: int
    node: int
    devices: tuple[int, ...]
    """Over the cluster; empty for one that computes on the CPU beside GPUs."""
    visible: tuple[int, ...] | None
    """In numbers of its node: what its process may see. None: everything; the role names its device in a word."""
    pinned: bool = True
    """Whether it must be on that node; else anywhere: nobody has named a device."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RolePlace:
    """One role."""

    role: str
    backend: str
    workers: tuple[Worker, ...]
    tp: int = 1
    cp: int = 1

    @property
    def devices(self) -> tuple[int, ...]:
        """All that it uses, in order."""
        return tuple(sorted({device for worker in self.workers for device in worker.devices}))


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """Bytes that one part of one role takes of each of its devices in one phase."""

    role: str
    phase: Phase
    part: str
    """`weights`, `gradients`, `optimizer`, `activations`, `logits`, `kv`, `buckets`."""
    bytes: int
    fleeting: bool = False
    """Only there while the role computes; roles that take turns do not need theirs at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Offload:
    """Parts of a role that are off their devices during a phase."""

    role: str
    phase: Phase
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Who computes where, what it takes, and why it is so."""

    inventory: Inventory
    roles: tuple[RolePlace, ...]
    shares: tuple[Share, ...] = ()
    """Empty where the model's numbers are not known."""
    offloads: tuple[Offload, ...] = ()
    reasons: tuple[str, ...] = ()
    """Why `auto` chose what it chose, a line each."""

    def role(self, name: str) -> RolePlace:
        return next(placed for placed in self.roles if placed.role == name)

    def workers_of(self, role: str) -> tuple[Worker, ...]:
        return self.role(role).workers

    def off(self, role: str, phase: Phase) -> tuple[Part, ...]:
        """What of a role is off its devices in a phase."""
        return next((each.parts for each in self.offloads if (each.role, each.phase) == (role, phase)), ())

    def shared(self, first: str, second: str) -> tuple[int, ...]:
        """Devices that two roles both use."""
        return tuple(sorted(set(self.role(first).devices) & set(self.role(second).devices)))
