"""The demo's warm start learns with DeepSpeed's trainer on two ranks."""

from pathlib import Path

import pytest

from roll.tracking.sinks import read_lines
from tests.cli.conftest import call
from tests.trainers_optional.conftest import NEEDS_DEEPSPEED

pytestmark = [NEEDS_DEEPSPEED, pytest.mark.slow, pytest.mark.ray, pytest.mark.learns, pytest.mark.sweep]

DEMO = Path(__file__).parents[2] / "examples/arithmetic.yaml"


def test_the_demo_learns_on_two_ranks(tmp_path: Path) -> None:
    """In a third of the demo's steps; the schedule of the learning rate is that of the whole demo."""
    warm = call(tmp_path, "sft", str(DEMO), f"directory={tmp_path}", "threads=1")
    assert warm.code == 0, warm
    ranks = ("executor=ray", "actor_train.backend=deepspeed", "actor_train.workers=2", "threads=1")
    model = f"model={{path: {tmp_path}/arithmetic-sft/model}}"
    trained = call(tmp_path, "train", str(DEMO), f"directory={tmp_path}", model, *ranks, "steps=45", "ray.cpu_slots=4")
    assert trained.code == 0, trained
    lines = read_lines(tmp_path / "arithmetic/metrics.jsonl")
    accuracy = [line["validation/accuracy"] for line in lines if "validation/accuracy" in line]
    assert accuracy[-1] >= accuracy[0] + 0.3, accuracy
