"""A controller that dies at any moment and is resumed: nothing is trained twice, nothing admitted is forgotten."""

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.rollout.killed import GROUPS, STEPS
from tests.rollout.rig import GROUP_SIZE
from tests.rollout.test_scheduler import order

pytestmark = pytest.mark.slow

MOMENTS = (80, 100, 120)
"""Events after the first checkpoint, and before the end."""


def deaths(path: Path, staleness: float, redundant: int) -> list[dict[str, Any]]:
    command = [sys.executable, "-m", "tests.rollout.killed", str(path), str(staleness), str(redundant)]
    done = subprocess.run(
        [*command, *map(str, MOMENTS)], capture_output=True, text=True, timeout=300, cwd=Path(__file__).parents[2]
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.sweep(keep=1)
@pytest.mark.parametrize(("staleness", "redundant"), [(0.5, 0), (2, 0), (1, 2)])
def test_a_run_that_dies_twice_continues_with_its_saved_work(staleness: float, redundant: int, tmp_path: Path) -> None:
    found = deaths(tmp_path, staleness, redundant)
    assert [each["moment"] for each in found] == list(MOMENTS)
    for each in found:
        assert each["exits"][0] == 9 and each["exits"][-1] == 0, "it was killed, and it came to its end"
        assert each["steps"] == list(range(1, STEPS + 1))
        assert len(set(each["groups"])) == len(each["groups"]) == STEPS * GROUPS, "no group is trained on twice"
        assert each["trajectories"] == STEPS * GROUPS * GROUP_SIZE, "no group is trained on incomplete"
        assert each["broken"] == 0, "partial replies go on exactly where they stopped"
        assert each["oldest"] <= math.ceil(staleness)
        if redundant == 0:
            assert each["groups"] == sorted(each["groups"])
            assert each["tasks"] == order(STEPS * GROUPS), "the data comes in the order of an unbroken run"
        assert sorted(each["tasks"]) == sorted(set(each["tasks"])), "no task is skipped for another"
    assert any(each["carried"]["whole"] > 0 for each in found), "whole attempts were carried over"
    assert staleness < 2 or any(each["carried"]["tokens"] > 0 for each in found), "and tokens of others"
