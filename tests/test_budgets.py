import ast
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from tests.sources import nodes, texts

pytestmark = pytest.mark.xdist_group("sources")

FILE_LINES, FUNCTION_LINES, DEPTH, PROTOCOL_METHODS = 400, 50, 3, 8
ROOM_LINES = {"engines": 600, "pipelines": 200}
EMPTY_NAMES = {"utils", "common", "misc", "helpers"}
EXCUSED: frozenset[str] = frozenset()
"""`file` or `file:name` of what is over a budget. It only shrinks."""


def over_budget(name: str, text: str, nodes: Iterable[ast.AST]) -> Iterator[str]:
    room = Path(name).parts[0]
    parts = Path(name).with_suffix("").parts
    if text.count("\n") > ROOM_LINES.get(room, FILE_LINES):
        yield name
    if EMPTY_NAMES & set(parts) or len(parts) > DEPTH:
        yield name
    for node in nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and num_lines(node) > FUNCTION_LINES:
            yield f"{name}:{node.name}"
        if isinstance(node, ast.ClassDef) and num_protocol_methods(node) > PROTOCOL_METHODS:
            yield f"{name}:{node.name}"


def num_lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    assert node.end_lineno is not None
    return node.end_lineno - node.lineno + 1


def num_protocol_methods(node: ast.ClassDef) -> int:
    if "Protocol" not in {getattr(base, "id", getattr(base, "attr", "")) for base in node.bases}:
        return 0
    return sum(isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef) for item in node.body)


def test_nothing_is_over_its_budget_and_nothing_is_excused_in_vain() -> None:
    found = {place for name, text in texts().items() for place in over_budget(name, text, nodes()[name])}
    assert found == EXCUSED


def test_the_budgets_are_really_counted() -> None:
    def over(name: str, text: str) -> list[str]:
        return list(over_budget(name, text, ast.walk(ast.parse(text))))

    long_function = "def f():\n" + "    x = 1\n" * 50
    methods = "".join(f"    def m{index}(self): ...\n" for index in range(9))
    assert over("data/tasks.py", "\n" * 401) == ["data/tasks.py"]
    assert over("engines/train/native.py", "\n" * 600) == []
    assert over("pipelines/loop.py", "\n" * 201) == ["pipelines/loop.py"]
    assert over("data/tasks.py", long_function) == ["data/tasks.py:f"]
    assert over("data/utils.py", "") == ["data/utils.py"]
    assert over("engines/train/fsdp/mesh.py", "") == ["engines/train/fsdp/mesh.py"]
    assert over("engines/base.py", f"class P(Protocol):\n{methods}") == ["engines/base.py:P"]
