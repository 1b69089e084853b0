"""The examples whose worlds are files: they run, and what they log is there."""

import contextlib
import json
from pathlib import Path

import pytest

from roll.cli import main

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
SMALL = [
    "steps=1", "threads=1", "vars.turns=2", "rollout.groups_per_step=2", "rollout.group_size=2",
    "rollout.max_new_tokens=8", "validation.at_start=false", "checkpoint.every=0", "tracking.tensorboard=false",
]  # fmt: skip


@pytest.mark.parametrize(("example", "source"), [("alfworld", "household"), ("webshop", "shop")])
def test_an_example_whose_world_is_a_file_trains_and_counts_its_actions(
    example: str, source: str, tmp_path: Path
) -> None:
    with contextlib.chdir(ROOT), pytest.raises(SystemExit) as ended:
        main(["train", str(ROOT / "examples" / f"{example}.yaml"), f"directory={tmp_path}", "name=small", *SMALL])
    assert not ended.value.code
    last = json.loads((tmp_path / "small" / "metrics.jsonl").read_text().splitlines()[-1])
    assert last["step"] == 1 and last[f"env/{source}/turns"] == 2 and last[f"env/{source}/success"] == 0
    assert last[f"env/{source}/valid_actions"] == last[f"env/{source}/effective_actions"] == 0
    assert last["reward/mean"] == pytest.approx(-0.02)  # two replies that were no action, a hundredth each
