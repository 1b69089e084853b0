"""A run with failing rewards, filters, two sources and sampling by difficulty dies three times and comes to its end."""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.rollout.crashes import GROUPS, STEPS
from tests.rollout.rig import GROUP_SIZE

pytestmark = pytest.mark.slow


def crashes(path: Path, mode: str, moments: range) -> list[dict[str, Any]]:
    command = [sys.executable, "-m", "tests.rollout.crashes", str(path), mode, *map(str, moments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, cwd=Path(__file__).parents[2])
    assert done.returncode == 0 and not done.stderr, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def check(runs: list[dict[str, Any]]) -> None:
    for each in runs:
        assert each["codes"][-1] == 0, "it comes back"
        assert each["steps"] == list(range(1, STEPS + 1))
        assert len(set(each["groups"])) == len(each["groups"]) == STEPS * GROUPS, "no group is trained on twice"
        assert each["trajectories"] == STEPS * GROUPS * GROUP_SIZE, "the record of no group is short"
        assert each["left"] == [], "no progress of a trained group is left"


@pytest.mark.parametrize("mode", ["synchronous", "asynchronous", "redundant"])
def test_a_run_with_failures_filters_and_difficulty_survives_crashes(mode: str, tmp_path: Path) -> None:
    runs = crashes(tmp_path, mode, range(100, 200, 25))
    check(runs)
    assert len(runs) == 5 and max(len(each["codes"]) for each in runs) > 2
    if mode == "synchronous":
        assert len({each["weights"] for each in runs}) == 1, "the weights are those of the unbroken run"


@pytest.mark.parametrize("moments", [range(60, 360, 75)])
def test_with_all_levers_on_every_invariant_survives_crashes(moments: range, tmp_path: Path) -> None:
    """Reuse, redundancy, a priority and a controller, against stragglers, failures, filters and crashes."""
    runs = crashes(tmp_path, "everything", moments)
    assert max(len(each["codes"]) for each in runs) > 2
    for each in runs:
        assert each["codes"][-1] == 0 and each["violations"] == []
        assert each["steps"] == list(range(1, 15))
        assert max(Counter(each["groups"]).values()) == 2 and len(each["groups"]) == 14 * GROUPS


@pytest.mark.sweep
@pytest.mark.parametrize("mode", ["synchronous", "asynchronous", "redundant"])
def test_a_run_survives_crashes_from_its_first_to_its_last_event(mode: str, tmp_path: Path) -> None:
    """`roll bench crash_points` kills a run at every event."""
    runs = crashes(tmp_path, mode, range(40, 230, 12))
    check(runs)
    assert mode != "synchronous" or len({each["weights"] for each in runs}) == 1
