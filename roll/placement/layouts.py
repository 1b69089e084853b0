"""Layouts of trainers of backend megatron: sizes that divide model and ranks, fit the memory, and cost least."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from math import lcm

from roll.config.megatron import layout_fault, num_experts
from roll.errors import ConfigError
from roll.placement.facts import RoleFacts, RunFacts
from roll.placement.machine import kind_of
from roll.placement.memory import USABLE
from roll.placement.pipeline import PipelineTimes
from roll.placement.records import Inventory
from roll.placement.stages import blocks_of, fullest_stage

_SIZES = (1, 2, 4, 8, 16)
_ROOMS = (1.0, 0.5, 0.25)
"""Fractions of the memory for which the cheapest layout is sought: a generator may take the rest."""
_MOST_COUNTS = 16
"""Numbers of nodes that are considered, evenly spaced, next to those within a node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layout:
    role: RoleFacts
    num: int
    bytes: int
    time_s: float


def choose_layouts(facts: RunFacts, inventory: Inventory, num_free: int) -> list[RoleFacts]:
    """The trainer with each layout that is the cheapest for some number of ranks up to `num_free`, cheapest first.

    Sizes above 1 in the file are kept. If none fits, the one that needs the least memory.
    """
    train = facts.role("actor_train")
    room = int(min(node.memory for node in inventory.nodes) * USABLE) - facts.buckets
    best: dict[tuple[int, ...], tuple[float, RoleFacts]] = {}
    least: _Layout | None = None
    for num in _counts(train, inventory, num_free):
        layouts = list(_layouts(facts, inventory, num))
        for fraction in _ROOMS:
            fitting = [each for each in layouts if each.bytes <= room * fraction]
            if not fitting:
                continue
            cheapest = min(fitting, key=lambda each: (each.time_s, _sizes_of(each.role)))
            role = replace(cheapest.role, num_layouts=len(fitting))
            best.setdefault(_sizes_of(role), (cheapest.time_s, role))
        for each in layouts:
            least = each if least is None or each.bytes < least.bytes else least
    if least is None:
        raise ConfigError(
            f"actor_train.parallel: {train.layout} divides no number of ranks up to {num_free}, or not the model; "
            "leave it out to have a layout chosen"
        )
    if not best:
        return [least.role]
    return [role for _, role in sorted(best.values(), key=lambda each: each[0])]


def _counts(train: RoleFacts, inventory: Inventory, num_free: int) -> list[int]:
    """Numbers of ranks, most first: what sizes of the file divide, whole nodes, and those that divide a node."""
    if train.workers is not None:
        return [train.workers]
    node = min(each.num_devices for each in inventory.nodes)
    within = [num for num in range(1, node) if node % num == 0]
    step = max(1, num_free // node // _MOST_COUNTS)
    nodes = [num * node for num in range(num_free // node, 0, -step)]
    group = lcm(train.tp * train.cp * train.pp, train.ep * train.expert_tp * train.pp)
    return list(dict.fromkeys([num_free, num_free - num_free % group, *nodes, *sorted({*within, group}, reverse=True)]))


def _layouts(facts: RunFacts, inventory: Inventory, num: int) -> Iterator[_Layout]:
    """All layouts of `num` ranks."""
    train, node = facts.role("actor_train"), min(each.num_devices for each in inventory.nodes)
    kind = kind_of(inventory)
    for sizes in _all_sizes(train, node, num) if num else ():
        role = replace(train, **sizes)
        times = PipelineTimes(facts=facts, role=role, kind=kind, num=num, node=node).step()
        yield _Layout(role=role, num=num, bytes=fullest_stage(facts, role, num).total, time_s=times.total)


def _all_sizes(train: RoleFacts, node: int, num: int) -> Iterator[dict[str, int]]:
    config = blocks_of(train).config
    layers, experts = int(config["num_hidden_layers"]), num_experts(config)
    choices = (
        _free(train.tp, [size for size in _SIZES if node % size == 0]),
        _free(train.cp, [size for size in _SIZES if node % size == 0]),
        _free(train.pp, _divisors(layers)),
        _free(train.ep, _divisors(experts) if experts else [1]),
    )
    for tp, cp, pp, ep in product(*choices):
        if node % (tp * cp) == 0 and tp * cp * pp <= num and ep * pp <= num:
            sizes = {"tp": tp, "cp": cp, "pp": pp, "ep": ep}
            if replace(train, **sizes).divides(num) and not layout_fault(config, workers=num, **sizes):
                yield sizes


def _free(size: int, choices: Sequence[int]) -> Sequence[int]:
    """The size of the file if it has one."""
    return [size] if size > 1 else choices


@cache
def _divisors(number: int) -> list[int]:
    return [size for size in range(1, number + 1) if number % size == 0]


def _sizes_of(role: RoleFacts) -> tuple[int, int, int, int]:
    return role.pp, role.cp, role.tp, role.ep
