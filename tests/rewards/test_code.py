"""The code verifier: every form of tests, languages, hostile responses, and attempts to forge a pass."""

import asyncio
import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.forged_code import ATTACKS, FORMS, LOOSE, forged, forged_all
from roll.errors import ConfigError
from roll.rewards.code.protocol import read, write
from roll.rewards.code.reward import score
from roll.sandbox.level import TRUSTED_CODE, unavailable_reason
from roll.types import Score, Task

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(unavailable_reason()), reason=f"untrusted code is not run here: {unavailable_reason()}"),
]


def scored(response: str, options: dict[str, Any] | None = None, **metadata: Any) -> Score:
    task = Task(id="t", domain="code", metadata=metadata)
    return asyncio.run(score(task, response, **(options or {})))


def passes(response: str, *tests: str, **metadata: Any) -> bool:
    return scored(response, tests=list(tests), **metadata).value == 1.0


def test_asserts_pass_and_fail_one_by_one() -> None:
    code = "```python\ndef double(x):\n    return 2 * x\n```"
    assert scored(code, tests=["assert double(2) == 4"]) == Score(1.0, {"passed": 1.0, "checks": 2.0})
    tests = ["assert double(2) == 4", "assert double(2) == 5", "assert double('a') == 'aa'", "assert doubled(1) == 2"]
    assert scored(code, tests=tests) == Score(0.0, {"passed": 0.5, "checks": 7.0})
    assert scored(code, {"partial": True}, tests=tests) == Score(0.5, {"passed": 0.5, "checks": 7.0})


def test_setup_runs_before_the_tests_and_may_use_the_response() -> None:
    node = "class Node:\n    def __init__(self, v): self.v, self.next = v, None\ndef last(n):\n"
    node += "    while n.next: n = n.next\n    return n.v"
    assert passes(node, "assert last(a) == 2", setup="a = Node(1)\r\na.next = Node(2)")
    assert passes("def f(x): return x", "assert math.isclose(f(0.1), 0.1)", test_setup="import math")
    assert not passes("def last(n): return 2", "assert last(a) == 2", setup="a = Node(1)")


def test_values_of_all_kinds_cross_and_keep_their_types() -> None:
    same = "def same(x): return x"
    for value in ("None", "True", "-3", "2**80", "1.5", "float('inf')", "'é\\ud800'", "b'\\x00'", "1j", "(1, (2,))",
                  "[1, [2]]", "{1, 2}", "frozenset({1})", "{'a': [1], 2: None}", "range(3)", "int"):  # fmt: skip
        assert passes(same, f"assert same({value}) == {value} and type(same({value})) is type({value})"), value
    assert not passes(same, "assert same((1, 2)) == [1, 2]")
    assert passes("import collections\ndef f(): return collections.Counter('aab')", "assert f() == {'a': 2, 'b': 1}")
    assert passes("import decimal\ndef f(): return decimal.Decimal('1.5')", "assert f() == 1.5")


def test_in_place_changes_of_arguments_are_visible_to_tests() -> None:
    assert passes("def sort(x): x.sort()", "a = [3, 1, 2]\nsort(a)\nassert a == [1, 2, 3]")
    assert passes("def put(d): d['a'] = 1", "d = {}\nput(d)\nassert d == {'a': 1}")


def test_functions_iterators_errors_and_objects_cross() -> None:
    assert passes("def twice(f, x): return f(f(x))", "assert twice(lambda x: x + 1, 1) == 3")
    assert passes("def adder(n): return lambda x: x + n", "assert adder(2)(3) == 5")
    assert passes(
        "def count():\n    n = 0\n    while True:\n        yield n\n        n += 1", "c = count()\nassert next(c) == 0"
    )
    assert passes("def up(n): yield from range(n)", "assert list(up(3)) == [0, 1, 2]\nassert 2 in up(3)")
    raises = "try:\n    f()\n    raise SystemExit(1)\nexcept {}: pass"
    assert passes("def f(): raise ValueError('x')", raises.format("ValueError"))
    assert passes("class Bad(ValueError): pass\ndef f(): raise Bad('x')", raises.format("Bad"))
    assert not passes("def f(): raise KeyError('x')", raises.format("ValueError"))
    stack = "class Stack:\n    def __init__(self): self.items = []\n    def push(self, x): self.items.append(x)\n"
    stack += "    def __len__(self): return len(self.items)\n    def __eq__(self, o): return self.items == o.items\n"
    stack += "    def __add__(self, o):\n        s = Stack(); s.items = self.items + o.items; return s"
    test = (
        "a, b = Stack(), Stack()\na.push(1)\nassert len(a) == 1 and a.items == [1] and a != b and isinstance(a, Stack)"
    )
    assert passes(stack, test, "b.push(1)\nassert a == b and len(a + b) == 2")


