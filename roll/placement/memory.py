"""Bytes that each role takes of a device, phase by phase; what is put aside where they do not fit together.

| part | who | how much |
|---|---|---|
| weights | all | parameters x bytes, over the devices that share them |
| gradients, optimizer | trainers | 4 and, for AdamW, 8 bytes a trained parameter, over the same devices |
| adapters | an actor that has some | 4 bytes a number; what they stand beside has no gradient, and one copy |
| activations | all while they compute | tokens at once x numbers of a token: of all layers for an update, else of one |
| logits | all while they compute | a chunk (64 MiB, bf16: 1.25 GiB) and what is made of it; generators: a row a slot |
| kv | generators | native: slots x context; vLLM: what its share of the device leaves |
| rounded | trainers in bf16 | the weights once more, as they are computed with; of one layer where it is checkpointed |
| gathered | fsdp2 | the layer at work and the next one, whole |
| buckets | both sides of a publication | two of 64 MiB (`gloo`) or 512 MiB (`ipc`, `nccl`) |
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from roll.errors import ConfigError
from roll.placement.architecture import Architecture
from roll.placement.facts import RoleFacts, RunFacts
from roll.placement.kinds import GIB
from roll.placement.records import CPU, PHASES, Offload, Part, Phase, Placement, RolePlace, Share

_GRADIENT, _MOMENTS, _ADAPTER = 4, 8, 4
_CHUNK, _WIDE_CHUNK = 64 * 2**20, 1280 * 2**20
_OF_A_CHUNK, _OF_A_WIDE_CHUNK = 3, 1.5
"""Logits, their logprobs, and the gradient of both; in one operation on bf16, logits and a narrow gradient."""
_HEAD = 8
"""Bytes that a weight of the output layer takes in that operation: rounded, its gradient, and what is added to that."""
_LAYER = 8
"""The same of a weight whose layer is computed again on the way back."""
_ALIGN = 16
"""Attention spans are rounded up to this."""
USABLE = 0.95
"""The rest is the driver's, and lost between blocks."""
_CPU_KV = 2**30
"""What vLLM takes for keys and values where there is no GPU."""


def fit(facts: RunFacts, placement: Placement) -> Placement:
    """With shares counted and, where they are too many, parts put aside; raises where even that does not fit."""
    if any(role.model is None for role in facts.roles) or not all(node.memory for node in placement.inventory.nodes):
        return placement
    shares = tuple(
        share
        for role in facts.roles
        for share in _shares(facts, role, placement.role(role.role), _memory(placement, role.role))
    )
    counted = replace(placement, shares=shares)
    for phase in PHASES:
        counted = _fit_phase(facts, counted, phase)
    return counted


def bytes_on(placement: Placement, device: int, phase: Phase, *, at_once: bool) -> int:
    """What is held on a device at the worst moment of a phase; `at_once`: roles compute at the same time."""
    held, fleeting = 0, [0]
    for place in placement.roles:
        num = sum(device in worker.devices for worker in place.workers)
        lasting, passing = role_bytes(placement, place.role, phase)
        held += num * lasting
        fleeting.append(num * passing)
    return held + (sum(fleeting) if at_once else max(fleeting))


def role_bytes(placement: Placement, role: str, phase: Phase) -> tuple[int, int]:
    """What one worker of a role holds on each of its devices, and what it takes besides while it computes."""
    off = placement.off(role, phase)
    mine = [each for each in placement.shares if (each.role, each.phase) == (role, phase) and each.part not in off]
    return sum(each.bytes for each in mine if not each.fleeting), sum(each.bytes for each in mine if each.fleeting)


def overlapping(facts: RunFacts, placement: Placement) -> bool:
    """Whether generation may go on while a batch is trained on: nothing that it needs is ever put aside."""
    return facts.staleness > 0 and not facts.inline and not placement.offloads


def _fit_phase(facts: RunFacts, placement: Placement, phase: Phase) -> Placement:
    """Put one part after another aside until every device has room."""
    while (full := _fullest(facts, placement, phase)) is not None:
        found = next(_movable(facts, placement, full, phase), None)
        if found is None:
            raise ConfigError(_refusal(facts, placement, full, phase))
        placement = _with_off(placement, phase, *found)
    return placement


