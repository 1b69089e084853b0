"""The package's source files, read and parsed once per process for the tests of their form."""

import ast
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]


@cache
def texts() -> dict[str, str]:
    """Every module's path within the package, and its text."""
    package = ROOT / "roll"
    return {str(path.relative_to(package)): path.read_text(encoding="utf-8") for path in package.rglob("*.py")}


@cache
def nodes() -> dict[str, list[ast.AST]]:
    """Every module's path within the package, and all nodes of its syntax tree."""
    return {name: list(ast.walk(ast.parse(text))) for name, text in texts().items()}
