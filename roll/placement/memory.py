"""Bytes per device of each role and phase, and the parts to offload if they do not fit together.

| part | roles | bytes |
|---|---|---|
| weights | all | parameters x bytes, divided among the devices that share them |
| gradients, optimizer | trainers | 4 and, for AdamW, 8 bytes per trained parameter, divided likewise |
| of these, quantised | vLLM with `quantization` | 1 per parameter of the layers, in place of 2 or 4 |
| of these, master weights | deepspeed | 4 bytes per parameter in the optimizer; what `zero_stage` divides |
| of megatron | trainers | those of the fullest pipeline stage: `roll/placement/stages.py` |
| adapters | actors with adapters | 4 bytes per parameter; the model under them has no gradient and no master copy |
| activations | all, in computation | tokens per pass x values per token: of all layers for an update, else of one |
| of these, products | `hf` with soft-capping or sinks | max_seq_len per token and head |
| logits | all, in computation | a chunk (64 MiB, bf16: 1.25 GiB) and its results; generators: a row per sequence |
| kv | generators | native: max_num_seqs x max_seq_len; vLLM, SGLang: the rest of its share of the device |
| rounded | trainers in bf16 | a copy of the weights for computation; of one layer with activation checkpointing |
| gathered | fsdp2 | the current layer and the next one, whole |
| buckets | both sides of a weight sync | two of 64 MiB (`gloo`) or 512 MiB (`ipc`, `nccl`) |
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from roll.errors import ConfigError
from roll.placement.architecture import Architecture
from roll.placement.facts import RoleFacts, RunFacts
from roll.placement.machine import GIB
from roll.placement.records import CPU, PHASES, Offload, Part, Phase, Placement, RolePlacement, Share, WorkerPlacement
from roll.placement.stages import PERSISTENT, fullest_stage

_GRADIENT, _MOMENTS, _MASTER, _ADAPTER = 4, 8, 4, 4
_CHUNK, _WIDE_CHUNK = 64 * 2**20, 1280 * 2**20
_CHUNK_COPIES, _WIDE_CHUNK_COPIES = 3, 1.5
"""Copies of a chunk: logits, logprobs and the gradient of both; fused on bf16, logits and a bf16 gradient."""
_HEAD = 8
"""Bytes per weight of the output layer in the fused operation: rounded weight, gradient and its accumulator."""
_LAYER = 8
"""Bytes per weight of a layer that is recomputed in the backward pass, likewise."""
_QUANTISED = 1
"""Bytes per weight of a quantised layer; scales are negligible."""
_PAGE = 64
"""Tokens per page of the native generator in 16 bits; each sequence has one more."""
_ALIGN = 16
"""Attention spans are rounded up to a multiple of this."""
USABLE = 0.95
"""Fraction of memory that tensors can use; the driver and fragmentation take the rest."""
_CPU_KV = 2**30
"""Size of vLLM's KV cache without a GPU."""


def fit(facts: RunFacts, placement: Placement) -> Placement:
    """The placement with memory counted and parts offloaded as needed; ConfigError if it does not fit even so."""
    if any(role.model is None for role in facts.roles) or not all(node.memory for node in placement.inventory.nodes):
        return placement
    shares = tuple(
        share
        for role in facts.roles
        for share in _shares(facts, role, placement.role(role.role), _memory(placement, role.role))
    )
    counted = replace(placement, shares=shares)
    for phase in PHASES:
        while (full := _fullest(facts, counted, phase)) is not None:
            role, part = next(_movable(facts, counted, full, phase), (None, None))
            if role is None or part is None:
                raise ConfigError(_describe_overflow(facts, counted, full, phase))
            counted = _offload(counted, phase, role, part)
    return counted


def bytes_on(placement: Placement, device: int, phase: Phase, *, at_once: bool) -> int:
    """Peak bytes on a device in a phase; `at_once`: roles compute at the same time."""
    persistent, temporary = 0, [0]
    for role in placement.roles:
        num = sum(device in worker.devices for worker in role.workers)
        role_persistent, role_temporary = role_bytes(placement, role.role, phase)
        persistent += num * role_persistent
        temporary.append(num * role_temporary)
    return persistent + (sum(temporary) if at_once else max(temporary))


