"""One run of the benchmark, and that its checks see faults."""

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.chaos import FAULTS, _same_weights, median_recovery_s, try_faults, violations
from roll.commands.chaos.outcome import ChaosPlan

pytestmark = pytest.mark.slow


def test_a_run_with_a_killed_controller_has_no_violation_and_the_checks_see_planted_ones(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    report, found = try_faults(folder, "sync", "controller", 1)
    assert found == [] and report.violations == 0, "with the weights of a run without faults"
    assert report.verification is not None
    recovery = median_recovery_s(report.faults)["controller KILL"]
    assert 0 < recovery["new_process"] <= recovery["recorded"]

    plan = ChaosPlan(kinds=FAULTS["controller"].kinds, every_s=1.0, num_faults=2, limit_s=5)
    assert list(violations(report, plan)) == ["recovered from 1 of 2 faults"]
    plan = replace(plan, num_faults=1)
    assert list(violations(replace(report, timed_out=True), plan)) == ["did not end within 5 s"]
    broken = replace(report, exit_code=3, verification=None, orphans=("a",), leaked=("b",))
    expected = ["exit code 3", "nothing to verify", "orphan: a", "shared memory: b"]
    assert list(violations(broken, plan)) == expected and broken.violations == 4

    model = folder / f"runs/short/checkpoints/step-{report.verification.steps}/model.safetensors"
    body = bytearray(model.read_bytes())
    body[-1] ^= 1
    model.write_bytes(body)
    (folder / "runs/quiet").rename(folder / "runs/earlier")
    assert not _same_weights(folder, report)
