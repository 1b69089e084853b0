"""Conformance of every loss, advantage and trainer of the package, by the checks of `roll.conformance`."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Iterable, Iterator

import torch
import typer

from benchmarks.built_ins import check_all
from benchmarks.result import Result
from roll.config.schema import Optimizer, Shape
from roll.conformance.trainers import Factory, check_trainer
from roll.engines.base import Trainer
from roll.engines.native.decoder import Decoder
from roll.engines.native.trainer import NativeTrainer, NativeTrainerSettings
from roll.types import Sampling
from roll.weights.channel import Shared
from roll.weights.huggingface import config_of

VOCAB = 40


def run() -> Result:
    """Number of checks without a fault, against the number of checks."""
    return count_passes(_checks())


def count_passes(checks: Iterable[tuple[str, list[str]]]) -> Result:
    """Run the checks and print each as it ends; the details have all faults."""
    faults_by_check: dict[str, list[str]] = {}
    for label, faults in checks:
        faults_by_check[label] = faults
        typer.echo(f"{label}: {'; '.join(faults) if faults else 'ok'}")
    return Result(
        name="conformance",
        unit="checks without a fault",
        higher_is_better=True,
        ours=float(sum(not faults for faults in faults_by_check.values())),
        bound=float(len(faults_by_check)),
        details={"faults": [fault for faults in faults_by_check.values() for fault in faults]},
    )


def _checks() -> Iterator[tuple[str, list[str]]]:
    yield from check_all()
    yield "trainer native", asyncio.run(check_trainer(native(), vocab=VOCAB, make_clipped=native(max_grad_norm=1.0)))


def native(max_grad_norm: float | None = None) -> Factory:
    """A factory of trainers of one small random model, initialised widely so that its logits are far from uniform."""
    shape = Shape(hidden=32, layers=2, mlp=64)
    config = config_of(shape, vocab_size=VOCAB, eos_id=0, pad_id=1, bos_id=2)
    config.initializer_range = 0.3
    decoder = Decoder(config)
    decoder.initialise(0)

    def make(tokens_per_microbatch: int) -> Trainer:
        settings = NativeTrainerSettings(
            optimizer=Optimizer(kind="sgd", lr=1.0, max_grad_norm=max_grad_norm),
            total_steps=100,
            tokens_per_microbatch=tokens_per_microbatch,
            sampling=Sampling(),
            device=torch.device("cpu"),
        )
        return NativeTrainer(copy.deepcopy(decoder), settings, Shared())

    return make
