"""The tests of a task, read without running them: tests that run nothing, and names that a response may define."""

import re

import pytest

from roll.rewards.code.suite import read_suite

CHECK = "def check(candidate):\n    assert candidate(1) == 2"


def fault_of(tests: str | list[str], entry: str = "", setup: str = "") -> str:
    script = isinstance(tests, str)
    return read_suite(setup, (tests,) if isinstance(tests, str) else tuple(tests), entry, script).fault


@pytest.mark.parametrize(
    ("tests", "why"),
    [
        ("", "run nothing"),
        ("# assert f(1) == 2", "no statement that checks"),
        ('"""Tests."""\nimport math\nMETADATA = {"author": "x"}', "no statement that checks"),
        ("def run_tests():\n    assert f(1) == 2", "nothing calls 'run_tests'"),
        (CHECK, "no 'entry_point'"),
        ("assert 1 == 1", "no name that a response could define"),
        (["x = 3", "y = f(x)"], "only prepares"),
        (["def test_f():\n    assert f(1) == 2"], "only prepares"),
        (["assert f(1 == 2"], "not Python"),
        (["assert np.allclose(f(1), 2)"], "'np', which they do not import"),
        (["import pickle\nassert pickle.loads(f(1)) == 2"], "'pickle.loads', which would run"),
        (["assert eval(f('1 + 1')) == 2"], "'eval', which would run"),
        ("def check(candidate):\n    assert eval(candidate(1)) == 2\ncheck(f)", "'eval', which would run"),
    ],
)
def test_tests_that_cannot_judge_a_response_are_refused(tests: str | list[str], why: str) -> None:
    assert re.search(why, fault_of(tests))


@pytest.mark.parametrize(
    "tests",
    [
        "assert f(1) == 2",
        "if f(1) != 2:\n    raise ValueError",
        "result = f(1)\nif result != 2: raise SystemExit(1)",
        "outcome = compare(f(1), 2)",
        "for x in range(3):\n    assert f(x) == x + 1",
        "def run_tests():\n    assert f(1) == 2\nrun_tests()",
        "def run_tests():\n    assert f(1) == 2\nif __name__ == '__main__':\n    run_tests()",
        "def apply(f, x):\n    return f(x)\nassert apply(f, 1) == 2",
        "def test_f():\n    assert f(1) == 2",
        "import unittest\nclass T(unittest.TestCase):\n    def test_f(self):\n        self.assertEqual(f(1), 2)",
        "from unittest import *\nclass T(TestCase):\n    def test_f(self):\n        self.assertEqual(f(1), 2)",
        "from solution import *\nassert f(1) == 2",
        "import solution\nassert solution.f(1) == 2",
        "assert globals()['f'](1) == 2",
        f"{CHECK}\ncheck(f)",
        ["import math", "assert math.isclose(f(1), 2)"],
        ["x = f(1)", "assert x == 2"],
        ["assert eval('f(1)') == 2", "for text in ['f(1)']: assert eval(text) == 2"],
        ["import re\nassert re.compile(f(1)).match('a')"],
        ["with open('x', 'w') as f: pass", "assert g(1) == 2"],
        ["try:\n    f(-1)\nexcept ValueError:\n    pass\nelse:\n    raise AssertionError"],
    ],
)
def test_tests_that_check_in_any_way_are_accepted(tests: str | list[str]) -> None:
    assert fault_of(tests) == ""


def test_check_is_called_with_the_entry_point() -> None:
    assert fault_of(CHECK, entry="f") == ""


def test_a_response_defines_only_names_that_the_tests_read_and_do_not_define() -> None:
    suite = read_suite(
        "import math", ("def same(a, b): return a == b\nassert same(f(1), x) and len(g.y) > z()",), "", True
    )
    assert suite.names == ("f", "g", "x", "z") and suite.needed == suite.names
    assert read_suite("", ("from solution import f, Error\nf(1)",), "", True).names == ("Error", "f")
    assert "isclose" not in read_suite("", ("assert isclose(f(1), 2)",), "", True).names


def test_modules_are_bound_by_a_list_of_ours() -> None:
    suite = read_suite("", ("assert math.isclose(f(1), random.x) and subprocess.run(f)",), "", True)
    assert suite.modules == ("math", "random")
    assert read_suite("", ("assert copy(1) == 1",), "copy", True).modules == ()


def test_a_test_of_a_list_that_only_prepares_is_not_counted() -> None:
    tests = ("import math", "x = f(1)", "def same(a): return a", "assert same(x) == 2")
    assert read_suite("", tests, "", False).prepares == (True, True, True, False)
