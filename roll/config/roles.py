"""The roles of a run (trainer, generator and auxiliary models): processes, devices and settings of each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, cast

from pydantic import Field, model_validator

from roll.config.devices import Devices, device_text, num_devices, one_device
from roll.config.lora import Lora
from roll.config.router_losses import RouterLosses
from roll.config.section import Section
from roll.errors import did_you_mean
from roll.registry import Spec

_OPTIMIZERS = ("adamw", "sgd")


class Ray(Section):
    """The Ray cluster of `executor: ray`."""

    address: str | None = Field(default=None, min_length=1)
    """`host:port` of a running Ray cluster, or `auto` for the one on this machine. None: start one here."""
    start_timeout_s: float = Field(default=300.0, gt=0)
    """Seconds for Ray itself to start or to reply, and then for each worker to start."""
    max_replacements: int = Field(default=3, ge=0)
    """Dead workers of a role that are replaced per run: generators, trainers, reference and the other models. The run
    stops when one more dies."""
    hang_timeout_s: float = Field(default=120.0, gt=0)
    """Seconds after which a worker whose process is stopped is killed, and a trainer or another model if its call also
    takes ten times as many seconds per token as the slowest one before; it is replaced like one that died."""
    snapshot_s: float = Field(default=10.0, gt=0)
    """Seconds of updates after which trainers save their state in the run's directory, apart from checkpoints: a
    replaced trainer repeats the updates since. Saves take at most 2 % of the time of updates."""
    keep_workers_s: float = Field(default=120.0, ge=0)
    """With `--supervise`: seconds that workers stay after the death of the controller, so that the next one takes them
    up. Only with `weight_sync.transport: disk`, and unless roles take turns on a device. 0: they end with it."""
    node_timeout_s: float = Field(default=600.0, ge=0)
    """Seconds to wait for a node with room for a worker whose node is lost; then the run stops and can be resumed."""
    cpu_slots: int | None = Field(default=None, gt=0)
    """Number of devices that a machine without GPUs counts as, to try a placement there. None: one per core."""


class WeightSync(Section):
    """Transport of new weights from the trainer to the generators, and the proof that they arrived."""

    transport: Literal["disk", "gloo", "ipc", "nccl"] = "disk"
    """Between processes: files in the run's directory, broadcast over the network, shared memory of one GPU that all
    processes use, or broadcast between GPUs. `executor: inline` needs no transport."""
    canary: bool = True
    """Compare logprobs of a fixed text at every version, in addition to the digest; only once if trainer and generator
    share a module."""


class RoleConfig(Section):
    """A role that may have its own processes."""

    workers: int | None = Field(default=None, gt=0)
    """Processes of this role; more than one needs `executor: ray`. None: follows from its devices, else 1."""
    devices: Devices = "auto"
    """Devices of the whole cluster: `auto`, `all`, a count, or numbers such as `0-7`, `0-3,8-11`, `[0, 2]`.
    Or one device that all workers share: `cpu`, `cuda` (the first GPU), `cuda:1`."""
    python: str | None = Field(default=None, min_length=1)
    """Python interpreter of its processes with `executor: ray`; roll must be installed in it. None: the current one."""

    @property
    def group(self) -> int:
        """Devices per process."""
        return 1

    @property
    def num_workers(self) -> int:
        """Processes as far as the file determines them; `all` and `auto` may give more."""
        if self.workers is not None:
            return self.workers
        return max(1, (num_devices(self.devices) or 0) // self.group)


class Parallel(Section):
    """Size of a group of devices that work on one model together: `tp` times `cp`, all on one node."""

    tp: int = Field(default=1, gt=0)
    """Tensor parallelism: devices that share every layer; must divide the numbers of attention and KV heads."""
    cp: int = Field(default=1, gt=0)
    """Context parallelism: devices that share every sequence; only for trainers of backends fsdp2 and megatron."""

    @property
    def size(self) -> int:
        """Devices per group."""
        return self.tp * self.cp


class MegatronParallel(Parallel):
    """Size of a group of devices that hold one copy of a model: `tp` times `cp`, on one node, times `pp`."""

    pp: int = Field(default=1, gt=0)
    """Pipeline parallelism: stages of consecutive layers; must divide the number of layers."""
    ep: int = Field(default=1, gt=0)
    """Expert parallelism: devices of a stage that share the experts of each layer; must divide their number."""

    @property
    def size(self) -> int:
        """Devices per group."""
        return self.tp * self.cp * self.pp


class Optimizer(Section):
    """Optimizer and learning-rate schedule."""

    kind: str = "adamw"
    """`adamw`, `sgd` (without momentum), or your own subclass of torch.optim.Optimizer as `package.module:Class`."""
    arguments: dict[str, Any] = Field(default={})
    """Arguments of your own class, which also gets the parameters and `lr`, but not `betas`, `eps` and
    `weight_decay`."""
    lr: float = Field(default=1e-6, gt=0)
    """Learning rate after the warm-up."""
    betas: tuple[float, float] = (0.9, 0.95)
    """Decay of AdamW's two moving averages."""
    eps: float = Field(default=1e-8, gt=0)
    """Added to AdamW's denominator."""
    weight_decay: float = Field(default=0.0, ge=0)
    """Decoupled weight decay."""
    max_grad_norm: float | None = Field(default=1.0, gt=0)
    """Scale gradients down to this norm; None: no clipping."""
    layer_grad_norms: bool = False
    """Log the norm of the gradient of each layer as `loss/grad_norm/<layer>`, before clipping."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """Course of `lr` after the warm-up, over the optimizer steps of the run."""
    warmup_steps: int = Field(default=0, ge=0)
    """First optimizer steps, over which the learning rate grows linearly."""
    final_lr_ratio: float = Field(default=0.0, ge=0)
    """Final learning rate of `linear` and `cosine`, as a fraction of `lr`."""
    max_nonfinite_updates: int = Field(default=3, gt=0)
    """Consecutive updates with a non-finite loss or gradient before the run stops. Each is skipped and its batch
    saved."""

    @property
    def custom(self) -> Spec | None:
        """The user's class with its arguments; None for the built-in optimizers."""
        return Spec(self.kind, {"lr": self.lr, **self.arguments}) if ":" in self.kind else None

    @model_validator(mode="after")
    def _arguments_are_of_the_class(self) -> Optimizer:
        if self.custom is None and self.kind not in _OPTIMIZERS:
            offer = did_you_mean(self.kind, _OPTIMIZERS)
            raise ValueError(f"kind: no optimizer named {self.kind!r}{offer} (your own: package.module:Class)")
        if self.custom is None and self.arguments:
            raise ValueError(f"arguments: {self.kind} takes none; use the keys beside it, such as weight_decay")
        unused = sorted(self.model_fields_set & {"betas", "eps", "weight_decay"})
        if self.custom is not None and unused:
            raise ValueError(f"{unused[0]}: only for adamw and sgd; give your own optimizer {unused[0]} in `arguments`")
        return self


