"""The whole matrix of faults, as `make test-chaos`: every kind of process, every fault, both modes."""

from pathlib import Path

import pytest

from benchmarks.chaos import MODES, ROUNDS, SETS, missing, try_faults

pytestmark = [pytest.mark.slow, pytest.mark.chaos]


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("mode", MODES)
def test_a_run_recovers_from_every_fault_without_a_violation(mode: str, name: str, tmp_path: Path) -> None:
    if reason := missing(name):
        pytest.skip(reason)
    report, violations = try_faults(tmp_path / "run", mode, name, ROUNDS)
    assert violations == [] and report.violations == 0
    assert len(report.faults) == ROUNDS * len(SETS[name].cells)
