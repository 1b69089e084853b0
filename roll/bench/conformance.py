"""Whether everything of ours keeps the laws of `roll.conformance`, and the native trainer with it."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Iterator

import torch
import typer

from roll.bench.result import Result
from roll.config.schema import Optimizer, Shape
from roll.conformance.ours import check_all
from roll.conformance.trainers import check_trainer
from roll.engines.decoder import Decoder
from roll.engines.train.native import NativeTrainer, Settings
from roll.types import Sampling
from roll.weights.huggingface import config_of
from roll.weights.inline import Shared

VOCAB = 40
_SGD = Optimizer(kind="sgd", lr=1.0, clip_norm=None)


def run() -> Result:
    """How many checks found nothing wrong, against how many there are; faults are in the details."""
    found = dict(_checks())
    for label, faults in found.items():
        typer.echo(f"{label}: {'; '.join(faults) if faults else 'ok'}")
    return Result(
        name="conformance",
        unit="checks without a fault",
        higher_is_better=True,
        ours=float(sum(not faults for faults in found.values())),
        bound=float(len(found)),
        details={"faults": [fault for faults in found.values() for fault in faults]},
    )


def _checks() -> Iterator[tuple[str, list[str]]]:
    yield from check_all()
    yield "trainer native", asyncio.run(check_trainer(native(), vocab=VOCAB))


class native:  # noqa: N801
    """placeholder"""
