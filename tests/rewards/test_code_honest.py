"""Right solutions in unusual but honest forms: each of them scores 1."""

import asyncio
from typing import Any

import pytest

from roll.errors import ConfigError
from roll.rewards.code.reward import score
from roll.sandbox.level import unavailable_reason
from roll.types import Task

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(unavailable_reason()), reason=f"untrusted code is not run here: {unavailable_reason()}"),
]

F = "def f(x):\n    return x + 1"
ASSERT = ["assert f(1) == 2"]
RAISES = "try:\n    f(1)\n    raise SystemExit(1)\nexcept {}:\n    pass"


def passes(response: str, **metadata: Any) -> bool:
    task = Task(id="t", domain="code", metadata=metadata)
    return asyncio.run(score(task, response)).value == 1.0


def block(code: str, tag: str = "python") -> str:
    return f"```{tag}\n{code}\n```"


REPLIES = {
    "prose around it": f"Sure!\n\n{block(F)}\n\nIt adds one.",
    "Windows line ends": block(F).replace("\n", "\r\n"),
    "tabs": block("def f(x):\n\tif x:\n\t\treturn x + 1\n\treturn 1"),
    "a tag with a title": block(F, 'Python title="a.py"'),
    "a helper in a block before": f"First:\n{block('def g(x): return x + 1')}\nNow:\n{block('def f(x): return g(x)')}",
    "imports in a block before": f"{block('import math')}\n{block('def f(x): return math.floor(x) + 1')}",
    "a constant in a block before": f"{block('STEP: int = 1')}\n{block('def f(x): return x + STEP')}",
    "a draft before": f"{block('def f(x): return x')}\nNo, that is wrong:\n{block(F)}",
    "tests after": block(F) + "\n" + block("import unittest\nfrom solution import f\nclass T(unittest.TestCase): pass"),
    "an example that imports it": block(F) + "\nUse:\n" + block("from my_module import f\nprint(f(1))"),
    "an alternative after": block(F) + "\nOr:\n" + block("def f_other(x):\n    return -~x"),
    "no fence": F,
    "no fence and a sentence before": f"Here is the solution:\n\n{F}",
    "no fence and sentences around": f"Sure!\n\n{F}\n\nThis function adds one to its argument.",
    "no fence and a docstring": f'"""\nThe module.\n\nIt adds one.\n"""\n\n{F}',
    "no fence and capital names": f"{F}\n\nN, M = 1, 2\n\nStep = N\n",
    "tags without a fence": f"<answer>\n{F}\n</answer>",
    "a fence that ends in a line of code": f"```python\n{F}```\n\nIt adds one.",
    "a fence that begins after text": f"Solution: ```python\n{F}\n```",
    "an unclosed fence": f"Here:\n```python\n{F}",
    "a list": "1. Define:\n\n   ```python\n   def f(x):\n       return x + 1\n   ```\n\n2. Done",
    "output and a guard": f"{F}\nprint(f(1))\nif __name__ == '__main__':\n    print(f(int(input())))",
    "a docstring with an example": 'def f(x):\n    """\n    >>> f(1)\n    2\n    """\n    return x + 1',
    "type hints": "from __future__ import annotations\nfrom typing import *\ndef f(x: int) -> int: return x + 1",
    "a lambda": "f = lambda x: x + 1",
    "a cached function": "from functools import lru_cache\n@lru_cache(None)\ndef f(x): return x + 1",
    "a partial function": "from functools import partial\nfrom operator import add\nf = partial(add, 1)",
    "threads": "from concurrent.futures import *\ndef f(x): return [*ThreadPoolExecutor(2).map((1).__add__, [x])][0]",
}


@pytest.mark.parametrize("reply", REPLIES.values(), ids=REPLIES)
def test_a_right_solution_passes_in_any_form_of_reply(reply: str) -> None:
    assert passes(reply, tests=ASSERT)


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("class Low(ValueError): pass\ndef f(x): raise Low('x')", "ValueError"),
        ("class Bank(Exception): pass\nclass Low(Bank): pass\ndef f(x): raise Low('x')", "Bank"),
        ("class Bank(Exception): pass\nclass Low(Bank): pass\ndef f(x): raise Low('x')", "(Bank if Low else Low)"),
        ("import json\ndef f(x): return json.loads('{')", "ValueError"),
        ("def f(x): return 'é'.encode('ascii')", "ValueError"),
        (
            "from dataclasses import *\n@dataclass(frozen=True)\nclass P: pass\ndef f(x): P().x = 1",
            "AttributeError",
        ),
        ("def f(x): raise StopIteration", "StopIteration"),
    ],
)
def test_an_error_is_caught_by_its_bases(code: str, expected: str) -> None:
    assert passes(code, tests=[RAISES.format(expected)])


