"""Assigns devices to the roles of a run, or raises a one-line reason why that is impossible."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain

from roll.config.devices import device_text, named_devices, one_device
from roll.errors import ConfigError
from roll.placement.cost import STATE_BYTES, DeviceSplit
from roll.placement.facts import RoleFacts, RunFacts
from roll.placement.memory import fit
from roll.placement.records import Inventory, Placement, RolePlacement, WorkerPlacement
from roll.placement.search import Candidate, levels

_TRIES = 64
"""Candidates of a level whose memory is counted together with that of all roles."""
_NUM_RUNNERS_UP = 3
_NODES = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
"""Numbers of nodes of a larger cluster that are tried."""


def plan_devices(facts: RunFacts, inventory: Inventory) -> Placement:
    """Devices and memory of every role; `ConfigError` if the run does not fit."""
    faults: list[ConfigError] = []
    by_level = levels(facts, inventory)
    fitting = _first_fit(by_level, inventory, faults)
    if fitting is None:
        raise _refusal(facts, inventory, faults[0])
    candidate, placement = fitting
    return replace(placement, reasons=(*placement.reasons, *_runners_up(by_level, inventory, candidate)))


def _first_fit(
    by_level: Sequence[Sequence[Candidate]], inventory: Inventory, faults: list[ConfigError]
) -> tuple[Candidate, Placement] | None:
    """The first candidate that fits; adds the errors of those before it to `faults`."""
    for candidates in by_level:
        for candidate in candidates[:_TRIES]:
            try:
                return candidate, _plan(candidate.facts, inventory, candidate.split)
            except ConfigError as fault:  # the fastest candidate may have too little memory
                faults.append(fault)
    return None


def _runners_up(by_level: Sequence[Sequence[Candidate]], inventory: Inventory, chosen: Candidate) -> tuple[str, ...]:
    """The fastest candidates of other kinds that fit, in one line; empty if there is none."""
    if not chosen.split.time_s:
        return ()
    kinds, texts = {chosen.kind}, list[str]()
    for candidate in chain.from_iterable(by_level):
        if candidate.kind in kinds or len(texts) == _NUM_RUNNERS_UP:
            continue
        kinds.add(candidate.kind)
        with suppress(ConfigError):
            _plan(candidate.facts, inventory, candidate.split)
            texts.append(candidate.summary)
    return (f"runners-up: {'; '.join(texts)}",) if texts else ()


def _refusal(facts: RunFacts, inventory: Inventory, fault: ConfigError) -> ConfigError:
    """The fault, with the least changes with which the run would fit, if `auto` has a choice and there are any."""
    train, infer = facts.role("actor_train"), facts.role("actor_infer")
    if facts.inline or not inventory.gpus or (train.devices, infer.devices) != ("auto", "auto") or not train.model:
        return fault
    fixes: list[str] = []
    if train.backend in ("fsdp2", "megatron"):
        if not train.checkpointed and _fits(facts, inventory, replace(train, checkpointed=True)):
            fixes.append("actor_train.activation_checkpointing true")
        elif train.backend == "fsdp2" and not train.offload and _fits(facts, inventory, replace(train, offload=True)):
            host = train.model.parameters * STATE_BYTES / 2**30
            fixes.append(f"actor_train.offload true, which needs {host:.0f} GiB of host memory")
    fixes += _larger_cluster(facts, inventory)
    return ConfigError(f"{str(fault).rpartition('; ')[0]}; it fits with {', or with '.join(fixes)}") if fixes else fault


def _larger_cluster(facts: RunFacts, inventory: Inventory) -> list[str]:
    """The smallest larger cluster of the same devices on which the run fits; empty if there is none."""
    node = max(inventory.nodes, key=lambda node: node.num_devices)
    per_node = max(8, node.num_devices)
    sizes = [(1, num) for num in (2, 4, 8)] + [(num, per_node) for num in _NODES]
    for num_nodes, num in sizes:
        nodes = (replace(node, num_devices=num),) * num_nodes
        if num_nodes * num > inventory.num_devices and _fits(facts, Inventory(nodes=nodes)):
            cluster = f"{num_nodes}x{num}x{node.kind}" if num_nodes > 1 else f"{num}x{node.kind}"
            return [f"{num_nodes * num} of these devices ({cluster})"]
    return []


def _fits(facts: RunFacts, inventory: Inventory, train: RoleFacts | None = None) -> bool:
    """Whether the run fits, with this trainer."""
    roles = tuple(train if train and role.role == train.role else role for role in facts.roles)
    with suppress(ConfigError):  # no layout divides so few devices
        return _first_fit(levels(replace(facts, roles=roles), inventory), inventory, []) is not None
    return False


def _plan(facts: RunFacts, inventory: Inventory, split: DeviceSplit) -> Placement:
    infer = facts.role("actor_infer")
    divided = replace(infer, tp=max(infer.tp, split.tp))
    facts = replace(facts, roles=tuple(divided if role is infer else role for role in facts.roles))
    for role in facts.roles:
        _check_heads(role)
    roles = _place_inline(facts, inventory) if facts.inline else _place(facts, inventory, split)
    placement = Placement(inventory=inventory, roles=roles, reasons=split.reasons)
    _check_transport(facts.transport, placement)
    if facts.lending:
        _check_lending(placement)
    return fit(facts, placement)


def num_needed(facts: RunFacts) -> int:
    """Fewest devices of a cluster that has all devices and counts that the run names."""
    named = [max(ids) + 1 for role in facts.roles if (ids := named_devices(role.devices))]
    return max([1, *named, *(role.devices for role in facts.roles if isinstance(role.devices, int))])


def _check_heads(role: RoleFacts) -> None:
    """Tensor parallelism must divide the numbers of heads."""
    if role.model is None or role.tp == 1:
        return
    for what, num in (("attention heads", role.model.heads), ("KV heads", role.model.kv_heads)):
        if num % role.tp:
            fitting = [each for each in range(1, num + 1) if role.model.heads % each == role.model.kv_heads % each == 0]
            raise ConfigError(
                f"{role.role}.parallel.tp: the model's {num} {what} do not divide by it (got {role.tp}); "
                f"choose one of {', '.join(map(str, fitting))}"
            )


def _check_transport(transport: str, placement: Placement) -> None:
    """`ipc` needs trainer and generators on the same single GPU, `nccl` needs them on different GPUs."""
    if transport not in ("ipc", "nccl"):
        return
    key = "weight_sync.transport"
    if not placement.inventory.gpus:
        raise ConfigError(f"{key}: there are no GPUs (got {transport!r}); choose 'gloo' or 'disk'")
    train, infer = placement.role("actor_train").devices, placement.role("actor_infer").devices
    if transport == "ipc" and len({*train, *infer}) > 1:
        raise ConfigError(
            f"{key}: ipc is for one GPU, and actor_train is on {list(train)}, actor_infer on {list(infer)}; "
            "choose 'nccl', 'gloo' or 'disk'"
        )
    if transport == "nccl" and (shared := placement.shared("actor_train", "actor_infer")):
        raise ConfigError(
            f"{key}: nccl needs a GPU for each member, and actor_train and actor_infer share {list(shared)}; "
            "choose 'gloo' or 'disk', or give each its own devices"
        )


def _check_lending(placement: Placement) -> None:
    """Some generators are on devices of other roles, and some are not."""
    key, num = "actor_infer.lend_factor", len(placement.sharing("actor_infer"))
    devices = list(placement.role("actor_train").devices)
    if not num:
        raise ConfigError(
            f"{key}: no generator is on a device of actor_train (got {devices}); name some of them in "
            "actor_infer.devices, or leave it out"
        )
    if num == len(placement.workers_of("actor_infer")):
        raise ConfigError(
            f"{key}: all generators are on devices of other roles, and none would serve during an update (actor_train "
            f"has {devices}); name other devices in actor_infer.devices too, or leave it out"
        )


def _place_inline(facts: RunFacts, inventory: Inventory) -> tuple[RolePlacement, ...]:
    """All roles on the trainer's device."""
    trainer = facts.role("actor_train")
    group = facts.role("actor_infer").tp
    name = str(trainer.devices)
    device = _device_named(trainer.role, name, inventory) if name != "auto" else (0,)
    first = device[0] if device else 0
    placements: list[RolePlacement] = []
    for role in facts.roles:
        devices = device
        if role.role == "actor_infer" and group > 1:
            devices = _check_exist(role, tuple(range(first, first + group)), inventory)
        worker = WorkerPlacement(rank=0, node=0, devices=devices, visible=None)
        placements.append(_role_placement(role, [worker]))
    return tuple(placements)