class NativeTrain(RoleConfig):
    """The built-in trainer: one process, torch only."""

    backend: Literal["native"] = "native"
    """Trains on a CPU or one GPU."""
    tokens_per_microbatch: int = Field(default=8192, gt=1)
    """Most tokens per forward pass; bounds memory and does not change gradients."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Type of computation and of published weights; master weights, gradients and optimizer state have 32 bits."""
    activation_checkpointing: bool = False
    """Recompute the inside of each layer in the backward pass: less memory, a third more work."""
    float32_compute: bool = False
    """With `dtype` bfloat16, round only the weights and compute in float32: closer to the sampler, slower."""
    fp8_products: Literal["none", "gradients", "all"] = "none"
    """Products of large projections in 8 bits instead of those of `dtype` bfloat16: those for `gradients` of their
    inputs, or `all`, which adds the forward pass. Changes gradients, and `all` logprobs too; see docs/engines.md."""
    optimizer: Optimizer = Optimizer()
    router_losses: RouterLosses = RouterLosses()
    """Load-balancing loss and z-loss of a mixture of experts."""
    lora: Lora | None = None
    """Train LoRA adapters; None: train the whole model."""

    @model_validator(mode="after")
    def _fp8_products_exist(self) -> NativeTrain:
        if self.fp8_products == "none":
            return self
        if self.dtype != "bfloat16":
            raise ValueError(
                f"fp8_products: needs dtype bfloat16 (got {self.dtype}); set it, or leave fp8_products out"
            )
        if self.float32_compute:
            raise ValueError("fp8_products: float32_compute computes in 32 bits; leave one of the two out")
        if self.lora is not None:
            raise ValueError("fp8_products: products with adapters have 16 bits; leave fp8_products or lora out")
        if self.devices == "cpu":
            raise ValueError("fp8_products: needs a GPU (got devices cpu); leave it out, or choose a GPU")
        return self

    @model_validator(mode="after")
    def _weights_are_rounded(self) -> NativeTrain:
        if self.float32_compute and self.dtype == "float32":
            raise ValueError("float32_compute: dtype is float32 already; leave it out, or set dtype to bfloat16")
        if self.float32_compute and self.lora is not None:
            raise ValueError("float32_compute: the model under adapters has 16 bits; leave one of the two out")
        return self