def role_bytes(placement: Placement, role: str, phase: Phase) -> tuple[int, int]:
    """Persistent and temporary bytes of one worker of a role on each of its devices."""
    shares = placement.present(role, phase)
    temporary = sum(each.bytes for each in shares if each.temporary)
    return sum(each.bytes for each in shares) - temporary, temporary


def load_classes(placement: Placement) -> list[int]:
    """The first device of each class of devices that have the same memory and the same workers."""
    counts = {
        role.role: Counter(device for worker in role.workers for device in worker.devices) for role in placement.roles
    }
    first: dict[tuple[int, ...], int] = {}
    for local in placement.inventory.by_node(sorted({device for each in counts.values() for device in each})):
        memory = placement.inventory.node_of(local[0]).memory
        for device in local:
            first.setdefault((memory, *(each[device] for each in counts.values())), device)
    return list(first.values())


def alone_fits(facts: RunFacts, role: RoleFacts, num_devices: int, memory: int) -> bool:
    """Whether the role fits `num_devices` devices of this memory that no other role uses."""
    workers = (WorkerPlacement(rank=0, node=0, devices=tuple(range(num_devices)), visible=None),)
    shares = list(_shares(facts, role, RolePlacement(role=role.role, backend=role.backend, workers=workers), memory))
    room = int(memory * USABLE)
    return all(sum(share.bytes for share in shares if share.phase == phase) <= room for phase in PHASES)


def overlapping(facts: RunFacts, placement: Placement) -> bool:
    """Whether generation may continue during training on the same device, which excludes offloading and lending."""
    return facts.staleness > 0 and not facts.inline and not placement.offloads and not facts.lending


def _fullest(facts: RunFacts, placement: Placement, phase: Phase) -> int | None:
    """The device that exceeds its memory the most; None if none does."""
    at_once = overlapping(facts, placement)
    over = {
        device: bytes_on(placement, device, phase, at_once=at_once) - _room(placement, device)
        for device in load_classes(placement)
    }
    worst = max(over, key=over.__getitem__, default=None)
    return worst if worst is not None and over[worst] > 0 else None


def _room(placement: Placement, device: int) -> int:
    return int(placement.inventory.node_of(device).memory * USABLE)


def _movable(facts: RunFacts, placement: Placement, device: int, phase: Phase) -> Iterator[tuple[str, Part]]:
    """Parts on the device that the phase does not need, cheapest to move first."""
    auxiliary: tuple[tuple[str, Part], ...] = (
        ("critic", "optimizer"),
        ("critic", "weights"),
        ("reference", "weights"),
        ("teacher", "weights"),
        ("reward_model", "weights"),
    )
    order: dict[Phase, tuple[tuple[str, Part], ...]] = {
        "update": (("actor_infer", "kv"), ("actor_infer", "weights")),
        "rollout": (("actor_train", "optimizer"), *auxiliary, ("actor_train", "weights")),
        "weight_sync": (("actor_train", "optimizer"), *auxiliary),
    }
    on_cpu = placement.inventory.node_of(device).kind == CPU
    for role, part in order[phase]:
        role_facts = next((each for each in facts.roles if each.role == role), None)
        if role_facts is None or part not in role_facts.movable or part in placement.off(role, phase):
            continue
        if on_cpu and part != "kv":
            continue  # host memory is where parts are offloaded to
        if device in placement.role(role).devices:
            yield role, part


def _offload(placement: Placement, phase: Phase, role: str, part: Part) -> Placement:
    others = tuple(each for each in placement.offloads if (each.role, each.phase) != (role, phase))
    parts = (*placement.off(role, phase), part)
    return replace(placement, offloads=(*others, Offload(role=role, phase=phase, parts=parts)))


def _describe_overflow(facts: RunFacts, placement: Placement, device: int, phase: Phase) -> str:
    here = [role.role for role in placement.roles if device in role.devices]
    worst = max((share for role in here for share in placement.present(role, phase)), key=lambda share: share.bytes)
    node = placement.inventory.node_of(device)
    name = f"{node.kind} {device}" if node.kind != CPU else f"CPU slot {device}"
    total, room = bytes_on(placement, device, phase, at_once=overlapping(facts, placement)), _room(placement, device)
    role, where = facts.role(worst.role), ""
    if role.backend == "megatron":
        stage = fullest_stage(facts, role, len(placement.role(role.role).devices)).stage
        where = f" on each rank of stage {stage}, {role.layout}"
    return (
        f"{worst.role}.devices: {name} has {room / GIB:.1f} GiB and the {phase} needs {total / GIB:.1f} "
        f"({worst.role}'s {worst.part} {worst.bytes / GIB:.1f}{where}); {_remedy(role, worst.part, here)}"
    )


