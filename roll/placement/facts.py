"""What of a run decides where it can live, read from its configuration once: planning is a function of records."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from roll.config.lora import Lora
from roll.config.schema import ROLES, NativeInfer, Run
from roll.config.vllm import VllmInfer
from roll.placement.architecture import Architecture, architecture_at, architecture_of
from roll.placement.kinds import GIB
from roll.placement.records import Part

_FP32, _BF16 = 4, 2
_BUCKETS = {"disk": 0, "gloo": 2 * 64 * 2**20, "ipc": 2 * 512 * 2**20, "nccl": 2 * 512 * 2**20}
"""By transport: one that travels and one that is packed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleFacts:
    """One role: what it asks for, and what its memory follows from."""

    role: str
    backend: str
    devices: str | int | tuple[int, ...]
    workers: int | None
    tp: int = 1
    cp: int = 1
    model: Architecture | None
    """None where its numbers are not known here."""
    trains: bool = False
    adapters: int = 0
    """Numbers that are trained beside a model which stays as it is; 0: the model itself is trained, or nothing is."""
    adaptive: bool = False
    """Whether its optimizer keeps two numbers a parameter."""
    weight_bytes: int = _FP32
    """Of one parameter as it is computed with."""
    master_bytes: int = 0
    """Of one parameter as it is kept besides, in higher precision."""
    tokens: int = 0
    """Most that go through the model at once."""
    checkpointed: bool = False
    """Whether activations are computed again on the way back instead of kept."""
    hosted: bool = False
    """Whether weights and optimizer live on the host, and a layer comes to the device when it is due."""
    slots: int = 0
    """Requests decoded together."""
    kv_bytes: int | None = None
    """What the file gives keys and values; None: what the backend takes by itself."""
    memory: float | None = None
    """Part of a GPU that weights, keys and values take together, whatever they need."""
    movable: tuple[Part, ...] = ()
    """What it can put aside between two phases."""

    @property
    def group(self) -> int:
        """Devices of one process."""
        return 1 if self.trains else self.tp

    @property
    def together(self) -> int:
        """Devices that must be on one node."""
        return self.tp * self.cp


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """A run, as placement sees it."""

    roles: tuple[RoleFacts, ...]
    inline: bool
    """All roles in one process, on one device."""
    shared: bool
    """Whether trainer and generator hold one module."""
    staleness: float
    trajectories: int
    """Of one step."""
    context: int
    max_new_tokens: int
    passes: float
    """How often a step's tokens go through the model forwards, besides the update's own, each way counted as 1 of 3."""
    epochs: int
    transport: str
    """How weights travel between processes; empty where there is one."""
    buckets: int
    """Bytes that are on the way at once when weights travel."""

    def role(self, name: str) -> RoleFacts:
        return next(facts for facts in self.roles if facts.role == name)


def facts_of(run: Run, *, alone: bool = False) -> RunFacts:
    """Reads the config.json of models that are here; nothing else is looked at. `alone`: the actor is all there is."""
    needs = run.needs
    forwards = sum(need in needs for need in ("reference", "teacher", "reward_model", "critic", "old_logprobs"))
    inline, native = run.executor == "inline", run.actor_infer.backend == "native"
    shared = inline and native and run.rollout.max_staleness == 0
    return RunFacts(
        roles=tuple(
            _role(run, role, section, shared=shared)
            for role, section in roles_of(run).items()
            if role.startswith("actor") or not alone
        ),
        inline=inline,
        shared=shared,
        staleness=run.rollout.max_staleness,
        trajectories=run.rollout.groups_per_step * run.rollout.group_size,
        context=run.rollout.context,
        max_new_tokens=run.rollout.max_new_tokens,
        passes=forwards,
        epochs=run.algorithm.epochs,
        transport="" if inline else run.publication.transport,
        buckets=0 if inline else _BUCKETS[run.publication.transport],
    )


def _role(run: Run, role: str, section: Any, *, shared: bool) -> RoleFacts:
    path = getattr(section, "path", None)
    asked: dict[str, Any] = {
        "role": role,
        "backend": _backend(section),
        "devices": section.devices,
        "workers": section.workers,
        "model": architecture_of(run.model) if path is None else architecture_at(path),
    }
    if role.startswith("actor"):
        asked["adapters"] = _adapters(run.actor_train.lora, asked["model"])
    if role == "actor_infer":
        return RoleFacts(**asked, **_sampling(section, run.actor_train, shared=shared))
    movable = ("weights",) if _backend(section) == "native" else ()
    given: dict[str, Any] = {"tokens": run.actor_train.tokens_per_microbatch, "movable": movable}
    if role in ("actor_train", "critic"):
        given |= _training(section, shared=shared and role == "actor_train")
    return RoleFacts(**asked, **given)


def _training(section: Any, *, shared: bool) -> dict[str, Any]:
    """Of a trainer; a module that the generator uses as well stays where it is."""
    parallel, half = getattr(section, "parallel", None), _half(section)
    native = _backend(section) == "native"
    return {
        "tp": 1 if parallel is None else parallel.tp,
        "cp": 1 if parallel is None else parallel.cp,
        "trains": True,
        "adaptive": section.optimizer.kind == "adamw",
        "weight_bytes": _BF16 if half and not getattr(section, "exact", False) else _FP32,
        "master_bytes": _FP32 if half and getattr(section, "lora", None) is None else 0,
        "checkpointed": getattr(section, "checkpointing", False),
        "hosted": getattr(section, "offload", False),
        "movable": (("optimizer",) if shared else ("optimizer", "weights")) if native else (),
    }


def _sampling(section: NativeInfer | VllmInfer, trainer: Any, *, shared: bool) -> dict[str, Any]:
    if isinstance(section, NativeInfer):
        movable: tuple[Part, ...] = ("kv",) if shared else ("kv", "weights")
        return {"tokens": section.prefill_tokens, "slots": section.slots, "movable": movable}
    return {
        "tp": section.parallel.tp,
        "tokens": section.prefill_tokens,
        "slots": section.slots,
        "weight_bytes": _BF16 if _half(trainer if section.dtype == "auto" else section) else _FP32,
        "kv_bytes": None if section.kv_gib is None else int(section.kv_gib * GIB),
        "memory": section.memory,
        "movable": ("kv", "weights") if section.offload else (),
    }


def _adapters(lora: Lora | None, model: Architecture | None) -> int:
    """Trained numbers of all layers."""
    return 0 if lora is None or model is None else model.layers * lora.parameters(model.widths)


def _backend(section: Any) -> str:
    """What computes; a model beside the actor that is divided is so by FSDP2."""
    return "fsdp2" if getattr(section, "sharded", False) else getattr(section, "backend", "native")


def _half(section: Any) -> bool:
    """Whether it computes in bf16."""
    return getattr(section, "dtype", "float32") == "bfloat16"


def roles_of(run: Run) -> dict[str, Any]:
    """The sections of the roles that are started, by name."""
    needs = run.needs - {"reference"} if run.reference_is_base else run.needs
    return {role: getattr(run, role) for role in ROLES if role.startswith("actor") or role in needs}
