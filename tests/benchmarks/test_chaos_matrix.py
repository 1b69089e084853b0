"""The whole matrix of faults, as `make test-chaos`: every kind of process, every fault, both modes.

If `ROLL_RESULTS` names a folder, the observed recoveries are written there, as by `roll bench chaos`.
"""

import os
from pathlib import Path

import pytest

from benchmarks.chaos import MODES, ROUNDS, SETS, missing, observe, save, try_faults
from benchmarks.gpu_results import RESULTS

pytestmark = [pytest.mark.slow, pytest.mark.chaos]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", SETS)  # the longest sets first, one of each mode at a time
def test_a_run_recovers_from_every_fault_without_a_violation(mode: str, name: str, tmp_path: Path) -> None:
    if reason := missing(name):
        pytest.skip(reason)
    report, violations = try_faults(tmp_path / "run", mode, name, ROUNDS)
    if RESULTS in os.environ:
        save({f"{mode} {name}": observe(mode, name, report, violations)})
    assert violations == [] and report.violations == 0
    assert len(report.faults) == ROUNDS * len(SETS[name].cells)