def _remedy(role: RoleFacts, part: str, here: list[str]) -> str:
    name = role.role
    if part == "kv" and role.backend == "vllm":
        spare = " or set actor_infer.offload to true" if not role.movable and len(here) > 1 else ""
        return f"lower actor_infer.gpu_memory_utilization (got {role.gpu_memory_utilization:g}){spare}"
    if part == "kv" and role.backend == "sglang":
        return f"lower actor_infer.mem_fraction_static (got {role.gpu_memory_utilization:g})"
    if part == "kv":
        return f"lower actor_infer.max_num_seqs (got {role.max_num_seqs}) or rollout.max_seq_len"
    if part in ("activations", "logits"):
        limit = "chunked_prefill_size" if role.backend == "sglang" else "max_num_batched_tokens"
        knob = f"actor_infer.{limit}" if name == "actor_infer" else "actor_train.tokens_per_microbatch"
        return f"lower {knob} (got {role.tokens})"
    if name == "actor_infer" and role.backend == "vllm":
        return f"raise actor_infer.parallel.tp (got {role.tp})"
    if role.trains and role.backend != "native":
        return f"give {name} more devices"
    if len(here) > 1:
        return "give it separate devices"
    return "take a smaller model, or a backend that divides it: fsdp2 to train, vllm to generate"


def _memory(placement: Placement, role: str) -> int:
    """Bytes of the smallest GPU of a role; 0 without a GPU."""
    if not placement.inventory.gpus:
        return 0
    inventory, devices = placement.inventory, placement.role(role).devices
    return min((inventory.node_of(local[0]).memory for local in inventory.by_node(devices)), default=0)


def _shares(facts: RunFacts, role: RoleFacts, placement: RolePlacement, memory: int) -> Iterator[Share]:
    model = role.model
    assert model is not None, "the dimensions of all models are known"

    def in_each(part: str, size: float, *phases: Phase, temporary: bool = False) -> Iterator[Share]:
        for phase in phases or PHASES:
            if size:
                yield Share(role=role.role, phase=phase, part=part, bytes=int(size), temporary=temporary)

    if role.role == "actor_infer":
        weights, kv = _generator(facts, role, model, memory)
        yield from in_each("weights", weights)
        yield from in_each("kv", kv)
        yield from in_each("activations", _forward_bytes(facts, role, model), "rollout", temporary=True)
        yield from in_each("logits", role.max_num_seqs * model.vocab * 4 * _CHUNK_COPIES, "rollout", temporary=True)
        yield from in_each("buckets", facts.buckets, "weight_sync", temporary=True)
        return
    if role.backend == "megatron":
        yield from _megatron_shares(facts, role, len(placement.devices))
        return
    shards, zero = len(placement.devices) if role.backend != "native" else 1, role.backend == "deepspeed"
    parameters = 0 if role.offload else model.parameters / (1 if "weights" in role.whole else max(1, shards))
    yield from in_each("weights", parameters * (role.weight_bytes if zero else role.master_bytes or role.weight_bytes))
    if role.master_bytes and shards == 1 and not zero:
        rounded = model.layer_parameters * _LAYER if role.checkpointed else model.parameters * role.weight_bytes
        yield from in_each("rounded", rounded, "update", temporary=True)
    yield from in_each("activations", _activations(facts, role, model), "update", temporary=True)
    yield from in_each("logits", _logits(facts, role, model), "update", temporary=True)
    if role.trains:
        trained = 0 if role.offload and not zero else (role.adapters or model.parameters) / max(1, shards)
        yield from in_each("adapters", trained * _ADAPTER if role.adapters else 0)
        parts = max(1, shards) if "gradients" in role.whole else 1
        yield from in_each("gradients", trained * parts * _GRADIENT, "update")
        per_number = 0 if role.offload_optimizer else _MOMENTS * role.adaptive + _MASTER * zero
        yield from in_each("optimizer", trained * per_number)
        if shards > 1:
            whole = 2 * max(model.layer_parameters, model.vocab * model.hidden) * role.weight_bytes / role.tp
            yield from in_each("gathered", whole, "update", "weight_sync", temporary=True)
    if role.role == "actor_train":
        yield from in_each("buckets", facts.buckets, "weight_sync", temporary=True)