BANK = "class Low(Exception):\n    def __init__(self, n): super().__init__(f'low {n}'); self.n = n\n"
CONTEXT = "class C:\n    def __enter__(self): return self\n    def __exit__(self, kind, value, trace):\n        "
SOLUTION = "class Solution:\n    def f(self, x): return x + 1"
OBJECTS = [
    (f"{BANK}def f(x): raise Low(x)", "try:\n    f(1)\nexcept Low as e:\n    assert e.n == 1 and str(e) == 'low 1'"),
    ("def f(x): raise KeyError('a')", "try:\n    f(1)\nexcept KeyError as e:\n    assert str(e) == \"'a'\""),
    ("def f(x): x.sort()", "a = [2, 1]\nf(x=a)\nassert a == [1, 2]"),
    ("def f(x):\n    x.sort()\n    return x", "a = [2, 1]\nassert f(a) is a and a == [1, 2]"),
    ("def f(x): return list(x)", "a = [2, 1]\nassert f(a) is not a and a == f(a)"),
    ("def f(x): return sum(x)", "d = {'a': 1, 'b': 2}\nassert f(d.values()) == 3 and f(x for x in [1]) == 1"),
    (f"{CONTEXT}return kind is ValueError and str(value) == 'x'", "with C():\n    raise ValueError('x')\nassert C()"),
    (f"{CONTEXT}self.n = 2", "with C() as c:\n    assert c\nassert c.n == 2"),
    ("import enum\nclass C(enum.Enum):\n    A = 1\ndef f(): return C.A", "assert f() is C.A and C['A'] == f()"),
    ("from dataclasses import *\n@dataclass\nclass P:\n    x: int", "assert P(1) == P(1) and repr(P(1)) == 'P(x=1)'"),
    ("class C:\n    a = property(lambda s: 3)\n    @staticmethod\n    def of(): return C()", "assert C.of().a == 3"),
    ("import sys\nsys.setrecursionlimit(9999)\ndef f(n): return n and 1 + f(n - 1)", "assert f(5000) == 5000"),
    ("def f(): yield 1", "it = f()\nassert next(it) == 1 and next(it, None) is None"),
    ("def f(g): return g(2)", "def half(x):\n    assert x == 2\n    return 1\nassert f(half) == 1"),
]  # fmt: skip


@pytest.mark.parametrize(("code", "test"), OBJECTS)
def test_objects_errors_and_arguments_behave_as_in_one_process(code: str, test: str) -> None:
    assert passes(code, tests=[test])


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        ("range(3)", [0, 1, 2]),
        ("__import__('collections').deque([1, 2])", [1, 2]),
        ("{'a': 1}.keys()", ["a"]),
        ("[map(str, [1]), (i for i in [2])]", [["1"], [2]]),
        ("float('nan')", float("nan")),
        ("1.2e-5", 0.00001),
    ],
)
def test_results_in_the_form_of_calls_compare_as_json(result: str, expected: Any) -> None:
    assert passes(f"def f(): return {result}", tests=[{"args": [], "expected": expected}], entry_point="f")


def test_an_entry_point_may_be_a_method() -> None:
    check = "def check(candidate):\n    assert candidate(x=1) == 2"
    example = f"{block(SOLUTION)}\nFor example:\n{block('print(Solution().f(1))')}"
    assert passes(example, tests=check, entry_point="Solution().f")
    assert passes(example, tests=[{"args": [1], "expected": 2}], entry_point="Solution().f")
    assert not passes("def f(x): return x + 1", tests=check, entry_point="Solution().f")


def test_a_test_method_may_have_the_name_of_the_function_it_tests() -> None:
    script = "import unittest\nclass T(unittest.TestCase):\n    def f(self): pass\n    def test(self): assert f(1) == 2"
    assert passes(F, tests=script)


def test_programs_may_be_built_of_several_blocks() -> None:
    cases = [{"stdin": "1", "stdout": "2"}]
    parts = [block("def solve(n):\n    return n + 1"), block("n = int(input())\nprint(solve(n))")]
    assert passes("\n".join(parts), cases=cases)
    assert passes("\n".join([block("print(int(input()) - 1)"), *parts]), cases=cases)


def test_text_in_a_list_of_the_response_is_not_evaluated_and_is_no_fault_of_the_task() -> None:
    assert not passes("def f(x): return ['__import__(\"os\")']", tests="text = f(22)\nassert eval(text[0]) == 23")


def test_cases_that_all_expect_no_output_are_a_fault_of_the_task() -> None:
    with pytest.raises(ConfigError, match="an empty program passes"):
        passes("", cases=[{"stdin": "1", "stdout": ""}, {"stdin": "2", "stdout": "\n"}])
