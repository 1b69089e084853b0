"""A placement as people read it: a table, and why it is so."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from roll.config.schema import Run
from roll.errors import ConfigError
from roll.placement.facts import RunFacts, facts_of
from roll.placement.machine import described, this_machine
from roll.placement.memory import bytes_on, overlapping, role_bytes
from roll.placement.planner import plan_devices
from roll.placement.records import CPU, PHASES, Inventory, Placement, RolePlace

_UNITS = ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))


def plan_in_words(run: Run, cluster: str | None = None) -> str:
    """The placement on a cluster that is described in a word, or on this machine, where it may not be possible."""
    facts = facts_of(run)
    if cluster is not None:
        return placement_in_words(facts, plan_devices(facts, described(cluster)))
    try:
        return placement_in_words(facts, plan_devices(facts, inventory_here(run)))
    except ConfigError as error:
        return f"Placement\n  not on this machine: {error}\n  for another, add such as --cluster 8xH200"


def inventory_here(run: Run) -> Inventory:
    """Of this machine, as the run would use it; a stand-in where the run has a cluster of its own somewhere."""
    return this_machine(1 if run.executor == "inline" else run.ray.cpu_slots, known=run.ray.address is None)


def placement_in_words(facts: RunFacts, placement: Placement) -> str:
    """A block for the terminal: role by role with bytes a device, what is put aside, what overlaps, and why."""
    rows = [_header(), *(_row(placement, place) for place in placement.roles)]
    if placement.shares:
        rows.append(_fullest(facts, placement))
    lines = ["Placement", f"  on {inventory_in_words(placement.inventory)}", *_table(rows)]
    if not placement.shares:
        lines.append(f"  memory: not counted, {_uncounted(facts)}")
    lines += [f"  {line}" for line in (*_trained(facts), *_aside(placement), _overlap(facts, placement))]
    lines += [f"  auto: {reason}" for reason in placement.reasons]
    return "\n".join(lines)


def inventory_in_words(inventory: Inventory) -> str:
    """Such as `2 nodes of 8 H200 (139.0 GiB each)`."""
    told: list[str] = []
    for (kind, num, memory), same in groupby(
        inventory.nodes, key=lambda node: (node.kind, node.num_devices, node.memory)
    ):
        nodes = list(same)
        what = f"{_counted(num, 'CPU slot')}" if kind == CPU else f"{num} {kind}"
        where = nodes[0].name if len(inventory.nodes) == 1 else f"{_counted(len(nodes), 'node')} of"
        told.append(f"{where}: {what}" if len(inventory.nodes) == 1 else f"{where} {what}")
        told[-1] += f" ({size(memory)} each)"
    guess = "" if inventory.known else "; the run's cluster is another one, name it with --cluster 2x8xH200"
    return " and ".join(told) + guess


def ids(devices: Sequence[int]) -> str:
    """Ranges where there are any: `0-3,8`."""
    runs: list[list[int]] = []
    for device in sorted(set(devices)):
        if runs and device == runs[-1][-1] + 1:
            runs[-1].append(device)
        else:
            runs.append([device])
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs) or "the CPU"


def size(num_bytes: float) -> str:
    """In the largest unit of which there is one."""
    unit, name = next(((unit, name) for unit, name in _UNITS if num_bytes >= unit), (1, "B"))
    return f"{num_bytes / unit:.1f} {name}" if unit > 1 else f"{num_bytes:.0f} B"


def _uncounted(facts: RunFacts) -> str:
    unknown = [role.role for role in facts.roles if role.model is None]
    if unknown:
        return f"as the model of {unknown[0]} is not here and not a well-known one; download it to have it counted"
    return "as nobody has said how much the devices have; name them with --cluster"


def _header() -> tuple[str, ...]:
    return ("role", "workers", "devices", "node", "tp", "cp", *PHASES)


def _row(placement: Placement, place: RolePlace) -> tuple[str, ...]:
    nodes = ids([worker.node for worker in place.workers])
    sizes = [sum(role_bytes(placement, place.role, phase)) for phase in PHASES] if placement.shares else []
    told = [size(each) for each in sizes] or ["?"] * len(PHASES)
    workers = str(len(place.workers))
    return (place.role, workers, ids(place.devices), nodes, str(place.tp), str(place.cp), *told)


def _fullest(facts: RunFacts, placement: Placement) -> tuple[str, ...]:
    """The most that any device holds in each phase."""
    devices = sorted({device for place in placement.roles for device in place.devices})
    at_once = overlapping(facts, placement)
    most = [
        max((bytes_on(placement, device, phase, at_once=at_once) for device in devices), default=0) for phase in PHASES
    ]
    return ("fullest device", "", "", "", "", "", *map(size, most))


def _table(rows: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]


def _trained(facts: RunFacts) -> list[str]:
    """How much of a model with adapters is trained; nothing where all of it is."""
    actor = facts.role("actor_train")
    if not actor.adapters or actor.model is None:
        return []
    part = actor.adapters / actor.model.parameters
    return [f"trained: {actor.adapters:,} numbers of adapters, beside {actor.model.parameters:,} frozen ({part:.2%})"]


def _aside(placement: Placement) -> list[str]:
    if not placement.offloads:
        return ["offloaded: nothing"] if placement.shares else []
    told = [f"{each.role}'s {' and '.join(each.parts)} during {each.phase}" for each in placement.offloads]
    return [f"offloaded: {'; '.join(told)}"]


def _overlap(facts: RunFacts, placement: Placement) -> str:
    if facts.staleness == 0:
        return "overlap: none, rollout.max_staleness is 0: generation and training take turns"
    bound = f"rollout.max_staleness {facts.staleness:g}"
    if facts.inline:
        return f"overlap: of waiting only, executor inline computes one thing at a time; {bound} hides no computing"
    shared = placement.shared("actor_train", "actor_infer")
    if not shared:
        return "overlap: generation goes on while a batch is trained on; the two share no device"
    if placement.offloads:
        return f"overlap: none, devices {ids(shared)} are given up and taken back; {bound} hides no computing"
    return f"overlap: little, actor_train and actor_infer share devices {ids(shared)}; {bound} hides no computing there"


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