def test_functions_with_arguments_and_expected_values() -> None:
    tests = [
        {"args": [2, 3], "expected": 5},
        {"args": [0.1, 0.2], "expected": 0.3},
        {"args": [[1], [2]], "expected": [1, 2]},
    ]
    assert scored("def add(a, b): return a + b", tests=tests, entry_point="add").value == 1.0
    assert scored("def add(a, b): return 5", tests=tests, entry_point="add").parts["passed"] == pytest.approx(1 / 3)
    listing = [{"args": [2], "expected": [[0, "a"], [1, "a"]]}]
    assert scored("def f(n):\n    for i in range(n): yield i, 'a'", tests=listing, entry_point="f").value == 1.0
    for wrong in ("1", "'True'", "None", "[True]"):
        assert scored(f"def f(): return {wrong}", tests=[{"args": [], "expected": True}], entry_point="f").value == 0.0


def test_a_builtin_name_is_the_responses_only_as_the_entry_point() -> None:
    assert passes("def sum(a, b): return a + b", "assert sum(1, 2) == 3", entry_point="sum")
    assert not passes("def sum(a, b): return a + b\ndef f(): return 3", "assert sum(1, 2) == f()")


SCRIPT = """
import unittest
from solution import f
class T(unittest.TestCase):
    def test_one(self): self.assertEqual(f(1), 2)
    def test_near(self): self.assertAlmostEqual(f(0.5), 1.5)
"""


@pytest.mark.parametrize(
    "script",
    [
        SCRIPT,
        SCRIPT + "if __name__ == '__main__': unittest.main()",
        "def check(candidate):\n    assert candidate(1) == 2",
        "def test_it():\n    assert f(1) == 2",
        "import sys\nsys.exit(0 if f(1) == 2 else 1)",
    ],
)
def test_whole_scripts(script: str) -> None:
    assert scored("def f(x): return x + 1", tests=script, entry_point="f").value == 1.0
    assert scored("def f(x): return x + 2", tests=script, entry_point="f").value == 0.0
    assert scored("def g(x): return x + 1", tests=script, entry_point="f").value == 0.0
    assert scored("import os\ndef f(x): os._exit(0)", tests=script, entry_point="f").value == 0.0


def test_input_and_output_in_several_languages() -> None:
    cases = [{"stdin": "2 3\n", "stdout": "5"}, {"stdin": "-1 1\n", "stdout": "0\n"}]
    for language, code in (
        ("python", "a, b = map(int, input().split())\nprint(a + b, end=' \\n\\n')"),
        ("bash", "read a b\necho $((a + b))"),
        ("sh {file}", "read a b; echo $((a + b))"),
    ):
        assert scored(code, {"language": language}, cases=cases) == Score(1.0, {"passed": 1.0, "checks": 2.0})
    assert scored("print(5)", {"partial": True}, cases=cases) == Score(0.5, {"passed": 0.5, "checks": 2.0})
    assert scored("print(5)\nraise SystemExit(1)", cases=cases).parts["passed"] == 0.0


def test_a_timeout_fails_the_remaining_cases_only() -> None:
    slow = "def f(x):\n    while x: pass\n    return x"
    started = time.monotonic()
    found = scored(slow, {"timeout_s": 2.0}, tests=["assert f(0) == 0", "assert f(1) == 1", "assert f(0) == 0"])
    assert found.parts["passed"] == pytest.approx(1 / 3)
    cases = [{"stdin": "0", "stdout": "0"}, {"stdin": "1", "stdout": "1"}, {"stdin": "0", "stdout": "0"}]
    found = scored("x = int(input())\nwhile x: pass\nprint(x)", {"timeout_s": 2.0}, cases=cases)
    assert found.parts["passed"] == pytest.approx(1 / 3)
    assert time.monotonic() - started < 120