def _place(facts: RunFacts, inventory: Inventory, split: DeviceSplit) -> tuple[RolePlacement, ...]:
    """Roles with named devices first, then counts from the free ones, then those that follow the trainer."""
    used = {device for role in facts.roles for device in named_devices(role.devices) or ()}
    devices_of: dict[str, tuple[int, ...]] = {}
    placements: list[RolePlacement] = []
    next_slot = 0
    for role in facts.roles:
        if one_device(role.devices):
            placements.append(_on_one_device(role, inventory))
            continue
        if role.devices == "auto" and not inventory.gpus:
            num = role.workers or 1
            slots = [(next_slot + index) % inventory.num_devices for index in range(num)]
            next_slot += num
            placements.append(_one_per_worker(role, slots, inventory, pinned=False))
            continue
        devices_of[role.role] = devices = _devices(role, inventory, split, used, devices_of)
        used |= set(devices)
        if role.devices == "auto" and not role.role.startswith("actor"):
            num = role.workers or 1
            placements.append(_one_per_worker(role, [devices[index % len(devices)] for index in range(num)], inventory))
        else:
            placements.append(_in_groups(role, devices, inventory))
    return tuple(placements)


def _devices(
    role: RoleFacts, inventory: Inventory, split: DeviceSplit, used: set[int], devices_of: dict[str, tuple[int, ...]]
) -> tuple[int, ...]:
    """The devices of a role."""
    named = named_devices(role.devices)
    if named is not None:
        return _check_exist(role, named, inventory)
    if isinstance(role.devices, int):
        return _free_devices(role, role.devices, inventory, used)
    if role.devices == "all":
        return tuple(range(inventory.num_devices))
    if role.role == "actor_train":
        return split.train
    if role.role == "actor_infer":
        return _check_exist(role, split.infer, inventory)
    return devices_of.get("actor_train") or (0,)


