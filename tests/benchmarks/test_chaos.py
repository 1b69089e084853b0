"""One run of the benchmark, that its checks see faults, a soak, and the page."""

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from benchmarks.chaos import (
    FILE,
    ObservedRun,
    _same_weights,
    median_recovery_s,
    observe,
    read,
    save,
    try_faults,
    violations,
)
from benchmarks.chaos_soak import soak
from benchmarks.faults_page import pages
from roll.commands.chaos.outcome import ChaosPlan

pytestmark = pytest.mark.slow


def test_a_run_whose_controller_fails_has_no_violation_and_the_checks_see_planted_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "run"
    report, found = try_faults(folder, "sync", "controller", 1)
    assert found == [] and report.violations == 0, "with the weights of a run without faults"
    assert report.verification is not None
    assert [(each.fault, each.recovery) for each in report.faults[:3]] == [
        (fault, "ControllerRestarted") for fault in ("KILL", "STOP", "exception")
    ]
    killed, stopped, raised, slow = (each.cause for each in report.faults)
    assert "was killed by SIGKILL" in killed and "gave no heartbeat for 20 s" in stopped
    assert raised.endswith("RuntimeError: fault 3 of roll chaos") and slow == "slow for 5 s"
    observed = observe("sync", "controller", report, found)
    recovery = median_recovery_s(observed.faults)["controller KILL"]
    assert 0 < recovery["new_process"] <= recovery["recorded"] and observed.compared

    plan = ChaosPlan(kinds=("controller",), every_s=1.0, num_faults=5, in_turn=True, limit_s=5)
    assert list(violations(report, plan)) == ["recovered from 4 of 5 faults"]
    plan = replace(plan, num_faults=4)
    assert list(violations(replace(report, timed_out=True), plan)) == ["did not end within 5 s"]
    broken = replace(report, exit_code=3, verification=None, orphans=("a",), leaked=("b",))
    expected = ["exit code 3", "nothing to verify", "orphan: a", "shared memory: b"]
    assert list(violations(broken, plan)) == expected and broken.violations == 4
    other = replace(report, faults=(*report.faults[1:], replace(report.faults[0], kind="trainer", cause="x")))
    assert list(violations(other, plan)) == ["KILL of trainer ended in ControllerRestarted: x"]

    _check_page(observed, tmp_path, monkeypatch)
    model = folder / f"runs/short/checkpoints/step-{report.verification.steps}/model.safetensors"
    body = bytearray(model.read_bytes())
    body[-1] ^= 1
    model.write_bytes(body)
    (folder / "runs/quiet").rename(folder / "runs/earlier")
    assert not _same_weights(folder, report)


def _check_page(observed: ObservedRun, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is recorded is on the page, and what is not says so."""
    monkeypatch.setenv("ROLL_RESULTS", str(folder))
    save({"sync controller": observed})
    save({"async controller": msgspec.structs.replace(observed, faults=[], violations=["lost"], compared=False)})
    assert read(folder / FILE)["sync controller"] == observed, "earlier runs stay"
    page = pages(folder)["faults.md"]
    assert "| controller | KILL | the supervisor |" in page and "- async controller: lost" in page
    assert "| agent | KILL | | | | not run yet | | 0 |" in page
    assert "| raylet | exception | | | | impossible: a raylet runs no Python | | |" in page


def test_a_soak_of_random_faults_ends_without_a_violation(tmp_path: Path) -> None:
    settings = ("rewards.workers=2", "rewards.timeout_s=4", "checkpoint.every=1")
    report, found = soak(tmp_path / "soak", ("reward",), settings, 3, every_s=1.0)
    assert found == [] and len(report.faults) == 3