class AuxiliaryModelConfig(RoleConfig):
    """A model in addition to the actor."""

    sharded: bool = False
    """Shard the model over its processes, for models that do not fit one device: by FSDP2; if the trainer's backend is
    megatron, by that with the trainer's layout; if it is deepspeed, the critic by that."""


class Critic(AuxiliaryModelConfig):
    """The value function of recipes that need one: the actor's body with a value head, trained with the actor."""

    path: str | None = None
    """A model directory to start from; None: the actor's weights, with a head of zeros."""
    optimizer: Optimizer = Optimizer(lr=1e-5)


class Reference(AuxiliaryModelConfig):
    """The frozen policy from which KL is measured."""

    path: str | None = None
    """A model directory; None: the initial weights of the actor."""


class Teacher(AuxiliaryModelConfig):
    """The frozen policy to distil from."""

    path: str = Field(min_length=1)
    """A model directory with the actor's tokenizer."""


class RewardModel(AuxiliaryModelConfig):
    """A sequence classifier whose score at the last token is part of the reward."""

    path: str = Field(min_length=1)
    """A model directory with a score head."""
    weight: float = 1.0
    """Factor on its score in the sum of rewards."""


class GeneratorConfig(RoleConfig):
    """Settings of generators of any backend."""

    min_workers: int | None = Field(default=None, gt=0)
    """Fewest generators with which the run continues while no node has room for those of a lost node, and below which
    none leaves. None: all that the run starts with."""
    max_workers: int | None = Field(default=None, gt=0)
    """Most generators: others join the running job when nodes have room, and `roll generators` adds and removes them.
    Only with `weight_sync.transport: disk`. None: their number is constant."""
    lend_factor: float | None = Field(default=None, ge=1)
    """Generators on devices of the trainer serve only while it waits for a batch, and only if it is expected to wait
    for longer than this factor times the seconds of both moves; the others always serve. None: nothing is lent."""


class NativeInfer(GeneratorConfig):
    """The built-in generator, in the trainer's `dtype`: with float32 a cache slot per sequence, with bfloat16 pages."""

    backend: Literal["native"] = "native"
    """Samples on a CPU or one GPU."""
    max_num_seqs: int = Field(default=64, gt=1)
    """Most sequences per decode step; each has a cache of `rollout.max_seq_len` tokens."""
    max_num_batched_tokens: int = Field(default=8192, gt=0)
    """Most prompt tokens prefilled between two decode steps; at least one prompt is."""
    progress_interval: int = Field(default=64, gt=0)
    """Tokens between two progress reports of a running request: the most that a crash can lose of it."""
    kv_cache_gib: float | None = Field(default=None, gt=0)
    """GiB of keys and values with bfloat16; None: `max_num_seqs` sequences of `rollout.max_seq_len` tokens."""


ROLES = ("actor_train", "actor_infer", "reference", "critic", "teacher", "reward_model")
"""Sections of a run that are a `RoleConfig` or None."""
_ONE_DEVICE = ("actor_train", "critic")
"""Roles whose native backend trains in one process, on one device."""
_INLINE_ONLY = "with executor inline every role is in this process; set executor to ray, or leave it out"


def backend_tag(value: Any) -> str:
    """Tag of the section that `value` is for, by its `backend`; native if it names none.

    The angle brackets distinguish the tag from a key in the location of an error.
    """
    if isinstance(value, dict):
        return f"<{cast(dict[str, Any], value).get('backend', 'native')}>"
    return f"<{getattr(value, 'backend', 'native')}>"


def check_placement(executor: str, roles: Mapping[str, Any], ray: Ray) -> None:
    """Raise ValueError for several processes or devices where the executor or the backend allows one."""
    for role, section in roles.items():
        if section is None:
            continue
        if executor == "inline":
            _check_inline(role, section, roles["actor_train"].devices)
        else:
            _check_counts(role, section)
        sharded = getattr(section, "sharded", getattr(section, "backend", "native") != "native")
        if role in _ONE_DEVICE and not sharded:
            _check_one_device(role, section)
    if (ray.address or "").startswith("ray://"):
        raise ValueError(f"ray.address ({ray.address}): start the run on a machine of the cluster, and give `auto`")
    if executor == "inline" and ray != Ray():
        raise ValueError(f"ray: {_INLINE_ONLY}")


