"""Facts about a run that determine its placement, read from its configuration; planning is a function of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from roll.config.backends import MegatronTrain, SglangInfer, VllmInfer, sharded_section
from roll.config.schema import ROLES, Model, NativeInfer, Run
from roll.placement.architecture import Architecture, Count, architecture_of
from roll.placement.machine import GIB
from roll.placement.records import Part

_FP32, _BF16 = 4, 2
_WHOLE = {1: ("weights", "gradients"), 2: ("weights",), 3: ()}
"""Parts that every rank holds whole, by ZeRO stage."""
_BUCKETS = {"disk": 0, "gloo": 2 * 64 * 2**20, "ipc": 2 * 512 * 2**20, "nccl": 2 * 512 * 2**20}
"""Bytes by transport: one bucket in transfer and one being filled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleFacts:
    """One role: the devices that it asks for, and the quantities that determine its memory."""

    role: str
    backend: str
    devices: str | int | tuple[int, ...]
    workers: int | None
    tp: int = 1
    cp: int = 1
    pp: int = 1
    """Stages of a model of backend megatron, which may be on several nodes."""
    ep: int = 1
    """Devices of a stage of such a model that share the experts of each layer."""
    num_layouts: int = 0
    """Layouts among which `auto` chose this one; 0 if it is the file's."""
    model: Architecture | None
    """None if its dimensions are unknown."""
    trains: bool = False
    adapters: int = 0
    """Trained parameters of adapters; 0 without adapters."""
    adaptive: bool = False
    """Whether its optimizer has two moments per parameter."""
    weight_bytes: int = _FP32
    """Bytes per parameter in computation."""
    quantised: bool = False
    """Whether the layers' weights have one byte each and a scale per row."""
    master_bytes: int = 0
    """Bytes per parameter of a master copy in higher precision; 0 without one."""
    tokens: int = 0
    """Most tokens per forward pass."""
    checkpointed: bool = False
    """Whether activations are recomputed in the backward pass."""
    offload: bool = False
    """Trainers: weights and optimizer state are in host memory, and each layer is copied to the device when needed.
    vLLM: `movable` has its parts."""
    whole: tuple[str, ...] = ()
    """DeepSpeed: parts that its ZeRO stage does not divide among ranks."""
    offload_optimizer: bool = False
    """DeepSpeed: the optimizer state is in host memory; `offload` is for weights alone."""
    max_num_seqs: int = 0
    """Most sequences per decode step."""
    kv_bytes: int | None = None
    """Size of the KV cache from the file; None: the backend's choice."""
    gpu_memory_utilization: float | None = None
    """Fraction of a GPU that weights and KV cache occupy, regardless of need."""
    movable: tuple[Part, ...] = ()
    """Parts that can be offloaded between two phases."""

    @property
    def group(self) -> int:
        """Devices per process."""
        return 1 if self.trains or self.backend == "megatron" else self.tp

    @property
    def node_group(self) -> int:
        """Number of devices that must be on one node."""
        return self.tp * self.cp

    @property
    def expert_tp(self) -> int:
        """Devices that share each expert of backend megatron: with `ep` above 1, experts are whole."""
        return self.tp if self.ep == 1 else 1

    def divides(self, num: int) -> bool:
        """Whether `num` ranks form whole groups, and on each stage whole groups of experts."""
        return num > 0 and num % (self.tp * self.cp * self.pp) == 0 and num // self.pp % (self.ep * self.expert_tp) == 0

    @property
    def layout(self) -> str:
        """The sizes above 1, in words."""
        sizes = {"tp": self.tp, "pp": self.pp, "cp": self.cp, "ep": self.ep}
        return ", ".join(f"{name} {size}" for name, size in sizes.items() if size > 1) or "data parallel"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """Facts about a whole run."""

    roles: tuple[RoleFacts, ...]
    inline: bool
    """All roles in one process, on one device."""
    shared: bool
    """Whether trainer and generator share one module."""
    staleness: float
    trajectories: int
    """Trajectories per step."""
    max_seq_len: int
    max_new_tokens: int
    passes: float
    """Forward passes over a step's tokens in addition to those of the update."""
    epochs: int
    minibatches: int
    """Optimizer steps per epoch."""
    transport: str
    """Transport of weights between processes; empty with a single process."""
    buckets: int
    """Bytes of the buffers for weight transport."""
    lending: bool
    """Whether generators on devices of the trainer serve only while it waits."""

    def role(self, name: str) -> RoleFacts:
        return next(facts for facts in self.roles if facts.role == name)


def facts_of(run: Run, *, alone: bool = False, count: Count | None = None) -> RunFacts:
    """The facts of a run; reads the config.json of local models and no other file. `alone`: only the actor's roles.

    Without `count`, mixtures of experts are unknown.
    """
    inline, shared = run.executor == "inline", run.shares_module
    return RunFacts(
        roles=tuple(
            _role(run, role, section, _architecture(run, section, count), shared=shared)
            for role, section in roles_of(run).items()
            if role.startswith("actor") or not alone
        ),
        inline=inline,
        shared=shared,
        staleness=run.rollout.max_staleness,
        trajectories=run.rollout.groups_per_step * run.rollout.group_size,
        max_seq_len=run.rollout.max_seq_len,
        max_new_tokens=run.rollout.max_new_tokens,
        passes=len(scored_by(run)),
        epochs=run.algorithm.epochs,
        minibatches=run.algorithm.minibatches,
        transport="" if inline else run.weight_sync.transport,
        buckets=0 if inline else _BUCKETS[run.weight_sync.transport],
        lending=run.actor_infer.lend_factor is not None,
    )