def _megatron_shares(facts: RunFacts, role: RoleFacts, num: int) -> Iterator[Share]:
    """The parts of the fullest of the pipeline stages, which are counted for all devices."""
    moments: dict[str, tuple[Phase, ...]] = {**dict.fromkeys(PERSISTENT, PHASES), "buckets": ("weight_sync",)}
    parts = {**fullest_stage(facts, role, num).bytes, "buckets": facts.buckets * (role.role == "actor_train")}
    for part, size in parts.items():
        for phase in moments.get(part, ("update",)) if size else ():
            yield Share(role=role.role, phase=phase, part=part, bytes=size, temporary=part not in PERSISTENT)


def _generator(facts: RunFacts, role: RoleFacts, model: Architecture, memory: int) -> tuple[float, float]:
    """Bytes of weights and of the KV cache."""
    weights = 0.0 if facts.shared else (model.parameters + role.adapters) * role.weight_bytes / role.tp
    if role.quantised:
        weights -= model.layers * model.layer_parameters * (role.weight_bytes - _QUANTISED)
    if role.backend == "native":
        paged = role.weight_bytes == 2
        span = (-(-facts.max_seq_len // _PAGE) + 1) * _PAGE if paged else -(-facts.max_seq_len // _ALIGN) * _ALIGN
        slots = max(role.max_num_seqs, _ALIGN) * span * model.kv_row * role.weight_bytes
        return weights, slots if role.kv_bytes is None else min(slots, role.kv_bytes)
    if role.kv_bytes is not None:
        return weights, role.kv_bytes
    if not memory:
        return weights, _CPU_KV
    rest = memory * (role.gpu_memory_utilization or 1.0) - weights - _forward_bytes(facts, role, model)
    return weights, max(0.0, rest)


def _tokens(facts: RunFacts, role: RoleFacts) -> int:
    """Most tokens per pass: the role's limit, or all tokens of a step."""
    return min(role.tokens, facts.trajectories * facts.max_seq_len)


def _logits(facts: RunFacts, role: RoleFacts, model: Architecture) -> float:
    """Bytes of one chunk of logits, and of the output layer's gradient."""
    whole = _tokens(facts, role) * model.vocab * 4
    if not (role.master_bytes or (role.adapters and role.weight_bytes < _ADAPTER)):
        return min(_CHUNK, whole) * _CHUNK_COPIES
    trained = role.trains and not role.adapters
    return min(_WIDE_CHUNK, whole) * _WIDE_CHUNK_COPIES + model.vocab * model.hidden * _HEAD * trained


def _activations(facts: RunFacts, role: RoleFacts, model: Architecture) -> float:
    """Bytes of activations of an update, or of a forward pass for a role that does not train."""
    if not role.trains:
        return _forward_bytes(facts, role, model)
    tokens = _tokens(facts, role) / role.cp
    if role.checkpointed:
        inputs = 2 if role.backend == "native" else 1  # native saves both summands of a layer's input
        return tokens * (inputs * model.layers * model.hidden * role.weight_bytes + _layer_bytes(facts, role, model))
    return tokens * model.layers * _layer_bytes(facts, role, model)


def _forward_bytes(facts: RunFacts, role: RoleFacts, model: Architecture) -> float:
    """Bytes of a forward pass without gradient: the activations of one layer."""
    return _tokens(facts, role) * (_layer_bytes(facts, role, model) + model.hidden * role.weight_bytes / role.tp)


def _layer_bytes(facts: RunFacts, role: RoleFacts, model: Architecture) -> float:
    """Bytes per token of the activations of one layer; vLLM stores no products of attention."""
    scores = 0 if role.backend == "vllm" else model.score_bytes * facts.max_seq_len
    return (model.layer_row * role.weight_bytes + scores) / role.tp
