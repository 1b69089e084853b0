"""DeepSpeed's trainer on two ranks compared with one process: gradients, losses, digests, checkpoints."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from roll.algorithms.recipe import Objective
from roll.config.schema import Optimizer
from roll.conformance.trainers import OBJECTIVES, check_trainer
from roll.engines.native.decoder import Decoder
from roll.types import Spec
from roll.weights.digest import digest
from roll.weights.huggingface import read_tensors
from tests.engines import contract
from tests.engines.fsdp.test_trainer import CLIPPED, batch, check_same_gradient
from tests.engines.fsdp_team import SGD, Team, TrainerSpec, alone, written
from tests.engines.models import config, prompts, small
from tests.trainers_optional.conftest import NEEDS_DEEPSPEED

pytestmark = [NEEDS_DEEPSPEED, pytest.mark.slow, pytest.mark.xdist_group("fsdp")]

STAGES: dict[str, dict[str, Any]] = {
    "stage 1": {"zero_stage": 1},
    "stage 2": {"zero_stage": 2},
    "stage 3": {"zero_stage": 3},
    "stage 2 offload": {"zero_stage": 2, "offload_optimizer": True},
    "stage 3 offload": {"zero_stage": 3, "offload_optimizer": True, "offload": True},
}


@pytest.mark.parametrize("stage", STAGES)
def test_the_gradient_is_that_of_one_process(stage: str, team: Team, tmp_path: Path) -> None:
    decoder = small("llama", tie_word_embeddings=False) if stage == "stage 1" else small()
    spec = TrainerSpec(path=written(decoder, tmp_path / "model"), optimizer=SGD, budget=90, **STAGES[stage])
    check_same_gradient(team, spec, decoder, batch(), CLIPPED)