def _check_exist(role: RoleFacts, devices: tuple[int, ...], inventory: Inventory) -> tuple[int, ...]:
    missing = [device for device in devices if device >= inventory.num_devices]
    if missing:
        raise ConfigError(
            f"{role.role}.devices: there is no device {missing[0]} (got {device_text(role.devices)}); "
            f"{_available(inventory)}"
        )
    return devices


def _available(inventory: Inventory) -> str:
    last = inventory.num_devices - 1
    noun = f"{inventory.nodes[0].kind}s" if inventory.gpus else "CPU slots"
    where = inventory.nodes[0].name if len(inventory.nodes) == 1 else f"{len(inventory.nodes)} nodes"
    more = "" if inventory.gpus else ", or set ray.cpu_slots"
    return f"{where} has {noun} 0 to {last}: name those{more}"


def _free_devices(role: RoleFacts, num: int, inventory: Inventory, used: set[int]) -> tuple[int, ...]:
    """`num` unused devices in groups within a node; if there are too few, the first ones, shared with other roles."""
    if num > inventory.num_devices:
        raise ConfigError(
            f"{role.role}.devices: {num} devices are more than there are ({inventory.num_devices}); "
            f"{_available(inventory)}"
        )
    for excluded in (used, set[int]()):
        devices: list[int] = []
        for free in inventory.by_node(each for each in range(inventory.num_devices) if each not in excluded):
            whole = len(free) // role.node_group * role.node_group
            devices += free[: min(whole, num - len(devices))]
        if len(devices) == num:
            return tuple(devices)
    raise ConfigError(
        f"{role.role}.devices: {num} devices in groups of {role.node_group} do not fit the nodes, which have "
        f"{', '.join(str(node.num_devices) for node in inventory.nodes)}; choose another count"
    )


def _in_groups(role: RoleFacts, devices: tuple[int, ...], inventory: Inventory) -> RolePlacement:
    """One worker per group of devices; no group spans two nodes."""
    groups: list[list[int]] = []
    for local in inventory.by_node(devices):
        if len(local) % role.node_group:
            node = inventory.node_of(local[0]).name
            raise ConfigError(
                f"{role.role}.devices: {node} has {len(local)} of them ({', '.join(map(str, local))}), no multiple of "
                f"parallel.tp x cp ({role.node_group}); a group cannot span nodes: name a multiple of it on each"
            )
        groups += [local[start : start + role.group] for start in range(0, len(local), role.group)]
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
    return _role_placement(role, workers)


def _one_per_worker(
    role: RoleFacts, devices: Sequence[int], inventory: Inventory, *, pinned: bool = True
) -> RolePlacement:
    """One worker per entry of `devices`, which may repeat."""
    workers = [replace(_worker(rank, [device], inventory), pinned=pinned) for rank, device in enumerate(devices)]
    return _role_placement(role, workers)


def _on_one_device(role: RoleFacts, inventory: Inventory) -> RolePlacement:
    """All workers on the device that a word such as `cuda:1` names."""
    devices = _device_named(role.role, str(role.devices), inventory)
    hidden, pinned = not devices and inventory.gpus, inventory.gpus and bool(devices)
    workers = [
        WorkerPlacement(rank=rank, node=0, devices=devices, visible=() if hidden else None, pinned=pinned)
        for rank in range(role.workers or 1)
    ]
    return _role_placement(role, workers)


def _device_named(role: str, word: str, inventory: Inventory) -> tuple[int, ...]:
    """The device of `cpu`, `cuda` or `cuda:1` on the first node; empty for the CPU of a machine with GPUs."""
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


def _role_placement(role: RoleFacts, workers: Sequence[WorkerPlacement]) -> RolePlacement:
    if role.backend == "megatron" and not role.divides(len(workers)):
        raise ConfigError(
            f"{role.role}.parallel: {len(workers)} ranks do not divide by {role.layout}; change workers or devices"
        )
    return RolePlacement(
        role=role.role,
        backend=role.backend,
        workers=tuple(workers),
        tp=role.tp,
        cp=role.cp,
        pp=role.pp,
        ep=role.ep,
        offload=role.offload,
    )


def _worker(rank: int, devices: Sequence[int], inventory: Inventory) -> WorkerPlacement:
    located = [inventory.locate(device) for device in devices]
    visible = tuple(local for _, local in located) if inventory.gpus else None
    return WorkerPlacement(rank=rank, node=located[0][0], devices=tuple(devices), visible=visible)
