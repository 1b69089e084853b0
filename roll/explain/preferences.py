"""Preference optimisation in words."""

from __future__ import annotations

from roll.config.preferences import Dpo
from roll.config.section import SpecConfig
from roll.explain.calls import describe_call
from roll.registry import PREFERENCE_LOSSES

_REFERENCES = {
    "precomputed": "logprobs of the initial model, computed once before the first step",
    "copy": "a frozen copy of the initial model, or the model of reference.path",
    "adapters_off": "the trained model without its adapters",
}


def preference_rows(dpo: Dpo) -> list[tuple[str, str]]:
    """What `roll dpo` would do with the file."""
    examples = "responses" if dpo.unpaired else "pairs"
    held_out = [] if dpo.held_out is None else [("held out", _data(dpo.held_out))]
    return [
        ("command", f"roll dpo: {dpo.steps} steps of {dpo.batch_size} {examples}, one optimizer step each"),
        ("data", _data(dpo.data)),
        *held_out,
        ("loss", describe_call(PREFERENCE_LOSSES, dpo.loss)),
        ("reference", _REFERENCES[dpo.reference] if dpo.reads_reference else "none: the loss reads none"),
        ("learning rate", f"{dpo.optimizer.lr:g}, {dpo.optimizer.schedule}"),
    ]


def _data(data: SpecConfig) -> str:
    return str(data.kwargs.get("path", data.kind))
