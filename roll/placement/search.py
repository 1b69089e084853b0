"""Candidates of `auto`: divisions of the devices, combined with settings that it may change if a run needs them.

| level | `tp` of generators | `cp` of trainers | layout of megatron | `offload` of generators |
|---|---|---|---|---|
| 0 | as configured | as configured | the cheapest | as configured |
| 1 | all sizes | all sizes | the cheapest | as configured, or true to share devices with the trainer |

Level 1 costs communication or host traffic that the estimates hardly count. It is used if the generator does not fit
the configured `tp`, or if nothing of level 0 fits. Within a level, candidates are ordered by estimated step time.
`offload` of trainers is not tried: it needs host memory, which is unknown.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

from roll.placement.cost import DeviceSplit, choices
from roll.placement.facts import RoleFacts, RunFacts
from roll.placement.layouts import choose_layouts
from roll.placement.records import Inventory

_SIZES = (1, 2, 4, 8, 16)


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """Devices of the actor's roles, and the facts with the settings that they are for."""

    facts: RunFacts
    split: DeviceSplit

    @property
    def kind(self) -> tuple[object, ...]:
        """What distinguishes candidates beyond the number of devices."""
        return self.split.shared, self.split.tp, self.facts.role("actor_infer").offload

    @property
    def summary(self) -> str:
        """The devices and the settings in a few words."""
        role = self.facts.role("actor_train")
        train, infer, cp = len(self.split.train), len(self.split.infer), role.cp
        where = f"{infer} devices shared" if self.split.shared else f"{train} devices for training, {infer} others"
        settings = [f"tp {self.split.tp}"] + ([f"cp {cp}"] if cp > 1 and role.backend != "megatron" else [])
        settings += [f"actor_train {role.layout}"] if role.backend == "megatron" else []
        settings += ["actor_infer.offload"] if self.facts.role("actor_infer").offload else []
        return f"{where} ({', '.join(settings)}): {self.split.time_s:.1f} s"


def levels(facts: RunFacts, inventory: Inventory) -> list[list[Candidate]]:
    """The candidates of each level, fastest first; only level 0 where `auto` has no choice."""
    train, infer = facts.role("actor_train"), facts.role("actor_infer")
    if facts.inline or not inventory.gpus or train.model is None or infer.model is None:
        return [[Candidate(facts=facts, split=split) for split in choices(facts, inventory)]]
    trains = _layouts(facts, inventory)
    configured = sorted(_with_trainers(facts, inventory, trains), key=lambda each: each.split.time_s)
    free_infer = infer.devices == "auto" and infer.backend == "vllm"
    divisible = train.model.counts is None  # models of transformers have no context parallelism
    free_train = train.devices == "auto" and train.backend == "fsdp2" and divisible
    sizes = _sizes(infer, infer.tp, inventory) if free_infer else [infer.tp]
    parts = [replace(train, cp=cp) for cp in _sizes(train, train.cp, inventory)] if free_train else trains
    candidates = list(_combine(facts, inventory, sizes, parts))
    if free_infer and not infer.offload:
        offloaded = replace(infer, offload=True, movable=("kv", "weights"))
        roles = tuple(offloaded if role is infer else role for role in facts.roles)
        moving = _combine(replace(facts, roles=roles), inventory, sizes, parts, configured=infer)
        candidates += [candidate for candidate in moving if candidate.split.shared]
    candidates.sort(key=lambda each: (each.split.time_s, each.facts.role("actor_train").cp))
    needs_tp = any(candidate.split.tp != infer.tp for candidate in configured)
    return [candidates] if needs_tp else [configured, candidates]


def _layouts(facts: RunFacts, inventory: Inventory) -> list[RoleFacts]:
    """The trainer as configured, or of backend megatron with `devices: auto` with each layout that may be best."""
    train = facts.role("actor_train")
    if train.backend != "megatron" or train.devices != "auto" or not all(node.memory for node in inventory.nodes):
        return [train]
    free = replace(train, tp=1, cp=1, pp=1, ep=1)
    roles = tuple(free if role is train else role for role in facts.roles)
    num_free = max((len(split.train) for split in choices(replace(facts, roles=roles), inventory)), default=0)
    return choose_layouts(facts, inventory, num_free)


def _with_trainers(facts: RunFacts, inventory: Inventory, trains: list[RoleFacts]) -> Iterator[Candidate]:
    """Candidates with each trainer, and the generator as configured."""
    before = facts.role("actor_train")
    for train in trains:
        changed = replace(facts, roles=tuple(train if role is before else role for role in facts.roles))
        for split in choices(changed, inventory):
            reasons = (*_reasons(before, train), *split.reasons)
            yield Candidate(facts=changed, split=replace(split, reasons=reasons))


def _sizes(role: RoleFacts, least: int, inventory: Inventory) -> list[int]:
    """Multiples of `least` that divide the model's heads and fit a node."""
    assert role.model is not None, "sizes follow from the model's dimensions"
    other = role.tp if role.trains else 1
    groups = [(least * factor, other * least * factor) for factor in _SIZES]
    most = min(node.num_devices for node in inventory.nodes)
    return [
        size for size, group in groups if group <= most and role.model.heads % group == role.model.kv_heads % group == 0
    ] or [least]


def _combine(
    facts: RunFacts,
    inventory: Inventory,
    sizes: list[int],
    trains: list[RoleFacts],
    *,
    configured: RoleFacts | None = None,
) -> Iterator[Candidate]:
    """Candidates with each `tp` of generators and each trainer; `configured` is the generator of the file."""
    train, infer = facts.role("actor_train"), facts.role("actor_infer")
    for tp, trainer in product(sizes, trains):
        roles = {"actor_train": trainer, "actor_infer": replace(infer, tp=tp)}
        changed = replace(facts, roles=tuple(roles.get(role.role, role) for role in facts.roles))
        reasons = *_reasons(train, roles["actor_train"]), *_reasons(configured or infer, roles["actor_infer"])
        for split in choices(changed, inventory):
            if split.tp == tp:  # otherwise the generator does not fit this size
                yield Candidate(facts=changed, split=replace(split, reasons=(*reasons, *split.reasons)))


def _reasons(before: RoleFacts, after: RoleFacts) -> Iterator[str]:
    if after.num_layouts:
        yield f"{after.role}: {after.layout}, the cheapest of {after.num_layouts} layouts that fit as many devices"
        return
    if before.tp != after.tp:
        yield f"{after.role}: tp {after.tp}, the fastest of the sizes that hold the model"
    if before.cp != after.cp:
        yield f"{after.role}: cp {after.cp}, as the update needs too much memory with less"
    if before.offload != after.offload:
        yield f"{after.role}: offload true, to share devices with the trainer"