def _architecture(run: Run, section: Any, count: Count | None) -> Architecture | None:
    path = getattr(section, "path", None)
    return architecture_of(run.model if path is None else Model(path=path), run.rollout.max_seq_len, count)


def _role(run: Run, role: str, section: Any, model: Architecture | None, *, shared: bool) -> RoleFacts:
    section = sharded_section(section, run.actor_train)
    if _backend(section) == "megatron" and model is not None and model.blocks is None:
        model = None  # of a family that it refuses
    common: dict[str, Any] = {
        "role": role,
        "backend": _backend(section),
        "devices": section.devices,
        "workers": section.workers,
        "model": model,
    }
    if role.startswith("actor"):
        lora = run.actor_train.lora
        common["adapters"] = model.adapter_parameters(lora) if lora and model else 0
    if role == "actor_infer":
        return RoleFacts(**common, **_generation(section, run.actor_train, shared=shared))
    movable = ("weights",) if _backend(section) == "native" else ()
    facts: dict[str, Any] = {"tokens": run.actor_train.tokens_per_microbatch, "movable": movable}
    if role in ("actor_train", "critic"):
        facts |= _training(section, shared=shared and role == "actor_train")
    elif isinstance(section, MegatronTrain):
        facts |= {**section.parallel.model_dump(), "weight_bytes": _BF16 if _half(section) else _FP32}
    return RoleFacts(**common, **facts)


def _training(section: Any, *, shared: bool) -> dict[str, Any]:
    """Facts of a trainer; weights that the generator shares cannot be offloaded."""
    parallel, half = getattr(section, "parallel", None), _half(section)
    native = _backend(section) == "native"
    return {
        "tp": 1 if parallel is None else parallel.tp,
        "cp": 1 if parallel is None else parallel.cp,
        "pp": getattr(parallel, "pp", 1),
        "ep": getattr(parallel, "ep", 1),
        "trains": True,
        "adaptive": section.optimizer.kind != "sgd",
        "weight_bytes": _BF16 if half and not getattr(section, "float32_compute", False) else _FP32,
        "master_bytes": _FP32 if half and getattr(section, "lora", None) is None else 0,
        "checkpointed": getattr(section, "activation_checkpointing", False),
        "offload": getattr(section, "offload", getattr(section, "offload_parameters", False)),
        "whole": _WHOLE[getattr(section, "zero_stage", 3)],
        "offload_optimizer": getattr(section, "offload_optimizer", False),
        "movable": (("optimizer",) if shared else ("optimizer", "weights")) if native else (),
    }


def _generation(section: NativeInfer | VllmInfer | SglangInfer, trainer: Any, *, shared: bool) -> dict[str, Any]:
    if isinstance(section, NativeInfer):
        movable: tuple[Part, ...] = ("kv",) if shared else ("kv", "weights")
        return {
            "tokens": section.max_num_batched_tokens,
            "max_num_seqs": section.max_num_seqs,
            "weight_bytes": _BF16 if _half(trainer) else _FP32,
            "kv_bytes": None if section.kv_cache_gib is None else int(section.kv_cache_gib * GIB),
            "movable": movable,
        }
    weight_bytes = _BF16 if _half(trainer if section.dtype == "auto" else section) else _FP32
    if isinstance(section, SglangInfer):
        return {
            "tokens": section.chunked_prefill_size,
            "max_num_seqs": section.max_num_seqs,
            "weight_bytes": weight_bytes,
            "gpu_memory_utilization": section.mem_fraction_static,
            "movable": (),
        }
    return {
        "tp": section.parallel.tp,
        "tokens": section.max_num_batched_tokens,
        "max_num_seqs": section.max_num_seqs,
        "weight_bytes": weight_bytes,
        "kv_bytes": None if section.kv_cache_gib is None else int(section.kv_cache_gib * GIB),
        "gpu_memory_utilization": section.gpu_memory_utilization,
        "offload": section.offload,
        "quantised": section.quantization is not None,
        "movable": ("kv", "weights") if section.offload else (),
    }


def _backend(section: Any) -> str:
    """Backend of a role, whose section is as `sharded_section` returns it; other sharded models use FSDP2."""
    return "fsdp2" if getattr(section, "sharded", False) else getattr(section, "backend", "native")


def _half(section: Any) -> bool:
    """Whether it computes in bf16."""
    return getattr(section, "dtype", "float32") == "bfloat16"


def scored_by(run: Run) -> tuple[str, ...]:
    """Models and inputs of the algorithm that need a forward pass over the batch before the update."""
    return tuple(
        need for need in ("reference", "teacher", "reward_model", "critic", "old_logprobs") if need in run.needs
    )


def roles_of(run: Run) -> dict[str, Any]:
    """Sections of the roles that the run starts, by name."""
    needs = run.needs - {"reference"} if run.reference_is_base else run.needs
    return {role: getattr(run, role) for role in ROLES if role.startswith("actor") or role in needs}
