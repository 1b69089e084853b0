"""The section `dpo`: preference optimisation on pairs of responses, or on single ones with a label."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from roll.config.roles import Optimizer
from roll.config.section import Section, SpecConfig

UNPAIRED = frozenset({"kto"})
"""Losses of single responses with a label; all others compare two responses."""
REFERENCE_FREE = frozenset({"orpo", "simpo"})
"""Losses that read no reference."""


def _by_ending(value: Any) -> Any:
    """A path that ends like JSON lines, as a dataset of that kind."""
    is_file = isinstance(value, str) and value.endswith((".jsonl", ".jsonl.gz"))
    return {"kind": "jsonl", "path": value} if is_file else value


class Ratings(Section):
    """The range of ratings in preference data."""

    lowest: float
    """A lower rating is an error."""
    highest: float
    """A higher rating is an error."""
    desirable: float
    """A single response with at least this rating is desirable; losses of pairs do not read it."""

    @model_validator(mode="after")
    def _in_order(self) -> Ratings:
        if not self.lowest < self.desirable <= self.highest:
            raise ValueError(
                f"desirable ({self.desirable:g}) must be above lowest ({self.lowest:g}) and at most highest "
                f"({self.highest:g}); correct them"
            )
        return self


class Dpo(Section):
    """Preference optimisation by `roll dpo`."""

    data: Annotated[SpecConfig, BeforeValidator(_by_ending)]
    """A .jsonl file, a preference dataset by name, or a function that returns preferences."""
    held_out: Annotated[SpecConfig | None, BeforeValidator(_by_ending)] = None
    """The same for preferences on which accuracy is measured; None: only on `validation.tasks`."""
    loss: SpecConfig = SpecConfig(kind="dpo")
    """A preference loss by name, with its arguments, or a function of pairs."""
    reference: Literal["precomputed", "copy", "adapters_off"] = "precomputed"
    """Logprobs of the initial model: computed once before the first step and saved in the run directory, by a frozen
    copy in every step, or by the trained model without its adapters."""
    steps: int = Field(default=200, gt=0)
    """Optimizer steps."""
    batch_size: int = Field(default=64, gt=0)
    """Pairs per step; single responses for a loss without pairs."""
    validate_every: int = Field(default=20, gt=0)
    """Steps between two measurements on held-out preferences and `validation.tasks`."""
    faulty_rows: Literal["error", "drop"] = "error"
    """Rows with equal, empty or too long responses, or equal ratings: end the run, or are left out and listed."""
    ratings: Ratings | None = None
    """The range of ratings in the data; None: it has none."""
    optimizer: Optimizer = Optimizer(lr=1e-6)

    @property
    def unpaired(self) -> bool:
        """Whether the loss reads single responses."""
        return self.loss.kind in UNPAIRED

    @property
    def reads_reference(self) -> bool:
        """Whether the loss needs logprobs of the reference."""
        return self.loss.kind not in REFERENCE_FREE

    @model_validator(mode="after")
    def _baseline_needs_others(self) -> Dpo:
        if self.unpaired and self.batch_size < 2:
            raise ValueError(
                f"batch_size ({self.batch_size}): {self.loss.kind} compares a response with others of its step; "
                "make it 2 or more"
            )
        return self


def check_dpo(dpo: Dpo, *, adapters: bool, reference_path: str | None) -> None:
    """Raise ValueError for a reference that the run does not have."""
    if not dpo.reads_reference:
        return
    if dpo.reference == "adapters_off" and not adapters:
        raise ValueError("dpo.reference: adapters_off, and the run has no actor_train.lora; set precomputed or copy")
    if dpo.reference != "copy" and reference_path is not None:
        raise ValueError(f"dpo.reference: {dpo.reference} is the initial model; set copy, or remove reference.path")
