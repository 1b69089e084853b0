"""The section `distill`: supervised learning of a teacher's distributions on rows of prompts and responses."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from roll.config.roles import Optimizer
from roll.config.section import Section, SpecConfig
from roll.config.sources import TaskSourceConfig


class Distill(Section):
    """Distillation from `teacher` by `roll distill`."""

    tasks: tuple[TaskSourceConfig, ...] = ()
    """Tasks with answers, whose tokens the student learns; empty: those of the run."""
    target: Literal["last", "all"] = "last"
    """Which turns of the assistant in a chat are trained on: the last one, or all."""
    divergence: SpecConfig = SpecConfig(kind="forward_kl")
    """A divergence by name, with its arguments, or a function of the logprobs of student and teacher."""
    temperature: float = Field(default=1.0, gt=0)
    """Divides the logits of both models; its square multiplies the divergence."""
    sft_weight: float = Field(default=0.0, ge=0, le=1)
    """Weight of the loss of SFT on the same tokens; the divergence has the rest."""
    top_k: int | None = Field(default=None, gt=0)
    """Most likely tokens of the teacher that the divergence reads, with one class for all others. None: all tokens."""
    store: str | None = Field(default=None, min_length=1)
    """Directory with the teacher's logprobs. If it does not exist, the start of the run writes it; later runs read it
    and load no teacher. None: the teacher computes them in every step."""
    steps: int = Field(default=200, gt=0)
    """Optimizer steps."""
    batch_size: int = Field(default=64, gt=0)
    """Rows per step."""
    validate_every: int = Field(default=20, gt=0)
    """Steps between two measurements on `validation.tasks`."""
    optimizer: Optimizer = Optimizer(lr=1e-4)

    @model_validator(mode="after")
    def _stores_few_tokens(self) -> Distill:
        if self.store is not None and self.top_k is None:
            raise ValueError("store: holds the most likely tokens alone; set top_k, such as 64")
        return self


def check_distill(distill: Distill, train: Any, teacher: Any) -> None:
    """Raise ValueError for a trainer or teacher of a backend that has no distillation."""
    if train.backend != "native":
        raise ValueError(f"distill: only backend native distils (got actor_train.backend {train.backend}); choose it")
    if teacher is not None and teacher.sharded:
        raise ValueError("distill: its teacher is not sharded (got teacher.sharded); leave that out")
