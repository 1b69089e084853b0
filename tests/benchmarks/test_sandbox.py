"""What is put to the sandbox in the benchmark: wrong programs that are wrong, and broken replies."""

import math
import os
from typing import Any

import pytest

from benchmarks.attacks import NOT_STOPPED_BY_PLAIN, OUTSIDE, Attack, without_isolation
from benchmarks.hostile import ALL
from benchmarks.sandbox import CHANGES, CORES, NEIGHBOURS, script, two_cores, wrapped
from benchmarks.strings import slowest_s
from roll.sandbox.base import Ended, Outcome
from roll.types import Task

ROW: dict[str, Any] = {
    "entry_point": "factorial",
    "reference": "def factorial(n):\r\n    return 1 if n < 2 else n * factorial(n - 1)",
    "test_setup": "import math",
    "tests": ["assert factorial(3) == math.factorial(3)", "assert factorial(1) == 1"],
}
VALUES = [True, False, 3, 0, 1.5, 1e300, -math.inf, 2j, "", "a", [], [1, 2], (), (1,), {1}, {}, {"a": 1}, None]


def ran(source: str) -> dict[str, Any]:
    names: dict[str, Any] = {}
    exec(source, names)
    return names


@pytest.mark.parametrize(("change", "found"), [("none", None), ("neighbour", 7), ("wrong_type", "6")])
def test_a_wrapped_reference_changes_what_it_returns_and_not_what_it_computes(change: str, found: Any):
    # 3! is 6; had the recursion gone through the wrapper, the neighbour would not be 7
    assert ran(wrapped(ROW, change))["factorial"](3) == found


@pytest.mark.parametrize("change", CHANGES)
def test_no_value_is_left_as_it_was(change: str):
    changed = ran(CHANGES[change])["_changed"]
    same = [value for value in VALUES if changed(value) == value and type(changed(value)) is type(value)]
    assert same == ([None] if change == "none" else [])


def test_the_tests_of_a_program_tell_the_reference_from_the_wrapped_ones():
    ran(script(ROW, ROW["reference"]))
    for change in CHANGES:
        with pytest.raises(AssertionError):
            ran(script(ROW, wrapped(ROW, change)))


def test_two_cores_are_taken_and_the_others_given_back():
    before = os.sched_getaffinity(0)
    with two_cores():
        assert len(os.sched_getaffinity(0)) == min(CORES, len(before))
    assert os.sched_getaffinity(0) == before


def test_nothing_that_kills_others_or_leaves_the_machine_is_tried_without_isolation():
    tried = without_isolation(ALL)
    assert not OUTSIDE & tried.keys() and {"kill everyone", "kill the parent"} & tried.keys() == set()
    assert len(tried) == len(ALL) - 5 and NOT_STOPPED_BY_PLAIN & tried.keys()


@pytest.mark.parametrize(
    ("printed", "left", "succeeded"), [(b"", (), False), (b"BREACH 1", (), True), (b"", (7,), True)]
)
def test_an_attack_has_succeeded_if_it_says_so_or_lives_on(printed: bytes, left: tuple[int, ...], succeeded: bool):
    outcome = Outcome(ended=Ended.EXITED, exit_code=0, signal=None, stdout=printed, stderr=b"", wall_s=0.1)
    assert Attack(outcome=outcome, left=left, bounded=True).succeeded is succeeded


def test_what_runs_beside_a_neighbour_is_python():
    for name, source in NEIGHBOURS.items():
        compile(source, name, "exec")


def test_a_verifier_that_raises_or_leaves_its_bounds_is_found():
    def too_much(task: Task, reply: str) -> float:
        return 2.0 if reply == "b" else 1.0

    assert slowest_s("exact", ["a", "c"], reward=too_much) >= 0.0
    with pytest.raises(AssertionError, match="exact"):
        slowest_s("exact", ["a", "b"], reward=too_much)
    with pytest.raises(ZeroDivisionError):
        slowest_s("exact", ["a"], reward=lambda task, reply: 1 / 0)