def _fullest(facts: RunFacts, placement: Placement, phase: Phase) -> int | None:
    """The device that is most over its memory; None where none is."""
    at_once = overlapping(facts, placement)
    over = {
        device: bytes_on(placement, device, phase, at_once=at_once) - _room(placement, device)
        for device in sorted({device for place in placement.roles for device in place.devices})
    }
    worst = max(over, key=over.__getitem__, default=None)
    return worst if worst is not None and over[worst] > 0 else None


def _room(placement: Placement, device: int) -> int:
    return int(placement.inventory.node_of(device).memory * USABLE)


def _movable(facts: RunFacts, placement: Placement, device: int, phase: Phase) -> Iterator[tuple[str, Part]]:
    """What is not needed in a phase and can leave the device, the cheapest to move first."""
    beside: tuple[tuple[str, Part], ...] = (
        ("critic", "optimizer"),
        ("critic", "weights"),
        ("reference", "weights"),
        ("teacher", "weights"),
        ("reward_model", "weights"),
    )
    order: dict[Phase, tuple[tuple[str, Part], ...]] = {
        "update": (("actor_infer", "kv"), ("actor_infer", "weights")),
        "rollout": (("actor_train", "optimizer"), *beside, ("actor_train", "weights")),
        "publication": (("actor_train", "optimizer"), *beside),
    }
    slots = placement.inventory.node_of(device).kind == CPU
    for role, part in order[phase]:
        facts_of = next((each for each in facts.roles if each.role == role), None)
        if facts_of is None or part not in facts_of.movable or part in placement.off(role, phase):
            continue
        if slots and part != "kv":
            continue  # a CPU's memory is where things are put aside
        if device in placement.role(role).devices:
            yield role, part


def _with_off(placement: Placement, phase: Phase, role: str, part: Part) -> Placement:
    others = tuple(each for each in placement.offloads if (each.role, each.phase) != (role, phase))
    parts = (*placement.off(role, phase), part)
    return replace(placement, offloads=(*others, Offload(role=role, phase=phase, parts=parts)))


def _refusal(facts: RunFacts, placement: Placement, device: int, phase: Phase) -> str:
    here = [place.role for place in placement.roles if device in place.devices]
    present = [
        share
        for share in placement.shares
        if share.phase == phase and share.role in here and share.part not in placement.off(share.role, phase)
    ]
    worst = max(present, key=lambda share: share.bytes)
    node = placement.inventory.node_of(device)
    what = f"{node.kind} {device}" if node.kind != CPU else f"CPU slot {device}"
    total, room = bytes_on(placement, device, phase, at_once=overlapping(facts, placement)), _room(placement, device)
    return (
        f"{worst.role}.devices: {what} can give {room / GIB:.1f} GiB and the {phase} needs {total / GIB:.1f} "
        f"({worst.role}'s {worst.part} {worst.bytes / GIB:.1f}); {_remedy(facts.role(worst.role), worst.part, here)}"
    )


def _remedy(role: RoleFacts, part: str, here: list[str]) -> str:
    name = role.role
    if part == "kv" and role.backend == "vllm":
        spare = " or set actor_infer.offload to true" if not role.movable and len(here) > 1 else ""
        return f"lower actor_infer.memory (got {role.memory:g}){spare}"
    if part == "kv":
        return f"lower actor_infer.slots (got {role.slots}) or rollout.context"
    if part in ("activations", "logits"):
        knob = "actor_infer.prefill_tokens" if name == "actor_infer" else "actor_train.tokens_per_microbatch"
        return f"lower {knob} (got {role.tokens})"
    if name == "actor_infer" and role.backend != "native":
        return f"raise actor_infer.parallel.tp (got {role.tp})"
    if role.trains and role.backend != "native":
        return f"give {name} more devices"
    if len(here) > 1:
        return "give it devices of its own"
    return "take a smaller model, or a backend that divides it: fsdp2 to train, vllm to generate"


def _memory(placement: Placement, role: str) -> int:
    """Of the smallest GPU that a role uses; 0 where it uses none."""
    if not placement.inventory.gpus:
        return 0
    return min((placement.inventory.node_of(device).memory for device in placement.role(role).devices), default=0)


