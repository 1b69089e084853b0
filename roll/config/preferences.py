"""The sections `dpo` and `reward_training`: training on pairs of responses, or on single ones with a label."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, model_validator

from roll.config.roles import Optimizer
from roll.config.section import Section, SpecConfig

UNPAIRED = frozenset({"kto"})
"""Losses of single responses with a label; all others compare two responses."""
REFERENCE_FREE = frozenset({"orpo", "simpo"})
"""Losses that read no reference."""
FORM_OF: dict[str, Literal["pairs", "ratings", "labels", "steps"]] = {
    "bradley_terry": "pairs",
    "regression": "ratings",
    "classification": "labels",
    "process": "steps",
}
"""What each loss of a reward model reads; a function of your own reads pairs."""


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
    desirable: float | None = None
    """A single response with at least this rating is desirable; read only where ratings become labels."""

    @model_validator(mode="after")
    def _in_order(self) -> Ratings:
        if not self.lowest < self.highest:
            raise ValueError(f"lowest ({self.lowest:g}) must be below highest ({self.highest:g}); correct them")
        if self.desirable is not None and not self.lowest < self.desirable <= self.highest:
            raise ValueError(
                f"desirable ({self.desirable:g}) must be above lowest ({self.lowest:g}) and at most highest "
                f"({self.highest:g}); correct them"
            )
        return self


class PreferenceSection(Section):
    """Keys of training on preferences."""

    key: ClassVar[str]
    """Key of the section in a run file."""
    data: Annotated[SpecConfig, BeforeValidator(_by_ending)]
    """A .jsonl file, a preference dataset by name, or a function that returns preferences."""
    held_out: Annotated[SpecConfig | None, BeforeValidator(_by_ending)] = None
    """The same for preferences on which accuracy is measured; None: only on `validation.tasks`, if at all."""
    steps: int = Field(default=200, gt=0)
    """Optimizer steps."""
    batch_size: int = Field(default=64, gt=0)
    """Pairs per step; single responses for a loss without pairs."""
    validate_every: int = Field(default=20, gt=0)
    """Steps between two measurements on held-out data."""
    faulty_rows: Literal["error", "drop"] = "error"
    """Rows with equal, empty or too long responses, or equal ratings: end the run, or are left out and listed."""
    ratings: Ratings | None = None
    """The range of ratings in the data; None: it has none."""


class Dpo(PreferenceSection):
    """Preference optimisation by `roll dpo`."""

    key = "dpo"
    loss: SpecConfig = SpecConfig(kind="dpo")
    """A preference loss by name, with its arguments, or a function of pairs."""
    reference: Literal["precomputed", "copy", "adapters_off"] = "precomputed"
    """Logprobs of the initial model: computed once before the first step and saved in the run directory, by a frozen
    copy in every step, or by the trained model without its adapters."""
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


class RewardTraining(PreferenceSection):
    """Training of a reward model by `roll reward`."""

    key = "reward_training"
    path: str | None = None
    """A model directory to start from, with or without a score head; None: the model of the run, with a new head."""
    loss: SpecConfig = SpecConfig(kind="bradley_terry")
    """bradley_terry, regression, classification or process, with its arguments, or a function of pairs."""
    step_separator: str = Field(default="\n", min_length=1)
    """Text that ends each step of a response but the last; read by the loss `process`."""
    optimizer: Optimizer = Optimizer(lr=1e-5)

    @property
    def form(self) -> Literal["pairs", "ratings", "labels", "steps"]:
        """What an example of the loss is."""
        return FORM_OF.get(self.loss.kind, "pairs")


def check_reward_training(section: RewardTraining, *, adapters: bool) -> None:
    """Raise ValueError for settings that the training of a reward model cannot have."""
    if adapters:
        raise ValueError("reward_training: a model with a score head has no adapters; remove actor_train.lora")
    if section.form == "ratings" and section.ratings is None:
        raise ValueError(
            "reward_training.loss: regression needs the range of ratings; add ratings: {lowest: 1, highest: 5}"
        )
