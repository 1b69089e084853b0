"""Inputs of the sandbox benchmark: wrong programs, hostile programs and malformed responses."""

import math
import os
from typing import Any

import pytest

from benchmarks.attacks import NOT_STOPPED_BY_PLAIN, OUTSIDE, Attack, without_isolation
from benchmarks.hostile import ALL
from benchmarks.sandbox import CHANGES, CORES, NEIGHBOURS, script, two_cores, wrap
from benchmarks.strings import slowest_s
from roll.sandbox.base import ExitReason, ProgramResult
from roll.types import Task

pytestmark = pytest.mark.slow

ROW: dict[str, Any] = {
    "entry_point": "factorial",
    "reference": "def factorial(n):\r\n    return 1 if n < 2 else n * factorial(n - 1)",
    "test_setup": "import math",
    "tests": ["assert factorial(3) == math.factorial(3)", "assert factorial(1) == 1"],
}
VALUES = [True, False, 3, 0, 1.5, 1e300, -math.inf, 2j, "", "a", [], [1, 2], (), (1,), {1}, {}, {"a": 1}, None]


def execute(source: str) -> dict[str, Any]:
    names: dict[str, Any] = {}
    exec(source, names)
    return names


@pytest.mark.parametrize(("change", "result"), [("none", None), ("neighbour", 7), ("wrong_type", "6")])
def test_a_wrapped_reference_changes_only_its_return_value(change: str, result: Any):
    # 3! is 6; if the recursion used the wrapper, the neighbour would not be 7
    assert execute(wrap(ROW, change))["factorial"](3) == result


@pytest.mark.parametrize("change", CHANGES)
def test_every_value_is_changed(change: str):
    changed = execute(CHANGES[change])["_changed"]
    same = [value for value in VALUES if changed(value) == value and type(changed(value)) is type(value)]
    assert same == ([None] if change == "none" else [])


def test_the_tests_of_a_program_accept_the_reference_and_reject_wrapped_ones():
    execute(script(ROW, ROW["reference"]))
    for change in CHANGES:
        with pytest.raises(AssertionError):
            execute(script(ROW, wrap(ROW, change)))


def test_affinity_is_two_cores_inside_the_block_and_restored_after():
    before = os.sched_getaffinity(0)
    with two_cores():
        assert len(os.sched_getaffinity(0)) == min(CORES, len(before))
    assert os.sched_getaffinity(0) == before


def test_no_program_that_kills_others_or_reaches_other_machines_runs_without_isolation():
    tried = without_isolation(ALL)
    assert not OUTSIDE & tried.keys() and {"kill every process", "kill the parent"} & tried.keys() == set()
    assert len(tried) == len(ALL) - 5 and NOT_STOPPED_BY_PLAIN & tried.keys()


@pytest.mark.parametrize(
    ("printed", "left", "succeeded"), [(b"", (), False), (b"BREACH 1", (), True), (b"", (7,), True)]
)
def test_an_attack_succeeds_if_it_reports_a_breach_or_leaves_a_process(
    printed: bytes, left: tuple[int, ...], succeeded: bool
):
    outcome = ProgramResult(
        reason=ExitReason.EXITED, exit_code=0, signal=None, stdout=printed, stderr=b"", wall_s=0.1, cpu_s=0.1
    )
    assert Attack(outcome=outcome, left=left, bounded=True, in_time=True).succeeded is succeeded


def test_programs_next_to_a_neighbour_are_valid_python():
    for name, source in NEIGHBOURS.items():
        compile(source, name, "exec")


def test_a_verifier_that_raises_or_exceeds_its_range_is_reported():
    def too_much(task: Task, response: str) -> float:
        return 2.0 if response == "b" else 1.0

    assert slowest_s("exact", ["a", "c"], reward=too_much) >= 0.0
    with pytest.raises(AssertionError, match="exact"):
        slowest_s("exact", ["a", "b"], reward=too_much)
    with pytest.raises(ZeroDivisionError):
        slowest_s("exact", ["a"], reward=lambda task, response: 1 / 0)