@pytest.mark.parametrize(
    "sleep",
    [
        "time.sleep(100)",
        "os.kill(os.getpid(), 19)",
        "resource.prlimit(os.getppid(), resource.RLIMIT_NOFILE, (0, 0)); time.sleep(100)",
    ],
)
def test_a_program_that_sleeps_fails_and_is_no_failure_of_the_machine(sleep: str) -> None:
    response = f"import os, resource, time\ndef f(x):\n    {sleep}"
    assert scored(response, {"timeout_s": 1.0}, tests=["assert f(1) == 2"]).value == 0.0


def test_a_program_is_judged_by_its_cpu_time_however_long_it_waits_for_a_processor() -> None:
    """Each of twelve runs takes most of its limit, and all of them share the cores."""
    slow = "import time\nwhile time.process_time() < 0.6: pass\n"
    cases = [{"stdin": str(number), "stdout": str(number)} for number in range(12)]
    assert scored(f"{slow}print(input())", {"timeout_s": 1.0}, cases=cases).value == 1.0


def test_a_right_solution_passes_with_an_example_after_it_or_within_a_list() -> None:
    solution = "def f(x):\n    return x + 1"
    example = f"```python\n{solution}\n```\nFor example:\n```python\nprint(f(1))\n```\nprints\n```\n2\n```"
    listed = "1. Write:\n\n   ```python\n   def f(x):\n       return x + 1\n   ```\n2. Run it."
    for response in (example, listed):
        assert passes(response, "assert f(1) == 2")
        assert scored(response, tests="def check(g):\n    assert g(1) == 2", entry_point="f").value == 1.0


@pytest.mark.parametrize(
    "tests",
    [
        "assert True\nprint('done')",
        "for x in []:\n    assert f(x) == 2",
        "def check(candidate):\n    return True",
        "import unittest\nclass T(unittest.TestCase):\n    def test_f(self): pass",
    ],
)
def test_tests_that_turn_out_to_run_nothing_are_never_passed(tests: str) -> None:
    with pytest.raises(ConfigError, match="task 't': the tests run nothing"):
        scored("def f(x): return 0", tests=tests, entry_point="f")
    assert scored("", tests=tests, entry_point="f").value == 0.0


def test_statements_that_only_prepare_are_not_counted() -> None:
    tests = ["import math", "x = f(1)", "assert math.isclose(x, 2)", "assert f(2) == 9"]
    assert scored("def f(x): return x + 1", tests=tests).parts["passed"] == 0.5


def test_library_functions_are_passed_by_name_and_tests_may_be_called_back() -> None:
    code = "def f(g, x): return g(x)"
    assert passes(code, "assert f(len, 'ab') == 2", "assert f(math.sqrt, 4) == 2", "assert f(str.upper, 'a') == 'A'")
    assert passes(code, "seen = []\nf(seen.append, 1)\nassert seen == [1]", "assert f(lambda x: x + 1, 1) == 2")
    with pytest.raises(ConfigError, match="hands an object of type 'function'"):
        scored("def f(g, x): return g('x')", tests=["assert f(eval, 1) == 2"])


NUM_BATCHES = 6


@pytest.mark.parametrize("batch", range(NUM_BATCHES))
def test_a_pass_cannot_be_forged(batch: int) -> None:
    """Each attack in two of the forms of tests; the benchmark `verifiers` takes all of them."""
    names = sorted(ATTACKS)[batch::NUM_BATCHES]
    forms = [("asserts", "unittest"), ("inviting", "calls"), ("check", "evaluated")][batch % 3]
    assert {name: passed for name, passed in asyncio.run(forged_all(names, forms)).items() if passed} == {}


def test_no_response_ends_a_loop_or_catches_the_failure_of_a_check() -> None:
    names = [*LOOSE, "is a mock", "never differs", "mutates its arguments", "defines the hooks of a test module"]
    passed = asyncio.run(forged_all(names, ("loose", "skipping", "calls")))
    assert {name: forms for name, forms in passed.items() if forms} == {}


def test_there_are_many_attacks_and_honest_responses_pass_the_forms_they_are_tried_on() -> None:
    assert len(ATTACKS) >= 60
    honest = "def f(x):\n    return x + 1"
    for form in ("check", "calls", "unittest", "inviting", "skipping"):
        assert scored(honest, **FORMS[form]).value == 1.0, form
    assert scored("def f(x): return '20 + 3'", **FORMS["evaluated"]).value == 1.0
    assert scored("print(int(input()) + 1)", **FORMS["cases"]).value == 1.0