def check_transport(executor: str, transport: str, roles: Mapping[str, RoleConfig]) -> None:
    """Raise ValueError if the transport cannot serve several devices, or fewer generators than there are."""
    infer = roles["actor_infer"]
    if isinstance(infer, GeneratorConfig) and infer.min_workers is not None:
        _check_fewest(executor, transport, infer, infer.min_workers)
    for role, section in roles.items():
        if executor == "ray" and transport == "ipc" and (num_devices(section.devices) or 1) > 1:
            raise ValueError(
                f"weight_sync.transport (ipc): is for one GPU, and {role}.devices is {device_text(section.devices)}; "
                "choose nccl, gloo or disk"
            )


def check_elastic(executor: str, transport: str, infer: RoleConfig, ray: Ray, num_policies: int) -> None:
    """Raise ValueError if generators cannot join and leave, and `max_workers` says that they do."""
    if not isinstance(infer, GeneratorConfig) or (most := infer.max_workers) is None:
        return
    key, known = f"actor_infer.max_workers ({most})", infer.workers or num_devices(infer.devices)
    if executor == "inline":
        raise ValueError(f"{key}: {_INLINE_ONLY}")
    if known is not None and most < infer.num_workers:
        raise ValueError(f"{key}: the run starts with {infer.num_workers} generators; raise it, or lower workers")
    if transport != "disk":
        raise ValueError(f"{key}: none can join a {transport} broadcast; set weight_sync.transport to disk")
    if num_policies:
        raise ValueError(f"{key}: generators of several policies neither join nor leave; leave it out")
    if not ray.max_replacements:
        raise ValueError(f"{key}: with ray.max_replacements 0 the first lost generator ends the run; raise that")


def _check_fewest(executor: str, transport: str, infer: RoleConfig, fewest: int) -> None:
    key, known = f"actor_infer.min_workers ({fewest})", infer.workers or num_devices(infer.devices)
    if executor == "inline":
        raise ValueError(f"{key}: {_INLINE_ONLY}")
    if known is not None and fewest > infer.num_workers:
        raise ValueError(f"{key}: there are only {infer.num_workers} generators; lower it")
    if transport != "disk" and fewest != infer.num_workers:
        raise ValueError(f"{key}: {transport} needs all generators; set weight_sync.transport to disk, or leave it out")


def _check_inline(role: str, section: RoleConfig, trainer: str | int | tuple[int, ...]) -> None:
    if section.workers is not None and section.workers > 1:
        raise ValueError(f"{role}.workers ({section.workers}): {_INLINE_ONLY}")
    if isinstance(section, AuxiliaryModelConfig) and section.sharded:
        raise ValueError(f"{role}.sharded: {_INLINE_ONLY}")
    if section.python is not None:
        raise ValueError(f"{role}.python ({section.python}): {_INLINE_ONLY}")
    if section.devices != "auto" and not one_device(section.devices):
        raise ValueError(
            f"{role}.devices ({device_text(section.devices)}): with executor inline there is one device; "
            "name it as cpu, cuda or cuda:1, or set executor to ray"
        )
    if section.devices not in ("auto", trainer):
        raise ValueError(
            f"{role}.devices: with executor inline it is the trainer's ({trainer}), "
            f"got {section.devices!r}; leave it out"
        )


def _check_counts(role: str, section: RoleConfig) -> None:
    """Compare the numbers of devices, of devices per process and of processes, if the file gives all three."""
    num = num_devices(section.devices)
    if num is None:
        return
    if num % section.group:
        raise ValueError(
            f"{role}.devices ({device_text(section.devices)}): {num} devices do not divide by parallel.tp "
            f"({section.group}); name a multiple of it"
        )
    if section.workers not in (None, num // section.group):
        raise ValueError(
            f"{role}.workers ({section.workers}): {num} devices in groups of {section.group} make "
            f"{num // section.group} processes; leave it out"
        )


def _check_one_device(role: str, section: RoleConfig) -> None:
    if section.workers is not None and section.workers > 1:
        raise ValueError(f"{role}.workers ({section.workers}): backend native trains in one process; set it to 1")
    if (num_devices(section.devices) or 1) > 1:
        raise ValueError(
            f"{role}.devices ({device_text(section.devices)}): backend native trains on one device; "
            "name one, such as [0], or leave it out"
        )
