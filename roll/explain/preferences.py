"""Training on preferences in words: preference optimisation, and the training of a reward model."""

from __future__ import annotations

from roll.config.preferences import Dpo, PreferenceSection, RewardTraining
from roll.config.section import SpecConfig
from roll.explain.calls import describe_call
from roll.registry import PREFERENCE_LOSSES, REWARD_LOSSES

_REFERENCES = {
    "precomputed": "logprobs of the initial model, computed once before the first step",
    "copy": "a frozen copy of the initial model, or the model of reference.path",
    "adapters_off": "the trained model without its adapters",
}


_FORMS = {"pairs": "pairs", "ratings": "rated responses", "labels": "responses", "steps": "responses with steps"}


def preference_rows(dpo: Dpo) -> list[tuple[str, str]]:
    """What `roll dpo` would do with the file."""
    examples = "responses" if dpo.unpaired else "pairs"
    return [
        ("command", f"roll dpo: {dpo.steps} steps of {dpo.batch_size} {examples}, one optimizer step each"),
        *_data_rows(dpo),
        ("loss", describe_call(PREFERENCE_LOSSES, dpo.loss)),
        ("reference", _REFERENCES[dpo.reference] if dpo.reads_reference else "none: the loss reads none"),
        ("learning rate", f"{dpo.optimizer.lr:g}, {dpo.optimizer.schedule}"),
    ]


def reward_training_rows(section: RewardTraining) -> list[tuple[str, str]]:
    """What `roll reward` would do with the file."""
    examples = f"{section.steps} steps of {section.batch_size} {_FORMS[section.form]}"
    read = "after every step of a response" if section.form == "steps" else "after the last token of a response"
    return [
        ("command", f"roll reward: {examples}, one optimizer step each"),
        ("starts from", section.path or "the run's model, with a score head of zeros"),
        *_data_rows(section),
        ("loss", describe_call(REWARD_LOSSES, section.loss)),
        ("score", f"read {read}; no generator is started"),
        ("learning rate", f"{section.optimizer.lr:g}, {section.optimizer.schedule}"),
    ]


def _data_rows(section: PreferenceSection) -> list[tuple[str, str]]:
    held_out = [] if section.held_out is None else [("held out", _path(section.held_out))]
    return [("data", _path(section.data)), *held_out]


def _path(data: SpecConfig) -> str:
    return str(data.kwargs.get("path", data.kind))
