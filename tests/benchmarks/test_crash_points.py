"""One point of the benchmark, and that its checks see faults."""

import json
import shutil
from pathlib import Path

import pytest

from benchmarks.crash_points import train, violations, weights

pytestmark = [pytest.mark.slow, pytest.mark.sweep]


def test_a_killed_run_continues_without_a_violation_and_the_checks_see_planted_ones(tmp_path: Path) -> None:
    code, num_points = train(tmp_path / "whole", "synchronous", None)
    assert code == 0 and num_points > 50 and not list(violations(tmp_path / "whole", code, None))
    expected = weights(tmp_path / "whole")
    assert train(tmp_path / "killed", "synchronous", num_points // 2)[0] == 9, "it was killed"
    assert not list(violations(tmp_path / "killed", train(tmp_path / "killed", "synchronous", None)[0], expected))

    metrics = tmp_path / "killed/runs/short/metrics.jsonl"
    lines = metrics.read_text(encoding="utf-8").splitlines(keepends=True)
    metrics.write_text("".join(line for line in lines if json.loads(line)["step"] != 2), encoding="utf-8")
    shutil.copy(tmp_path / "whole/runs/short/config.yaml", tmp_path / "killed/runs/short/model/model.safetensors")
    assert list(violations(tmp_path / "killed", 0, expected)) == [
        "other weights than those of the unbroken run",
        "metrics have one line per step: step 3 follows step 1",
    ]
    assert next(violations(tmp_path / "killed", 3, None)).startswith("exit code 3")
