"""A policy that plays both sides of a game gets better at it than chance."""

from pathlib import Path

import pytest
import torch

from roll.commands import train as commands
from roll.config.load import load
from roll.preflight import preflight
from roll.tracking.sinks import read_lines

pytestmark = [pytest.mark.learns, pytest.mark.sweep]
EXAMPLE = Path(__file__).parents[2] / "examples" / "tic_tac_toe.yaml"


def test_self_play_loses_less_against_chance(tmp_path: Path) -> None:
    small = ["threads=1", "steps=12", "rollout.groups_per_step=24", "validation.every=0", "validation.tasks.0.limit=80"]
    small += ["actor_train.optimizer.lr=3e-3", "actor_train.optimizer.schedule=constant"]
    loaded = load(EXAMPLE, [f"directory={tmp_path}", "name=game", "tracking.tensorboard=false", *small])
    preflight(loaded)
    try:
        commands.train(loaded, overwrite=False)
    finally:
        torch.use_deterministic_algorithms(False)
    found = [line for line in read_lines(tmp_path / "game" / "metrics.jsonl") if "validation/reward" in line]
    first, last = (line["validation/accuracy"] - line["validation/reward"] for line in (found[0], found[-1]))
    assert first > 0.9 and last < first - 0.2, f"lost {first} of the games before and {last} after"
