"""Distillation in words."""

from __future__ import annotations

from roll.config.distillation import Distill
from roll.config.schema import Run
from roll.explain.calls import describe_call
from roll.registry import DIVERGENCES


def distillation_rows(run: Run, distill: Distill) -> list[tuple[str, str]]:
    """What `roll distill` would do with the file."""
    names = ", ".join(source.name for source in distill.tasks or run.tasks)
    return [
        ("command", f"roll distill: {distill.steps} steps of {distill.batch_size} rows, one optimizer step each"),
        ("rows", f"answers of {names}; every row once per epoch, in a new order; shares of sources have no effect"),
        ("held out", "answers of validation.tasks" if run.validation.tasks else "none: no validation.tasks"),
        ("teacher", _teacher(run, distill)),
        ("divergence", describe_call(DIVERGENCES, distill.divergence)),
        ("loss", _loss(distill)),
        ("learning rate", f"{distill.optimizer.lr:g}, {distill.optimizer.schedule}"),
    ]


def _teacher(run: Run, distill: Distill) -> str:
    covered = "all tokens" if distill.top_k is None else f"its {distill.top_k} likeliest tokens, and all others as one"
    model = "no model in the file" if run.teacher is None else f"frozen, with weights of {run.teacher.path}"
    if distill.store is None:
        return f"{model}; {covered}, computed in every step"
    return f"{covered}, read from {distill.store}; if that does not exist, written first by the model ({model})"


def _loss(distill: Distill) -> str:
    square = "" if distill.temperature == 1 else f"{distill.temperature:g}^2 x "
    divergence = f"{square}divergence at temperature {distill.temperature:g}"
    if not distill.sft_weight:
        return f"{divergence}, mean over tokens"
    return f"{1 - distill.sft_weight:g} x {divergence} + {distill.sft_weight:g} x SFT loss, mean over tokens"
