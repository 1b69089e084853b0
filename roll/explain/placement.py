"""The placement of a run as a record and as text: roles and memory, and the reasons for automatic choices."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

from roll.config.schema import Run
from roll.errors import ConfigError
from roll.explain.calls import count
from roll.explain.records import PlacementPlan, RolePlan
from roll.explain.stages import pipeline_fields, pipeline_lines
from roll.placement.architecture import Architecture
from roll.placement.facts import RunFacts, facts_of
from roll.placement.machine import parse_cluster, this_machine
from roll.placement.memory import bytes_on, load_classes, overlapping, role_bytes
from roll.placement.planner import plan_devices
from roll.placement.records import CPU, PHASES, Inventory, Phase, Placement, RolePlacement

_UNITS = ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))


def placement_of(run: Run, cluster: str | None = None) -> PlacementPlan:
    """The placement on a cluster such as `8xH200`, or on this machine, or the reason why it does not fit here."""
    facts = facts_of(run, count=count_modules)
    if cluster is not None:
        return _describe(facts, plan_devices(facts, parse_cluster(cluster)))
    try:
        return _describe(facts, plan_devices(facts, local_inventory(run)))
    except ConfigError as error:
        return PlacementPlan(fault=str(error))


def count_modules(path: str, trust_remote_code: bool) -> Architecture:
    """A `Count` by the modules of transformers, which are imported only for models that need it."""
    from roll.engines.hf.counts import count_architecture

    return count_architecture(path, trust_remote_code)


def local_inventory(run: Run) -> Inventory:
    """Devices of this machine for the run; only an estimate (`known` false) if the run uses another cluster."""
    return this_machine(1 if run.executor == "inline" else run.ray.cpu_slots, known=run.ray.address is None)


def placement_report(run: Run, cluster: str | None = None) -> str:
    """The placement as text."""
    return format_placement(placement_of(run, cluster))


def format_placement(plan: PlacementPlan) -> str:
    """A block for the terminal: memory per role and device, offloading, overlap and reasons."""
    if plan.fault:
        return f"Placement\n  not on this machine: {plan.fault}\n  for another one, add for example --cluster 8xH200"
    sizes = ("tp", "cp", *(name for name in ("pp", "ep") if any(getattr(role, name) > 1 for role in plan.roles)))
    rows = [("role", "workers", "devices", "node", *sizes, *PHASES)]
    rows += [_cells(role, sizes) for role in plan.roles]
    if plan.fullest is not None:
        rows.append(("fullest device", "", "", "", *("" for _ in sizes), *_sizes(plan.fullest)))
    lines = ["Placement", f"  on {_format_nodes(plan)}", *_table(rows)]
    lines += [f"  {line}" for role in plan.roles for line in pipeline_lines(role)]
    lines += [f"  {note}" for note in plan.notes]
    lines += [f"  auto: {reason}" for reason in plan.reasons]
    return "\n".join(lines)


def _format_nodes(plan: PlacementPlan) -> str:
    """The nodes and their devices, such as `2 nodes of 8 H200 (139.0 GiB each)`."""
    texts: list[str] = []
    for (kind, num, memory), same in groupby(plan.nodes, key=lambda node: (node.kind, node.num_devices, node.memory)):
        nodes = list(same)
        devices = count(num, "CPU slot") if kind == CPU else f"{num} {kind}"
        names = f"{nodes[0].name}:" if len(plan.nodes) == 1 else f"{count(len(nodes), 'node')} of"
        texts.append(f"{names} {devices} ({format_bytes(memory)} each)")
    guess = "" if plan.known else "; the run's cluster is another one, name it with --cluster 2x8xH200"
    return " and ".join(texts) + guess


def format_ids(devices: Sequence[int]) -> str:
    """Device numbers with ranges: `0-3,8`."""
    runs: list[list[int]] = []
    for device in sorted(set(devices)):
        if runs and device == runs[-1][-1] + 1:
            runs[-1].append(device)
        else:
            runs.append([device])
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs) or "the CPU"


def format_bytes(num_bytes: float) -> str:
    """The size in the largest unit below it."""
    unit, name = next(((unit, name) for unit, name in _UNITS if num_bytes >= unit), (1, "B"))
    return f"{num_bytes / unit:.1f} {name}" if unit > 1 else f"{num_bytes:.0f} B"


def _describe(facts: RunFacts, placement: Placement) -> PlacementPlan:
    return PlacementPlan(
        nodes=placement.inventory.nodes,
        known=placement.inventory.known,
        roles=tuple(_role(facts, placement, role) for role in placement.roles),
        fullest=_fullest(facts, placement) if placement.shares else None,
        offloads=placement.offloads,
        notes=(*_adapters(facts), *_experts(facts), *_memory(facts, placement), _overlap(facts, placement)),
        reasons=placement.reasons,
    )


def _role(facts: RunFacts, placement: Placement, role: RolePlacement) -> RolePlan:
    return RolePlan(
        role=role.role,
        backend=role.backend,
        workers=len(role.workers),
        devices=role.devices,
        nodes=tuple(sorted({worker.node for worker in role.workers})),
        tp=role.tp,
        cp=role.cp,
        pp=role.pp,
        ep=role.ep,
        **pipeline_fields(facts, placement, facts.role(role.role)),
        bytes={phase: sum(role_bytes(placement, role.role, phase)) for phase in PHASES} if placement.shares else None,
    )


def _cells(role: RolePlan, names: Sequence[str]) -> tuple[str, ...]:
    sizes = ["?"] * len(PHASES) if role.bytes is None else _sizes(role.bytes)
    texts = (role.role, role.workers, format_ids(role.devices), format_ids(role.nodes))
    return (*map(str, texts), *(str(getattr(role, name)) for name in names), *sizes)


def _sizes(by_phase: Mapping[Phase, int]) -> list[str]:
    return [format_bytes(by_phase[phase]) for phase in PHASES]


def _fullest(facts: RunFacts, placement: Placement) -> dict[Phase, int]:
    """The most bytes on any device, per phase."""
    devices = load_classes(placement)
    at_once = overlapping(facts, placement)
    return {
        phase: max((bytes_on(placement, device, phase, at_once=at_once) for device in devices), default=0)
        for phase in PHASES
    }


def _table(rows: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]


def _adapters(facts: RunFacts) -> list[str]:
    """Trained and frozen parameters of a model with adapters; empty without adapters."""
    actor = facts.role("actor_train")
    if not actor.adapters or actor.model is None:
        return []
    part = actor.adapters / actor.model.parameters
    frozen = f"{actor.model.parameters:,} frozen ones"
    return [f"trained: {actor.adapters:,} adapter parameters, {part:.2%} of the {frozen}"]


def _experts(facts: RunFacts) -> list[str]:
    """Parameters that a token uses in a mixture of experts; empty for other models."""
    model = facts.role("actor_train").model
    if model is None or model.active_parameters == model.parameters:
        return []
    used = f"{model.active_parameters:,} of {model.parameters:,} parameters"
    return [f"experts: a token uses {used}; activations are counted for these"]


def _memory(facts: RunFacts, placement: Placement) -> Iterator[str]:
    """The offloaded parts, or the reason why memory is not counted."""
    unknown = [role.role for role in facts.roles if role.model is None]
    if not placement.shares and unknown:
        reason = f"as the model of {unknown[0]} is not here and not a well-known one; download it to have it counted"
        yield f"memory: not counted, {reason}"
        return
    if not placement.shares:
        yield "memory: not counted, as the memory of the devices is unknown; name them with --cluster"
        return
    texts = [
        f"{role.role}'s weights and optimizer always"
        for role in facts.roles
        if role.trains and placement.role(role.role).offload
    ]
    texts += [f"{each.role}'s {' and '.join(each.parts)} during {each.phase}" for each in placement.offloads]
    yield f"offloaded: {'; '.join(texts) or 'nothing'}"


def _overlap(facts: RunFacts, placement: Placement) -> str:
    if facts.staleness == 0:
        return "overlap: none, rollout.max_staleness is 0: generation and training alternate"
    bound = f"rollout.max_staleness {facts.staleness:g} hides no computation"
    if facts.inline:
        return f"overlap: only waiting times, executor inline has one thread; {bound}"
    shared = format_ids(devices) if (devices := placement.shared("actor_train", "actor_infer")) else ""
    if not shared:
        return "overlap: generation continues during training; the two share no device"
    if facts.lending:
        ranks = format_ids(placement.sharing("actor_infer"))
        return f"overlap: generators {ranks} on devices {shared} serve while the trainer waits, the others always"
    if placement.offloads:
        return f"overlap: none, trainer and generator alternate on devices {shared}; {bound}"
    return f"overlap: little, actor_train and actor_infer share devices {shared}; {bound} there"
