"""From what a run asks for and what there is to who computes where; or why that cannot be, in a line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from roll.config.devices import device_text, named_devices, one_device
from roll.errors import ConfigError
from roll.placement.cost import Choice, choices
from roll.placement.facts import RoleFacts, RunFacts
from roll.placement.memory import fit
from roll.placement.records import Inventory, Placement, RolePlace, Worker


def plan_devices(facts: RunFacts, inventory: Inventory) -> Placement:
    """Where every role lives, with its memory counted; raises `ConfigError` for what cannot be had."""
    faults: list[ConfigError] = []
    for choice in choices(facts, inventory):
        try:
            return _planned(facts, inventory, choice)
        except ConfigError as fault:  # what `auto` likes best may have too little memory
            faults.append(fault)
    raise faults[0]


def _planned(facts: RunFacts, inventory: Inventory, choice: Choice) -> Placement:
    facts = replace(facts, roles=tuple(_with_tp(role, choice) for role in facts.roles))
    for role in facts.roles:
        _check_heads(role)
    places = _inline(facts, inventory) if facts.inline else _dealt(facts, inventory, choice)
    found = Placement(inventory=inventory, roles=places, reasons=choice.reasons)
    _check_transport(facts.transport, found)
    return fit(facts, found)


def num_needed(facts: RunFacts) -> int:
    """The least number of devices that what a run names must be among."""
    named = [max(found) + 1 for role in facts.roles if (found := named_devices(role.devices))]
    return max([1, *named, *(role.devices for role in facts.roles if isinstance(role.devices, int))])


def _with_tp(role: RoleFacts, choice: Choice) -> RoleFacts:
    return replace(role, tp=max(role.tp, choice.tp)) if role.role == "actor_infer" else role


def _check_heads(role: RoleFacts) -> None:
    """A layer can be divided only where its heads can."""
    if role.model is None or role.tp == 1:
        return
    for what, num in (("attention heads", role.model.heads), ("heads of keys and values", role.model.kv_heads)):
        if num % role.tp:
            fitting = [each for each in range(1, num + 1) if role.model.heads % each == role.model.kv_heads % each == 0]
            raise ConfigError(
                f"{role.role}.parallel.tp: the model's {num} {what} do not divide by it (got {role.tp}); "
                f"choose one of {', '.join(map(str, fitting))}"
            )


def _check_transport(transport: str, placement: Placement) -> None:
    """Memory of a GPU is seen on that GPU alone, and a broadcast between GPUs has one member on each."""
    if transport not in ("ipc", "nccl"):
        return
    place = "publication.transport"
    if not placement.inventory.gpus:
        raise ConfigError(f"{place}: there are no GPUs (got {transport!r}); choose 'gloo' or 'disk'")
    train, infer = placement.role("actor_train").devices, placement.role("actor_infer").devices
    if transport == "ipc" and set(train) != set(infer):
        raise ConfigError(
            f"{place}: ipc is for one GPU, and actor_train is on {list(train)}, actor_infer on {list(infer)}; "
            "choose 'nccl', 'gloo' or 'disk'"
        )
    if transport == "nccl" and (shared := placement.shared("actor_train", "actor_infer")):
        raise ConfigError(
            f"{place}: nccl needs a GPU for each member, and actor_train and actor_infer share {list(shared)}; "
            "choose 'gloo' or 'disk', or give each its own devices"
        )


def _inline(facts: RunFacts, inventory: Inventory) -> tuple[RolePlace, ...]:
    """All on the one device that the trainer names."""
    trainer = facts.role("actor_train")
    group = facts.role("actor_infer").tp
    wanted = str(trainer.devices)
    first = _word(trainer.role, wanted, inventory) if wanted != "auto" else (0,)
    places: list[RolePlace] = []
    for role in facts.roles:
        devices = first
        if role.role == "actor_infer" and group > 1:
            devices = _existing(
                role, tuple(range(first[0] if first else 0, (first[0] if first else 0) + group)), inventory
            )
        worker = Worker(rank=0, node=0, devices=devices, visible=None)
        places.append(RolePlace(role=role.role, backend=role.backend, workers=(worker,), tp=role.tp, cp=role.cp))
    return tuple(places)


def _dealt(facts: RunFacts, inventory: Inventory, choice: Choice) -> tuple[RolePlace, ...]:
    """Named devices first, then counts from what is left, then what follows from the others."""
    taken = {device for role in facts.roles for device in named_devices(role.devices) or ()}
    sets: dict[str, tuple[int, ...]] = {}
    places: list[RolePlace] = []
    next_slot = 0
    for role in facts.roles:
        if one_device(role.devices):
            places.append(_on_one(role, inventory))
            continue
        if role.devices == "auto" and not inventory.gpus:
            num = role.workers or 1
            slots = [(next_slot + place) % inventory.num_devices for place in range(num)]
            next_slot += num
            places.append(_spread(role, slots, inventory, pinned=False))
            continue
        sets[role.role] = found = _set(role, inventory, choice, taken, sets)
        taken |= set(found)
        if role.devices == "auto" and not role.role.startswith("actor"):
            num = role.workers or 1
            places.append(_spread(role, [found[place % len(found)] for place in range(num)], inventory))
        else:
            places.append(_grouped(role, found, inventory))
    return tuple(places)


def _set(
    role: RoleFacts, inventory: Inventory, choice: Choice, taken: set[int], sets: dict[str, tuple[int, ...]]
) -> tuple[int, ...]:
    """The devices of a role."""
    named = named_devices(role.devices)
    if named is not None:
        return _existing(role, named, inventory)
    if isinstance(role.devices, int):
        return _counted(role, role.devices, inventory, taken)
    if role.devices == "all":
        return tuple(range(inventory.num_devices))
    if role.role == "actor_train":
        return choice.train
    if role.role == "actor_infer":
        return _existing(role, choice.infer, inventory)
    return sets.get("actor_train") or (0,)


def _existing(role: RoleFacts, devices: tuple[int, ...], inventory: Inventory) -> tuple[int, ...]:
    missing = [device for device in devices if device >= inventory.num_devices]
    if missing:
        raise ConfigError(
            f"{role.role}.devices: there is no device {missing[0]} (got {device_text(role.devices)}); "
            f"{_what_there_is(inventory)}"
        )
    return devices


def _what_there_is(inventory: Inventory) -> str:
    last = inventory.num_devices - 1
    noun = f"{inventory.nodes[0].kind}s" if inventory.gpus else "CPU slots"
    where = inventory.nodes[0].name if len(inventory.nodes) == 1 else f"{len(inventory.nodes)} nodes"
    more = "" if inventory.gpus else ", or set ray.cpu_slots"
    return f"{where} has {noun} 0 to {last}: name those{more}"


def _counted(role: RoleFacts, num: int, inventory: Inventory, taken: set[int]) -> tuple[int, ...]:
    """So many devices that nobody has yet, in groups that stay on one node; else the first ones, shared."""
    if num > inventory.num_devices:
        raise ConfigError(
            f"{role.role}.devices: {num} devices are more than there are ({inventory.num_devices}); "
            f"{_what_there_is(inventory)}"
        )
    for avoided in (taken, set[int]()):
        found: list[int] = []
        for free in _by_node([each for each in range(inventory.num_devices) if each not in avoided], inventory):
            whole = len(free) // role.together * role.together
            found += free[: min(whole, num - len(found))]
        if len(found) == num:
            return tuple(found)
    raise ConfigError(
        f"{role.role}.devices: {num} devices in groups of {role.together} do not fit the nodes, which have "
        f"{', '.join(str(node.num_devices) for node in inventory.nodes)}; choose another count"
    )


def _by_node(devices: Sequence[int], inventory: Inventory) -> list[list[int]]:
    found: dict[int, list[int]] = {}
    for device in devices:
        found.setdefault(inventory.locate(device)[0], []).append(device)
    return [found[node] for node in sorted(found)]


def _grouped(role: RoleFacts, devices: tuple[int, ...], inventory: Inventory) -> RolePlace:
    """One worker a group of devices, none of which crosses a node."""
    groups: list[list[int]] = []
    for mine in _by_node(devices, inventory):
        if len(mine) % role.together:
            node = inventory.node_of(mine[0]).name
            raise ConfigError(
                f"{role.role}.devices: {node} has {len(mine)} of them ({', '.join(map(str, mine))}), no multiple of "
                f"parallel.tp x cp ({role.together}); a group stays on one node: name a multiple of it on each"
            )
        groups += [mine[at : at + role.group] for at in range(0, len(mine), role.group)]
    if role.workers not in (None, len(groups)):
        raise ConfigError(
            f"{role.role}.workers: {len(devices)} devices in groups of {role.group} make {len(groups)} processes "
            f"(got {role.workers}); leave it out"
        )
    if role.trains and role.backend == "native" and len(groups) > 1:
        raise ConfigError(
            f"{role.role}.devices: backend native trains on one device (got {len(devices)}); name one, such as [0]"
        )
    workers = [_worker(rank, group, inventory) for rank, group in enumerate(groups)]
    return RolePlace(role=role.role, backend=role.backend, workers=tuple(workers), tp=role.tp, cp=role.cp)


def _spread(role: RoleFacts, devices: Sequence[int], inventory: Inventory, *, pinned: bool = True) -> RolePlace:
    """One worker a device, several of which may be the same."""
    workers = [replace(_worker(rank, [device], inventory), pinned=pinned) for rank, device in enumerate(devices)]
    return RolePlace(role=role.role, backend=role.backend, workers=tuple(workers), tp=role.tp, cp=role.cp)


def _on_one(role: RoleFacts, inventory: Inventory) -> RolePlace:
    """All workers on what a word names."""
    devices = _word(role.role, str(role.devices), inventory)
    hidden, pinned = not devices and inventory.gpus, inventory.gpus and bool(devices)
    workers = [
        Worker(rank=rank, node=0, devices=devices, visible=() if hidden else None, pinned=pinned)
        for rank in range(role.workers or 1)
    ]
    return RolePlace(role=role.role, backend=role.backend, workers=tuple(workers), tp=role.tp, cp=role.cp)


def _word(role: str, word: str, inventory: Inventory) -> tuple[int, ...]:
    """The device that `cpu`, `cuda` or `cuda:1` means on the first node; none for a CPU beside GPUs."""
    if word == "cpu":
        return () if inventory.gpus else (0,)
    number = int(word.partition(":")[2] or 0)
    if not inventory.gpus:
        raise ConfigError(
            f"{role}.devices: {inventory.nodes[0].name} has no GPU (got {word!r}); choose 'cpu' or 'auto'"
        )
    if number >= inventory.nodes[0].num_devices:
        raise ConfigError(
            f"{role}.devices: {inventory.nodes[0].name} has {inventory.nodes[0].num_devices} GPUs (got {word!r}); "
            f"name one up to cuda:{inventory.nodes[0].num_devices - 1}"
        )
    return (number,)


def _worker(rank: int, devices: Sequence[int], inventory: Inventory) -> Worker:
    located = [inventory.locate(device) for device in devices]
    visible = tuple(local for _, local in located) if inventory.gpus else None
    return Worker(rank=rank, node=located[0][0], devices=tuple(devices), visible=visible)
