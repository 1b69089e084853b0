"""The roles of a run: who trains, who samples, who scores, each with where and in how many processes it lives."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, model_validator

from roll.config.devices import Devices, device_text, num_devices, one_device
from roll.config.lora import Lora
from roll.config.section import Section


class Ray(Section):
    """Where the processes of `executor: ray` come from."""

    address: str | None = Field(default=None, min_length=1)
    """`host:port` of a Ray cluster that is there, or `auto` for the one of this machine. None: one is started here."""
    start_timeout_s: float = Field(default=300.0, gt=0)
    """Seconds after which a worker that has not come up is given up."""
    max_replaced: int = Field(default=3, ge=0)
    """Generators that may die in one run and are replaced; the next one that dies ends it."""
    cpu_slots: int | None = Field(default=None, gt=0)
    """Devices that a machine without GPUs counts as, so that a placement can be tried there. None: one a core."""


class Placed(Section):
    """A role that may have processes of its own."""

    workers: int | None = Field(default=None, gt=0)
    """Processes of this role; several need `executor: ray`. None: as many as its devices make, else 1."""
    devices: Devices = "auto"
    """Of the whole cluster: `auto`, `all`, a count, or numbers such as `0-7`, `0-3,8-11`, `[0, 2]`.
    Or one that all workers use: `cpu`, `cuda` (the first GPU), `cuda:1`."""
    python: str | None = Field(default=None, min_length=1)
    """The interpreter of its processes, where `executor: ray` has any; it needs roll installed. None: this one."""

    @property
    def group(self) -> int:
        """Devices of one process."""
        return 1

    @property
    def num_workers(self) -> int:
        """Processes, as far as the file says; `all` and `auto` may make more of them."""
        if self.workers is not None:
            return self.workers
        return max(1, (num_devices(self.devices) or 0) // self.group)


class Optimizer(Section):
    """How gradients move the weights."""

    kind: Literal["adamw", "sgd"] = "adamw"
    """`sgd` is without momentum: weights less the learning rate times the gradient."""
    lr: float = Field(default=1e-6, gt=0)
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = Field(default=1e-8, gt=0)
    weight_decay: float = Field(default=0.0, ge=0)
    clip_norm: float | None = Field(default=1.0, gt=0)
    """Gradients longer than this are shortened to it; None leaves them."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """What becomes of `lr` after the warm-up, over the optimizer steps of the run."""
    warmup_steps: int = Field(default=0, ge=0)
    final_lr: float = Field(default=0.0, ge=0)
    """Where `linear` and `cosine` end, as a part of `lr`."""
    max_refused: int = Field(default=3, gt=0)
    """Updates with a non-finite loss or gradient, in a row, before the run stops. Each is refused, its batch saved."""


class NativeTrain(Placed):
    """The trainer that comes with the library: one process, torch alone."""

    backend: Literal["native"] = "native"
    tokens_per_microbatch: int = Field(default=8192, gt=1)
    """Most tokens that go through the model at once; bounds memory, changes no gradient."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Of arithmetic and of what is published; weights, gradients and the optimizer keep 32 bits."""
    checkpointing: bool = False
    """Compute the inside of each layer again on the way back instead of keeping it: less memory, a third more work."""
    exact: bool = False
    """With `dtype` bfloat16, round weights alone and compute with 32 bits: nearer to what the sampler means, slower."""
    optimizer: Optimizer = Optimizer()
    lora: Lora | None = None
    """Train adapters instead of the model itself; None: all of the model is trained."""

    @model_validator(mode="after")
    def _weights_are_rounded(self) -> NativeTrain:
        if self.exact and self.dtype == "float32":
            raise ValueError("exact: with dtype float32 nothing is rounded; leave it out, or set dtype to bfloat16")
        if self.exact and self.lora is not None:
            raise ValueError("exact: a model under adapters is held with 16 bits; leave one of the two out")
        return self


class Beside(Placed):
    """A model beside the actor."""

    sharded: bool = False
    """Give each of its processes a part of the model, by FSDP2, instead of all of it: for what no device can hold."""


class Critic(Beside):
    """The value function of recipes that need one: the actor's body with a head of its own, trained beside it."""

    path: str | None = None
    """A model directory to start from; None: the actor's weights, with a head of zeros."""
    optimizer: Optimizer = Optimizer(lr=1e-5)


class Reference(Beside):
    """The policy that KL pulls towards; it only scores."""

    path: str | None = None
    """A model directory; None: the weights the actor starts from."""


class Teacher(Beside):
    """The policy that distillation learns from; it only scores."""

    path: str = Field(min_length=1)
    """A model directory with the actor's tokenizer."""


class RewardModel(Beside):
    """A sequence classifier whose score at the last token is part of the reward."""

    path: str = Field(min_length=1)
    weight: float = 1.0
    """What its score is multiplied with before it is added to the other rewards."""


class NativeInfer(Placed):
    """The generator that comes with the library: continuous batching over a slot cache."""

    backend: Literal["native"] = "native"
    slots: int = Field(default=64, gt=1)
    """Requests decoded together; each holds a cache of `rollout.context` tokens."""
    prefill_tokens: int = Field(default=8192, gt=0)
    """Most prompt tokens admitted between two decode steps, one prompt at least."""
    flush_tokens: int = Field(default=64, gt=0)
    """Tokens of a running request after which its progress is reported: the most a crash can lose of it."""


ROLES = ("actor_train", "actor_infer", "reference", "critic", "teacher", "reward_model")
"""Sections of a run that are `Placed`, where they are there at all."""
_ONE_DEVICE = ("actor_train", "critic")
"""Roles whose native backend trains in one process, on one device."""
_HERE = "with executor inline every role is in this process; set executor to ray, or leave it out"


def check_places(executor: str, placed: Mapping[str, Any], ray: Ray) -> None:
    """Raise what of the placement cannot be had: processes where there is one, or several where one must do."""
    for role, section in placed.items():
        if section is None:
            continue
        if executor == "inline":
            _check_inline(role, section, placed["actor_train"].devices)
        else:
            _check_counts(role, section)
        spread = getattr(section, "sharded", getattr(section, "backend", "native") != "native")
        if role in _ONE_DEVICE and not spread:
            _check_alone(role, section)
    if (ray.address or "").startswith("ray://"):
        raise ValueError(f"ray.address ({ray.address}): start the run on a machine of the cluster, and give `auto`")
    if executor == "inline" and ray != Ray():
        raise ValueError(f"ray: {_HERE}")


def _check_inline(role: str, section: Placed, trainer: str | int | tuple[int, ...]) -> None:
    if section.workers is not None and section.workers > 1:
        raise ValueError(f"{role}.workers ({section.workers}): {_HERE}")
    if isinstance(section, Beside) and section.sharded:
        raise ValueError(f"{role}.sharded: {_HERE}")
    if section.python is not None:
        raise ValueError(f"{role}.python ({section.python}): {_HERE}")
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


def _check_counts(role: str, section: Placed) -> None:
    """Devices, the group that one process takes of them, and processes, where the file says all of it."""
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


def _check_alone(role: str, section: Placed) -> None:
    if section.workers is not None and section.workers > 1:
        raise ValueError(f"{role}.workers ({section.workers}): backend native trains in one process; set it to 1")
    if (num_devices(section.devices) or 1) > 1:
        raise ValueError(
            f"{role}.devices ({device_text(section.devices)}): backend native trains on one device; "
            "name one, such as [0], or leave it out"
        )
