"""Tests that failed run once more, by their names in the cache of the last run."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize(
    ("names", "code"),
    [
        (
            [
                "tests/benchmarks/test_metrics_price.py::test_the_price_is_a_mean_over_steps_so_that_a_slow_step_per_scrape_counts@a"
            ],
            0,
        ),
        (["tests/test_no_such_file.py::test_nothing"], 4),
        ([], 5),
    ],
    ids=["one that imports benchmarks", "a missing file", "none"],
)
def test_the_failed_tests_run_as_in_the_run_before(names: list[str], code: int, tmp_path: Path) -> None:
    cache = tmp_path / "v/cache"
    cache.mkdir(parents=True)
    (cache / "lastfailed").write_text(json.dumps(dict.fromkeys(names, True)))
    command = [sys.executable, "tests/run_again.py", str(tmp_path)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert ended.returncode == code, ended.stdout + ended.stderr
