"""Estimates of step time, by which `auto` divides devices between training and generation.

Assumptions: responses and prompts have half of their maximum length, products reach 40 % of a device's nominal FLOP/s,
reads 60 % of its bandwidth, and a decode step has a few milliseconds of overhead. Measured steps of small models on an
H200 are within a third of these estimates, which is enough to compare two placements.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from roll.config.devices import named_devices
from roll.placement.architecture import Architecture
from roll.placement.facts import RoleFacts, RunFacts
from roll.placement.machine import Kind, kind_of
from roll.placement.memory import alone_fits
from roll.placement.pipeline import PRODUCTS as _PRODUCTS
from roll.placement.pipeline import STREAMS as _STREAMS
from roll.placement.pipeline import PipelineTimes
from roll.placement.records import Inventory

_STEP_S = 0.005
_ROOM = 0.85
"""Fraction of a generator's memory that weights and a few sequences may fill."""
_SEQUENCES = 8
"""Fewest sequences that a generator must be able to hold at once."""
_HOST_BYTES_PER_S = 2e10
"""Transfer between a device and its host."""
STATE_BYTES = 16
"""Bytes per trained parameter: weight, gradient and two moments, fp32."""
_SMALL = 64
"""Devices up to which every division is considered; above, whole nodes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSplit:
    """Devices of the roles with `devices: auto`; empty for a role that names its devices, or without GPUs."""

    train: tuple[int, ...] = ()
    infer: tuple[int, ...] = ()
    tp: int = 1
    time_s: float = 0.0
    """Estimated seconds per step; 0 if unknown."""
    reasons: tuple[str, ...] = ()

    @property
    def shared(self) -> bool:
        return bool(set(self.train) & set(self.infer))


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimes:
    """Estimated duration of the two halves of a step."""

    facts: RunFacts
    model: Architecture
    kind: Kind
    tp: int
    node: int
    """Devices per node."""

    @property
    def num_tokens(self) -> float:
        """Tokens per step, prompts included."""
        return self.facts.trajectories * (self._prompt + self._new)

    def decode_s(self, context: float) -> tuple[float, float]:
        """Seconds of a decode step without sequences, and per sequence with so many tokens before it."""
        infer = self.facts.role("actor_infer")
        read = infer.weight_bytes / self.tp / (self.kind.bytes_per_s * _STREAMS)
        per_sequence = context * self.model.cache_row(infer.backend) * read
        return self.model.active_parameters * read + _STEP_S, per_sequence + self.prefill_s

    @property
    def prefill_s(self) -> float:
        """Seconds of the products for one token."""
        return 2 * self.model.active_parameters / self.tp / (self.kind.flops * _PRODUCTS)

    @property
    def _new(self) -> float:
        return self.facts.max_new_tokens / 2

    @property
    def _prompt(self) -> float:
        return (self.facts.max_seq_len - self.facts.max_new_tokens) / 2

    def generate_s(self, num: int) -> float:
        """Seconds for all responses of a step on `num` devices."""
        infer, facts = self.facts.role("actor_infer"), self.facts
        batch = facts.trajectories / max(1, num // self.tp)
        num_seqs = min(batch, infer.max_num_seqs)
        row = self.model.cache_row(infer.backend)
        read = self.model.parameters + num_seqs * (self._prompt + self._new / 2) * row
        read_s = read * infer.weight_bytes / self.tp / (self.kind.bytes_per_s * _STREAMS)
        compute_s = 2 * self.model.active_parameters * num_seqs / self.tp / (self.kind.flops * _PRODUCTS)
        num_steps = max(facts.max_new_tokens, self._new * batch / num_seqs)
        return num_steps * (max(read_s, compute_s) + _STEP_S)

    @property
    def moved_s(self) -> float:
        """Seconds to move the weights of an offloaded generator to the host and back."""
        infer = self.facts.role("actor_infer")
        return 2 * self.model.parameters * infer.weight_bytes / self.tp / _HOST_BYTES_PER_S * infer.offload

    def update_s(self, num: int) -> float:
        """Seconds to score and train a batch on `num` devices."""
        role = self.facts.role("actor_train")
        if role.backend == "megatron":
            return PipelineTimes(facts=self.facts, role=role, kind=self.kind, num=num, node=self.node).step().total
        tokens = self.num_tokens
        products = (6 * self.facts.epochs + 2 * self.facts.passes) * self.model.active_parameters * tokens
        return products / (num * self.kind.flops * _PRODUCTS) + self._host_s(num, tokens)

    def _host_s(self, num: int, tokens: float) -> float:
        """Seconds for the host traffic of an offloaded trainer: its shard in each pass, its state in each update."""
        train = self.facts.role("actor_train")
        passes = max(1.0, tokens * train.cp / num / max(1, train.tokens)) * self.facts.epochs
        read = (2 * passes * train.weight_bytes + STATE_BYTES) * self.model.parameters / num
        return read / _HOST_BYTES_PER_S * train.offload


def choices(facts: RunFacts, inventory: Inventory) -> list[DeviceSplit]:
    """Candidate devices for the roles with `auto`, best first; at least one."""
    train, infer = facts.role("actor_train"), facts.role("actor_infer")
    automatic = [role.role for role in (train, infer) if role.devices == "auto"]
    if not automatic:
        return [DeviceSplit(tp=infer.tp)]
    if facts.inline or not inventory.gpus:
        return [DeviceSplit(tp=infer.tp, reasons=(_default_reason(facts, automatic),))]
    tp, reasons = _tp(infer, inventory) if infer.devices == "auto" else (infer.tp, ())
    splits = _divide(facts, inventory, tp) if len(automatic) == 2 else [_complement(facts, inventory, tp)]
    return [
        replace(split, infer=_limit(infer, split.infer, inventory, tp), tp=tp, reasons=(*reasons, *split.reasons))
        for split in splits
    ]


def _limit(infer: RoleFacts, devices: tuple[int, ...], inventory: Inventory, tp: int) -> tuple[int, ...]:
    """The devices for generation, limited to the number that `actor_infer.workers` needs."""
    if infer.workers is None:
        return devices
    num = infer.workers * tp
    return (devices if num <= len(devices) else tuple(range(inventory.num_devices)))[:num]


def _default_reason(facts: RunFacts, automatic: Sequence[str]) -> str:
    roles = " and ".join(automatic)
    if facts.inline:
        return f"{roles}: auto is the one device of this process, the first GPU or the CPU"
    return f"{roles}: auto is one CPU slot per worker, as there are no GPUs; set `workers` for more"


def _tp(infer: RoleFacts, inventory: Inventory) -> tuple[int, tuple[str, ...]]:
    """The fewest devices that hold one generator, and the reason."""
    model, node = infer.model, min(inventory.nodes, key=lambda node: node.num_devices)
    if model is None or infer.backend == "native":
        return infer.tp, ()
    fitting = [each for each in (1, 2, 4, 8, 16) if model.heads % each == model.kv_heads % each == 0]
    sizes = [each for each in fitting if infer.tp <= each <= node.num_devices] or [infer.tp]
    row = _SEQUENCES * model.cache_row(infer.backend) * 1024
    needed = (model.parameters + row) * infer.weight_bytes
    room = node.memory * (infer.gpu_memory_utilization or 1.0) * _ROOM
    chosen = next((size for size in sizes if needed / size <= room), sizes[-1])
    if chosen == infer.tp:
        return chosen, ()
    return chosen, (f"actor_infer: tp {chosen}, the smallest with which {needed / 2**30:.0f} GiB fit a {node.kind}",)


def _divide(facts: RunFacts, inventory: Inventory, tp: int) -> list[DeviceSplit]:
    """Shared devices and all ways to divide them, by estimated step time."""
    everything = tuple(range(inventory.num_devices))
    most = _max_train_devices(facts.role("actor_train"), inventory.num_devices)
    whole = _whole_groups(everything, tp, inventory) or everything
    model, roles = facts.role("actor_train").model, "actor_train and actor_infer"
    if model is None:
        reason = f"{roles}: share devices, as the model's dimensions are unknown"
        return [DeviceSplit(train=everything[:most], infer=whole, reasons=(reason,))]
    node = min(node.num_devices for node in inventory.nodes)
    times = StepTimes(facts=facts, model=model, kind=kind_of(inventory), tp=tp, node=node)
    if not most:
        return []
    generate_s, update_s = times.generate_s(len(whole)), times.update_s(most)
    shared_s = generate_s + update_s + times.moved_s
    estimate = f"{generate_s:.1f} s of generation and {update_s:.1f} s of training per step"
    why = "as they alternate anyway" if facts.staleness == 0 else "which is faster than any division"
    reason = f"{roles}: share devices, {why} ({estimate})"
    candidates = [DeviceSplit(train=everything[:most], infer=whole, time_s=shared_s, reasons=(reason,))]
    for num in _train_counts(facts, inventory, tp, most):
        halves = times.generate_s(len(everything) - num), times.update_s(num)
        split_s = max(halves) if facts.staleness > 0 else sum(halves)  # they overlap if staleness allows
        other = f"sharing all would take {shared_s:.1f} s" if split_s < shared_s else "sharing does not fit"
        counts = f"{num} of {len(everything)} devices for training, the others for generation"
        reason = f"{roles}: {counts}, {split_s:.1f} s per step; {other}"
        split = DeviceSplit(train=everything[:num], infer=everything[num:], time_s=split_s, reasons=(reason,))
        candidates.append(split)
    return sorted(candidates, key=lambda each: each.time_s)


def _max_train_devices(train: RoleFacts, num: int) -> int:
    """Most of `num` devices that training can use; 0 if its layout does not divide so few."""
    most = num if train.workers is None else min(train.workers, num)
    if train.backend == "megatron":
        return next((num for num in range(most, 0, -1) if train.divides(num)), 0)
    return 1 if train.backend == "native" and train.workers is None else most


def _complement(facts: RunFacts, inventory: Inventory, tp: int) -> DeviceSplit:
    """Devices of the one role with `auto`, if the other names its own."""
    train, infer = facts.role("actor_train"), facts.role("actor_infer")
    other, free = (train, infer) if infer.devices == "auto" else (infer, train)
    occupied = _occupied(other, inventory)
    everything = tuple(range(inventory.num_devices))
    left = tuple(device for device in everything if device not in occupied)
    if free.trains and free.backend == "native":
        device = (left or everything)[:1] if facts.staleness > 0 else everything[:1]
        return DeviceSplit(train=device, reasons=(f"{free.role}: device {device[0]}, as backend native trains on one",))
    size = tp if not free.trains else free.node_group
    separate = facts.staleness > 0 and len(left) >= size
    devices = _whole_groups(left if separate else everything, size, inventory)
    devices = devices[: _max_train_devices(free, len(devices))] if free.trains else devices
    which = f"the devices not used by {other.role}, to overlap" if separate else "all devices, alternating"
    reasons = (f"{free.role}: {which}",)
    return DeviceSplit(train=devices, reasons=reasons) if free.trains else DeviceSplit(infer=devices, reasons=reasons)


def _occupied(role: RoleFacts, inventory: Inventory) -> set[int]:
    """Devices of a role that names its own."""
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
    """The devices that form whole groups of `size` within a node."""
    return tuple(device for local in inventory.by_node(devices) for device in local[: len(local) // size * size])


def _train_counts(facts: RunFacts, inventory: Inventory, tp: int, most: int) -> list[int]:
    """Possible numbers of training devices: whole groups on both sides, and enough memory for training."""
    train, infer, total = facts.role("actor_train"), facts.role("actor_infer"), inventory.num_devices
    memory, starts = min(node.memory for node in inventory.nodes), _node_starts(inventory)
    if infer.model is None or not alone_fits(facts, replace(infer, tp=tp), tp, memory):
        return []
    counts = [
        num
        for num in range(most if train.workers else 1, min(most, total - 1) + 1)
        if (total <= _SMALL or num in starts or num < inventory.nodes[0].num_devices)
        and (train.backend != "megatron" or train.divides(num))
        and _divides(inventory, num, train.node_group, tp)
    ]
    least = bisect_left(counts, 1, key=lambda num: alone_fits(facts, train, num, memory))  # more need less each
    return counts[least:]


def _node_starts(inventory: Inventory) -> set[int]:
    """The number of the first device of each node."""
    return set(accumulate((node.num_devices for node in inventory.nodes), initial=0))


def _divides(inventory: Inventory, num: int, first: int, second: int) -> bool:
    """Whether each node has whole groups of `first` among the first `num` devices and of `second` among the others."""
    for node in inventory.nodes:
        here = min(num, node.num_devices)
        if here % first or (node.num_devices - here) % second:
            return False
        num -= here
    return True
