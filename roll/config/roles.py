"""The roles of a run: who trains, who samples, who scores, each with where and in how many processes it lives."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field

from roll.config.section import Section


class Ray(Section):
    """Where the processes of `executor: ray` come from."""

    address: str | None = Field(default=None, min_length=1)
    """`host:port` of a Ray cluster that is there, or `auto` for the one of this machine. None: one is started here."""
    start_timeout_s: float = Field(default=300.0, gt=0)
    """Seconds after which a worker that has not come up is given up."""


class Placed(Section):
    """A role that may have processes of its own."""

    workers: int = Field(default=1, gt=0)
    """Processes of this role; several need `executor: ray`."""
    python: str | None = Field(default=None, min_length=1)
    """The interpreter of its processes, where `executor: ray` has any; it needs roll installed. None: this one."""


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
    devices: str = Field(default="auto", pattern=r"^(auto|cpu|cuda(:\d+)?)$")
    """`auto` is the first GPU, or the CPU where there is none."""
    tokens_per_microbatch: int = Field(default=8192, gt=1)
    """Most tokens that go through the model at once; bounds memory, changes no gradient."""
    optimizer: Optimizer = Optimizer()


class Critic(Placed):
    """The value function of recipes that need one: the actor's body with a head of its own, trained beside it."""

    path: str | None = None
    """A model directory to start from; None: the actor's weights, with a head of zeros."""
    optimizer: Optimizer = Optimizer(lr=1e-5)


class Reference(Placed):
    """The policy that KL pulls towards; it only scores."""

    path: str | None = None
    """A model directory; None: the weights the actor starts from."""


class Teacher(Placed):
    """The policy that distillation learns from; it only scores."""

    path: str = Field(min_length=1)
    """A model directory with the actor's tokenizer."""


class RewardModel(Placed):
    """A sequence classifier whose score at the last token is part of the reward."""

    path: str = Field(min_length=1)
    weight: float = 1.0
    """What its score is multiplied with before it is added to the other rewards."""


class NativeInfer(Placed):
    """The generator that comes with the library: continuous batching over a slot cache."""

    backend: Literal["native"] = "native"
    devices: str = Field(default="auto", pattern=r"^(auto|cpu|cuda(:\d+)?)$")
    """Must be the trainer's while the executor is inline."""
    slots: int = Field(default=64, gt=1)
    """Requests decoded together; each holds a cache of `rollout.context` tokens."""
    prefill_tokens: int = Field(default=8192, gt=0)
    """Most prompt tokens admitted between two decode steps, one prompt at least."""
    flush_tokens: int = Field(default=64, gt=0)
    """Tokens of a running request after which its progress is reported: the most a crash can lose of it."""


ROLES = ("actor_train", "actor_infer", "reference", "critic", "teacher", "reward_model")
"""Sections of a run that are `Placed`, where they are there at all."""
_ONE_PROCESS = ("actor_train", "critic")
"""Roles whose native backend trains in one process."""


def check_places(executor: str, placed: Mapping[str, Any], ray: Ray) -> None:
    """Raise what of the placement cannot be had: processes where there is one, or several where one must do."""
    here = "with executor inline every role is in this process; set executor to ray, or leave it out"
    for role, section in placed.items():
        if section is None:
            continue
        if executor == "inline" and section.workers > 1:
            raise ValueError(f"{role}.workers ({section.workers}): {here}")
        if executor == "inline" and section.python is not None:
            raise ValueError(f"{role}.python ({section.python}): {here}")
        if role in _ONE_PROCESS and section.workers > 1:
            raise ValueError(f"{role}.workers ({section.workers}): backend native trains in one process; set it to 1")
    if (ray.address or "").startswith("ray://"):
        raise ValueError(f"ray.address ({ray.address}): start the run on a machine of the cluster, and give `auto`")
    if executor == "inline" and ray != Ray():
        raise ValueError(f"ray: {here}")
