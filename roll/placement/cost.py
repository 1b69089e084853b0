"""What `auto` goes by: how long a step takes on so many devices, and how they are best divided.

Replies are taken to be half as long as they may be, prompts half as long as there is room for. A product reaches two
fifths of what a device is sold for, memory three fifths, and a decode step takes some milliseconds besides; measured
steps of small models on an H200 are within a third of what this gives. It need not be better: it is asked which of two
placements is shorter.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from roll.config.devices import named_devices
from roll.placement.architecture import Architecture
from roll.placement.facts import RoleFacts, RunFacts
from roll.placement.kinds import KINDS, Kind
from roll.placement.records import CPU, Inventory

_PRODUCTS, _STREAMS = 0.4, 0.6
_STEP_S = 0.005
_ROOM = 0.85
"""Part of the memory that a generator gets which weights and a few sequences may fill."""
_SEQUENCES = 8
"""That a generator must be able to hold at once to be of any use."""
_TRIED = 4
"""Placements that are tried for their memory before `auto` gives up."""
_STATE_BYTES = 16
"""Of a parameter that is trained: weight, gradient and two moments, fp32."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What `auto` means; empty where a role says itself, or where there is nothing to choose from."""

    train: tuple[int, ...] = ()
    infer: tuple[int, ...] = ()
    tp: int = 1
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Clock:
    """How long the halves of a step take."""

    facts: RunFacts
    model: Architecture
    kind: Kind
    tp: int

    @property
    def _new(self) -> float:
        return self.facts.max_new_tokens / 2

    @property
    def _prompt(self) -> float:
        return (self.facts.context - self.facts.max_new_tokens) / 2

    def generate_s(self, num: int) -> float:
        """All replies of a step on `num` devices."""
        infer, facts = self.facts.role("actor_infer"), self.facts
        batch = facts.trajectories / max(1, num // self.tp)
        together = min(batch, infer.slots)
        read = self.model.parameters + together * (self._prompt + self._new / 2) * self.model.kv_row
        streamed = read * infer.weight_bytes / self.tp / (self.kind.bytes_per_s * _STREAMS)
        computed = 2 * self.model.parameters * together / self.tp / (self.kind.flops * _PRODUCTS)
        num_steps = max(facts.max_new_tokens, self._new * batch / together)
        return num_steps * (max(streamed, computed) + _STEP_S)

    def update_s(self, num: int) -> float:
        """Scoring and training on all of it on `num` devices."""
        tokens = self.facts.trajectories * (self._prompt + self._new)
        products = (6 * self.facts.epochs + 2 * self.facts.passes) * self.model.parameters * tokens
        return products / (num * self.kind.flops * _PRODUCTS)


def choices(facts: RunFacts, inventory: Inventory) -> list[Choice]:
    """Which devices `auto` may stand for, in the roles that say so, the best first; one of them at least."""
    train, infer = facts.role("actor_train"), facts.role("actor_infer")
    automatic = [role.role for role in (train, infer) if role.devices == "auto"]
    if not automatic:
        return [Choice(tp=infer.tp)]
    if facts.inline or not inventory.gpus:
        return [Choice(tp=infer.tp, reasons=(_plain(facts, automatic),))]
    tp, why = _tp(infer, inventory) if infer.devices == "auto" else (infer.tp, ())
    found = _both(facts, inventory, tp) if len(automatic) == 2 else [_rest(facts, inventory, tp)]
    return [
        replace(each, infer=_as_many(infer, each.infer, inventory, tp), tp=tp, reasons=(*why, *each.reasons))
        for each in found
    ]


def _as_many(infer: RoleFacts, devices: tuple[int, ...], inventory: Inventory, tp: int) -> tuple[int, ...]:
    """Of the devices for generation, those that its workers need, where the file says how many there are."""
    if infer.workers is None:
        return devices
    wanted = infer.workers * tp
    return (devices if wanted <= len(devices) else tuple(range(inventory.num_devices)))[:wanted]


def _plain(facts: RunFacts, automatic: Sequence[str]) -> str:
    who = " and ".join(automatic)
    if facts.inline:
        return f"{who}: auto is the one device of this process, the first GPU or the CPU"
    return f"{who}: auto is one CPU slot a worker, as there are no GPUs; `workers` says how many"


def _tp(infer: RoleFacts, inventory: Inventory) -> tuple[int, tuple[str, ...]]:
    """As few devices for one generator as hold it."""
    model, node = infer.model, min(inventory.nodes, key=lambda node: node.num_devices)
    if model is None or infer.backend == "native":
        return infer.tp, ()
    fitting = [each for each in (1, 2, 4, 8, 16) if model.heads % each == model.kv_heads % each == 0]
    sizes = [each for each in fitting if infer.tp <= each <= node.num_devices] or [infer.tp]
    row = _SEQUENCES * model.kv_row * 1024
    needed = (model.parameters + row) * infer.weight_bytes
    room = node.memory * (infer.memory or 1.0) * _ROOM
    found = next((size for size in sizes if needed / size <= room), sizes[-1])
    if found == infer.tp:
        return found, ()
    return found, (f"actor_infer: tp {found}, the least by which {needed / 2**30:.0f} GiB fit a {node.kind}",)


def _both(facts: RunFacts, inventory: Inventory, tp: int) -> list[Choice]:
    """Together, or each its own: the shortest step first."""
    everything = tuple(range(inventory.num_devices))
    most = _most(facts.role("actor_train"), inventory)
    whole = _whole_groups(everything, tp, inventory) or everything
    clock, who = _clock(facts, inventory, tp), "actor_train and actor_infer"
    if clock is None:
        why = f"{who}: share devices, as the model's numbers are not known here"
        return [Choice(train=everything[:most], infer=whole, reasons=(why,))]
    generate_s, update_s = clock.generate_s(len(whole)), clock.update_s(most)
    shared_s = generate_s + update_s
    told = f"{generate_s:.1f} s of generation and {update_s:.1f} s of training a step"
    turns = "as they take turns anyway" if facts.staleness == 0 else "which no division beats"
    sharing = Choice(train=everything[:most], infer=whole, reasons=(f"{who}: share devices, {turns} ({told})",))
    found = [(shared_s, sharing)]
    for num in _splits(facts, inventory, tp, most):
        apart_s = _split_s(clock, len(everything), num)
        instead = f"sharing all would take {shared_s:.1f} s" if apart_s < shared_s else "sharing does not fit"
        why = (
            f"{who}: {num} of {len(everything)} devices for training, the others for generation, {apart_s:.1f} s a step"
        )
        found.append((apart_s, Choice(train=everything[:num], infer=everything[num:], reasons=(f"{why}; {instead}",))))
    return [choice for _, choice in sorted(found, key=lambda each: each[0])[:_TRIED]]


def _most(train: RoleFacts, inventory: Inventory) -> int:
    """Devices that training can use."""
    if train.workers is not None:
        return min(train.workers, inventory.num_devices)
    return 1 if train.backend == "native" else inventory.num_devices


def _rest(facts: RunFacts, inventory: Inventory, tp: int) -> Choice:
    """Where one of the two says where it is: the other's place follows."""
    train, infer = facts.role("actor_train"), facts.role("actor_infer")
    said, free = (train, infer) if infer.devices == "auto" else (infer, train)
    taken = _taken(said, inventory)
    everything = tuple(range(inventory.num_devices))
    left = tuple(device for device in everything if device not in taken)
    if free.trains and free.backend == "native":
        found = (left or everything)[:1] if facts.staleness > 0 else everything[:1]
        return Choice(train=found, reasons=(f"{free.role}: device {found[0]}, as backend native trains on one",))
    size = tp if not free.trains else free.together
    apart = facts.staleness > 0 and len(left) >= size
    found = _whole_groups(left if apart else everything, size, inventory)
    found = found[: _most(free, inventory)] if free.trains else found
    where = f"the devices that {said.role} leaves, to work at the same time" if apart else "all devices, in turns"
    reasons = (f"{free.role}: {where}",)
    return Choice(train=found, reasons=reasons) if free.trains else Choice(infer=found, reasons=reasons)


def _taken(role: RoleFacts, inventory: Inventory) -> set[int]:
    named = named_devices(role.devices)
    if named is not None:
        return set(named)
    if isinstance(role.devices, int):
        return set(range(role.devices))
    if role.devices == "all":
        return set(range(inventory.num_devices))
    text = str(role.devices)
    return {int(text.partition(":")[2] or 0)} if text.startswith("cuda") else set()


def _whole_groups(devices: Sequence[int], size: int, inventory: Inventory) -> tuple[int, ...]:
    """As many of them as make groups that stay on one node."""
    found: list[int] = []
    for place in range(len(inventory.nodes)):
        mine = [device for device in devices if inventory.locate(device)[0] == place]
        found += mine[: len(mine) // size * size]
    return tuple(found)


def _splits(facts: RunFacts, inventory: Inventory, tp: int, most: int) -> list[int]:
    """How many devices may train, so that both sides are in whole groups and training has the memory it needs."""
    train, everything = facts.role("actor_train"), tuple(range(inventory.num_devices))
    assert train.model is not None, "there is a clock"
    needed = train.model.parameters * _STATE_BYTES
    room = min(node.memory for node in inventory.nodes)
    return [
        num
        for num in range(most if train.workers else 1, min(most, len(everything) - 1) + 1)
        if needed / num <= room
        and len(_whole_groups(everything[:num], train.together, inventory)) == num
        and len(_whole_groups(everything[num:], tp, inventory)) == len(everything) - num
    ]


def _split_s(clock: _Clock, num_devices: int, num_train: int) -> float:
    """Of a step whose halves have devices of their own, and overlap if they may."""
    halves = clock.generate_s(num_devices - num_train), clock.update_s(num_train)
    return max(halves) if clock.facts.staleness > 0 else sum(halves)


def _clock(facts: RunFacts, inventory: Inventory, tp: int) -> _Clock | None:
    model = facts.role("actor_train").model
    if model is None:
        return None
    kind = KINDS.get(inventory.nodes[0].kind, KINDS["A100"] if inventory.gpus else KINDS[CPU])
    return _Clock(facts=facts, model=model, kind=kind, tp=tp)
