"""Correct trainers pass the kit."""

import asyncio

import numpy as np
import pytest
import torch

from roll.algorithms.recipe import Objective
from roll.config.schema import Optimizer
from roll.conformance.trainers import check_gradient, check_trainer
from roll.engines.native.decoder import Decoder
from roll.engines.native.trainer import NativeTrainer
from roll.types import Spec
from tests.conformance.bigram import VOCAB, Bigram
from tests.engines.models import config, small, trainer, twin

pytestmark = pytest.mark.slow

DECODER = small()
SCORED = Decoder(config(), scored=True)
SCORED.initialise(0)
assert SCORED.score is not None
SCORED.score.data.normal_(0, 0.3, generator=torch.Generator().manual_seed(0))
SGD = Optimizer(kind="sgd", lr=1.0, max_grad_norm=None)


def native(budget: int) -> NativeTrainer:
    return trainer(twin(DECODER), optimizer=SGD, budget=budget)


def clipped(budget: int) -> NativeTrainer:
    return trainer(
        twin(DECODER), optimizer=SGD.model_copy(update={"max_grad_norm": 1.0}), budget=budget, total_steps=100
    )


def test_the_smallest_trainer_passes() -> None:
    assert asyncio.run(check_trainer(Bigram, vocab=VOCAB, make_clipped=lambda budget: Bigram(budget, 1.0))) == []


def test_the_native_trainer_passes() -> None:
    assert asyncio.run(check_trainer(native, vocab=40, make_clipped=clipped)) == []


@pytest.mark.parametrize("seed", [1, 7])
def test_the_native_trainer_passes_on_other_batches_with_a_correction(seed: int) -> None:
    objective = Objective(loss=Spec("cispo"), correction=Spec("truncate", {"level": "turn"}))
    assert asyncio.run(check_gradient(native, objective, vocab=40, seed=seed)) == []


def critic(budget: int) -> NativeTrainer:
    return trainer(twin(SCORED), optimizer=SGD, budget=budget)


@pytest.mark.parametrize("arguments", [{}, {"clip": 0.5}])
def test_the_native_critic_passes(arguments: dict[str, float]) -> None:
    objective = Objective(loss=Spec("squared_value", arguments))
    assert asyncio.run(check_gradient(critic, objective, vocab=40)) == []


def test_unequal_trainers_are_detected() -> None:
    noise = np.random.default_rng(0)

    def make(budget: int) -> Bigram:
        fresh = Bigram(budget)
        fresh.table.data += float(noise.normal())  # the gradient of a softmax does not see this
        fresh.table.data[0, 0] += float(noise.normal())
        return fresh

    (fault,) = asyncio.run(check_gradient(make, Objective(loss=Spec("policy_gradient")), vocab=VOCAB))
    assert "two equal trainers differ" in fault


def test_a_trainer_that_does_not_move_is_detected() -> None:
    class Still(Bigram):
        def divisor(self, num_parts: int) -> float:
            return float("inf")

    (fault,) = asyncio.run(check_gradient(Still, Objective(loss=Spec("clipped")), vocab=VOCAB))
    assert fault == "clipped: the gradient is 0 or not finite"