def test_a_response_does_not_choose_what_the_examiner_imports() -> None:
    assert forged("is the module unittest.__main__") == []


def test_hostile_responses_score_0() -> None:
    nested = "(" * 100_000
    for response in (
        "",
        "```",
        "```python",
        "\0",
        "\ud800",
        "def f(x): return '\ud800'",
        nested,
        "é" * 10,
        "x" * 2**20,
    ):
        assert scored(response, tests=["assert f(1) == 2"]).value == 0.0
        assert scored(response, cases=[{"stdin": "", "stdout": "1"}]).value == 0.0


@pytest.mark.parametrize(
    ("metadata", "said"),
    [
        ({}, "'tests'"),
        ({"tests": []}, "'tests'"),
        ({"tests": [3]}, "neither text nor an object"),
        ({"tests": [{"args": []}], "entry_point": "f"}, "'expected'"),
        ({"tests": [{"args": [], "expected": 1}]}, "'entry_point'"),
        ({"cases": "x"}, "'cases'"),
        ({"cases": [{"stdin": "x"}]}, "'stdout'"),
        ({"tests": ["assert f(1 == 2"]}, "not Python"),
        ({"tests": ["import no_such_module\nf(1)"]}, "no_such_module"),
        ({"tests": ["class A: pass\nf(A())"]}, "type 'A'"),
    ],
)
def test_tests_that_cannot_be_used_are_the_tasks_fault(metadata: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        scored("def f(x): return 1", **metadata)


def test_options_that_cannot_be_used_are_refused() -> None:
    with pytest.raises(ConfigError, match="no language 'cobol'"):
        scored("x", {"language": "cobol"}, cases=[{"stdin": "", "stdout": ""}])
    with pytest.raises(ConfigError, match="give it 'cases'"):
        scored("x", {"language": "bash"}, tests=["x"])
    with pytest.raises(ConfigError, match="no such option"):
        scored("x", {"sandbox": "off"}, tests=["x"])


def test_code_that_is_trusted_in_words_runs_without_isolation() -> None:
    assert scored("def f(x): return x", {"sandbox": TRUSTED_CODE}, tests=["assert f(1) == 1"]).value == 1.0


PLAIN_DATA = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3) | st.tuples(inner, inner),
    max_leaves=8,
)


@settings(derandomize=True, max_examples=100, deadline=None)
@given(PLAIN_DATA)
def test_read_inverts_write(value: Any) -> None:
    found = read(write(value, repr), lambda *found: None)
    assert found == value and repr(found) == repr(value)


@settings(derandomize=True, max_examples=200, deadline=None)
@given(st.text(alphabet="NTFiurltsfdbackxmo0123456789;,.-e", max_size=40))
def test_garbage_is_refused_or_read_as_plain_data(text: str) -> None:
    try:
        read(text, lambda *found: None)
    except Exception as error:  # noqa: BLE001 - which one does not matter; the reader catches them all
        assert not isinstance(error, MemoryError)


def rows(name: str, **wanted: Any) -> list[dict[str, Any]]:
    root = os.environ.get("ROLL_DATA")
    if not root:
        pytest.skip("ROLL_DATA is not set: no real tasks to try")
    found = [json.loads(line) for line in Path(root, name).read_text(encoding="utf-8").splitlines()]
    return [row for row in found if all(row[key] == value for key, value in wanted.items())]


@pytest.mark.sweep(keep=1)
@pytest.mark.parametrize("num_rows", [13, 40])
def test_references_pass_and_wrong_ones_fail(num_rows: int) -> None:
    """A sample; the benchmark takes all of them."""
    for row in rows("code/mbpp_test.jsonl", usable=True)[::13][:num_rows]:
        entry = row["entry_point"]
        assert scored(row["reference"], **row).value == 1.0, row["id"]
        wrong = f"{row['reference']}\n_right = {entry}\ndef {entry}(*a, **k):\n    _right(*a, **k)\n    return object()"
        assert scored(wrong, **row).parts["passed"] == 0.0, row["id"]


@pytest.mark.sweep
def test_repaired_programs_pass_and_broken_ones_fail() -> None:
    for row in rows("swe/quixbugs_test.jsonl")[:12]:
        assert scored(row["reference"], **row).value == 1.0, row["id"]
        assert scored(row["buggy_code"], {"timeout_s": 2.0}, **row).value == 0.0, row["id"]