def _shares(facts: RunFacts, role: RoleFacts, place: RolePlace, memory: int) -> Iterator[Share]:
    model = role.model
    assert model is not None, "numbers are known"

    def in_each(part: str, size: float, *phases: Phase, fleeting: bool = False) -> Iterator[Share]:
        for phase in phases or PHASES:
            if size:
                yield Share(role=role.role, phase=phase, part=part, bytes=int(size), fleeting=fleeting)

    if role.role == "actor_infer":
        weights, kv = _generator(facts, role, model, memory)
        yield from in_each("weights", weights)
        yield from in_each("kv", kv)
        yield from in_each("activations", _passing(facts, role, model), "rollout", fleeting=True)
        yield from in_each("logits", role.slots * model.vocab * 4 * _OF_A_CHUNK, "rollout", fleeting=True)
        yield from in_each("buckets", facts.buckets, "publication", fleeting=True)
        return
    shards = len(place.devices) if role.backend != "native" else 1
    kept = 0 if role.hosted else model.parameters / max(1, shards)
    yield from in_each("weights", kept * (role.master_bytes or role.weight_bytes))
    if role.master_bytes and shards == 1:
        once_more = model.layer_parameters * _LAYER if role.checkpointed else model.parameters * role.weight_bytes
        yield from in_each("rounded", once_more, "update", fleeting=True)
    yield from in_each("activations", _activations(facts, role, model), "update", fleeting=True)
    yield from in_each("logits", _logits(facts, role, model), "update", fleeting=True)
    if role.trains:
        trained = 0 if role.hosted else (role.adapters or model.parameters) / max(1, shards)
        yield from in_each("adapters", trained * _ADAPTER if role.adapters else 0)
        yield from in_each("gradients", trained * _GRADIENT, "update")
        yield from in_each("optimizer", trained * _MOMENTS * role.adaptive)
        if shards > 1:
            whole = 2 * max(model.layer_parameters, model.vocab * model.hidden) * role.weight_bytes / role.tp
            yield from in_each("gathered", whole, "update", "publication", fleeting=True)
    if role.role == "actor_train":
        yield from in_each("buckets", facts.buckets, "publication", fleeting=True)


def _generator(facts: RunFacts, role: RoleFacts, model: Architecture, memory: int) -> tuple[float, float]:
    """Bytes of weights, and of keys and values."""
    weights = 0.0 if facts.shared else (model.parameters + role.adapters) * role.weight_bytes / role.tp
    if role.backend == "native":
        span = -(-facts.context // _ALIGN) * _ALIGN
        return weights, max(role.slots, _ALIGN) * span * model.kv_row * role.weight_bytes
    if role.kv_bytes is not None:
        return weights, role.kv_bytes
    if not memory:
        return weights, _CPU_KV
    return weights, max(0.0, memory * (role.memory or 1.0) - weights - _passing(facts, role, model))


def _tokens(facts: RunFacts, role: RoleFacts) -> int:
    """That go through a model at once: as many as it may take, or all there are."""
    return min(role.tokens, facts.trajectories * facts.context)


def _logits(facts: RunFacts, role: RoleFacts, model: Architecture) -> float:
    """Of the chunk of tokens that is at the output layer, and of that layer's gradient on its way."""
    whole = _tokens(facts, role) * model.vocab * 4
    if not (role.master_bytes or (role.adapters and role.weight_bytes < _ADAPTER)):
        return min(_CHUNK, whole) * _OF_A_CHUNK
    learns = role.trains and not role.adapters
    return min(_WIDE_CHUNK, whole) * _OF_A_WIDE_CHUNK + model.vocab * model.hidden * _HEAD * learns


def _activations(facts: RunFacts, role: RoleFacts, model: Architecture) -> float:
    """Of an update, or of a pass that only reads."""
    if not role.trains:
        return _passing(facts, role, model)
    tokens = _tokens(facts, role) / role.cp
    if role.checkpointed:
        kept = 2 if role.backend == "native" else 1  # a layer is given a sum as what it is made of
        return tokens * (kept * model.layers * model.hidden + model.layer_row / role.tp) * role.weight_bytes
    return tokens * model.layers * model.layer_row * role.weight_bytes / role.tp


def _passing(facts: RunFacts, role: RoleFacts, model: Architecture) -> float:
    """Of tokens on their way through one layer, nothing of which is kept."""
    return _tokens(facts, role) * (model.layer_row + model.hidden) * role.weight_bytes / role.tp
