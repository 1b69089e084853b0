"""The tests of a task, read without running them: the names they need, and the faults that make them useless.

Only the task's own text is parsed here, never a response.
"""

from __future__ import annotations

import ast
import builtins
import functools
import symtable
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

SAFE_MODULES = frozenset({
    *("array", "bisect", "calendar", "cmath", "collections", "copy", "datetime", "decimal", "enum", "fractions"),
    *("functools", "hashlib", "heapq", "itertools", "json", "math", "numbers", "operator", "os", "random", "re"),
    *("statistics", "string", "sys", "textwrap", "time", "typing"),
})  # fmt: skip
"""Modules that tests may use without importing them, because programs usually import them. Importing one of them has no
side effect. The tests get the module itself, also if the response defines its name."""
_COMPARERS = frozenset({
    *("np", "numpy", "pd", "pandas", "torch", "scipy", "pytest", "isclose", "allclose", "approx", "array_equal"),
    *("assert_allclose", "assert_almost_equal", "assert_array_equal", "assert_equal"),
})  # fmt: skip
"""Names that compare results. A response that could define one would decide its own verdict."""
_LOADERS = frozenset({
    *("pickle.loads", "pickle.load", "marshal.loads", "marshal.load", "dill.loads", "cloudpickle.loads", "yaml.load"),
    *("yaml.unsafe_load", "shelve.open", "runpy.run_path", "runpy.run_module", "importlib.import_module", "__import__"),
    "importlib.util.spec_from_file_location",
})  # fmt: skip
_EXECUTORS = frozenset({"eval", "exec", "compile"})
"""Functions that run what they are given. Applied to a result, they would run a response's text next to the tests."""
_PREPARATION = (ast.Import, ast.ImportFrom, ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Pass)
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_SCOPES = (*_DEFINITIONS, ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """What the tests of a task need, and what is wrong with them."""

    names: tuple[str, ...] = ()
    """Names that the response may define for the tests."""
    needed: tuple[str, ...] = ()
    """The entry point; without one, the names that the response must define for the tests."""
    modules: tuple[str, ...] = ()
    """Modules of `SAFE_MODULES` that the tests use without importing them."""
    prepares: tuple[bool, ...] = ()
    """Per test, whether it only prepares later ones, so it can neither pass nor fail."""
    fault: str = ""
    """Why no response can be judged by these tests; empty if no reason is found."""


@functools.lru_cache(maxsize=4096)
def read_suite(setup: str, tests: tuple[str, ...], entry: str, script: bool) -> Suite:
    """Read the statements of a task: one script, or a list of tests."""
    texts = (setup, *tests)
    try:
        trees = [ast.parse(text) for text in texts]
        entries = {node.id for node in ast.walk(ast.parse(entry or "0", mode="eval")) if isinstance(node, ast.Name)}
        scopes = [_Globals.of(symtable.symtable(text, "<tests>", "exec")) for text in texts]
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return Suite(fault=f"the tests are not Python ({error})")
    nodes = [node for tree in trees for node in ast.walk(tree)]
    referenced = {name for scope in scopes for name in scope.referenced}
    imported, defined = set(_imported(nodes)), set(_defined(trees))
    unresolved = {name for name in referenced.difference(*(scope.bound for scope in scopes)) if _open(name)}
    modules = unresolved & {*SAFE_MODULES, "isclose"} - entries
    needed = (unresolved | imported) - modules
    closed = defined | set(_assigned_first(trees))
    names = {name for name in referenced - closed | imported | set(_texts(nodes)) - closed if _open(name)}
    prepares = tuple(not script and _prepares(tree.body) for tree in trees[1:])
    fault = _danger(nodes, needed) or (_idle_script(trees, nodes, entry) if script else _idle_list(prepares))
    return Suite(
        names=tuple(sorted(names - modules - _COMPARERS | entries)),
        needed=tuple(sorted(entries if entry else needed - _COMPARERS)),
        modules=tuple(sorted(modules)),
        prepares=prepares,
        fault=fault or _unbound(needed, referenced, entry),
    )


@dataclass(frozen=True, slots=True)
class _Globals:
    """Global names of one text: those it reads, and those it binds."""

    referenced: set[str]
    bound: set[str]

    @classmethod
    def of(cls, table: symtable.SymbolTable) -> _Globals:
        names, top = cls(set(), set()), table.get_type() == "module"
        for symbol in table.get_symbols():
            if symbol.is_referenced() and (top or symbol.is_global()):
                names.referenced.add(symbol.get_name())
            if (top or symbol.is_declared_global()) and (symbol.is_assigned() or symbol.is_imported()):
                names.bound.add(symbol.get_name())
        for child in table.get_children():
            below = cls.of(child)
            names.referenced.update(below.referenced)
            names.bound.update(below.bound)
        return names


def _open(name: str) -> bool:
    """Whether a response may define this name for the tests."""
    return not hasattr(builtins, name) and not name.startswith("__")


def _global_nodes(pending: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """The nodes outside of functions and classes, and these themselves."""
    for node in pending:
        yield node
        if not isinstance(node, _SCOPES):
            yield from _global_nodes(ast.iter_child_nodes(node))


def _assigned_first(trees: Iterable[ast.Module]) -> Iterator[str]:
    """Names that a statement of the tests assigns before any reads them: a response must not define them as well."""
    read: set[str] = set()
    for statement in (statement for tree in trees for statement in tree.body):
        loaded = {node.id for node in ast.walk(statement) if isinstance(node, ast.Name) and _loads(node)}
        assigned = [node for node in _global_nodes([statement]) if isinstance(node, ast.Name) and not _loads(node)]
        read |= loaded
        if not isinstance(statement, ast.AugAssign):
            yield from (node.id for node in assigned if node.id not in read)


def _loads(name: ast.Name) -> bool:
    return isinstance(name.ctx, ast.Load)


def _defined(trees: Iterable[ast.Module]) -> Iterator[str]:
    """Global names that the tests define or import themselves, except from the response."""
    for node in _global_nodes(trees):
        if isinstance(node, _DEFINITIONS):
            yield node.name
        elif isinstance(node, ast.Import) or (isinstance(node, ast.ImportFrom) and node.module != "solution"):
            yield from ((alias.asname or alias.name).partition(".")[0] for alias in node.names)


def _imported(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Names that the tests take from the module `solution`."""
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and node.module == "solution":
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "solution":
            yield node.attr


def _texts(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Identifiers within texts, such as `globals()["f"]` and `patch("solution.f")`."""
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            name = node.value.rpartition(".")[2]
            if name.isidentifier():
                yield name


def _prepares(body: Sequence[ast.stmt], *, calls: bool = True) -> bool:
    """Whether the statements only define and assign; with `calls` false, an assigned call may be a check."""
    return all(
        isinstance(node, _DEFINITIONS)
        or (isinstance(node, _PREPARATION) and (calls or not any(isinstance(one, ast.Call) for one in ast.walk(node))))
        or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
        for node in body
    )


def _danger(nodes: Sequence[ast.AST], needed: set[str]) -> str:
    """Calls that would run what a response returns."""
    for node in nodes:
        if not isinstance(node, ast.Call) or not node.args:
            continue
        name, inner = _name_of(node.func), list(ast.walk(node.args[0]))
        calls = {_name_of(one.func) for one in inner if isinstance(one, ast.Call)}
        if (name in _LOADERS and any(isinstance(one, ast.Name) for one in inner)) or (
            name in _EXECUTORS and calls & {*needed, "candidate"}
        ):
            return f"the tests call {name!r}, which would run what a response returns"
    return ""


def _idle_list(prepares: tuple[bool, ...]) -> str:
    return "the tests run nothing: each of them only prepares another" if all(prepares) else ""


def _idle_script(trees: Sequence[ast.Module], nodes: Sequence[ast.AST], entry: str) -> str:
    """Why a script checks nothing; empty if it runs a statement, or defines tests that are found by their names."""
    if not all(_prepares(tree.body, calls=False) for tree in trees):
        return ""
    functions = [node.name for tree in trees for node in tree.body if isinstance(node, _DEFINITIONS[:2])]
    classes = [node for node in nodes if isinstance(node, ast.ClassDef) and node.bases]  # may be a `TestCase`
    if classes or any(name.startswith("test") for name in functions):
        return ""
    if "check" in functions:
        return "" if entry else "the tests define 'check', but the task names no 'entry_point' to call it with"
    if functions:
        return f"the tests run nothing: nothing calls {', '.join(map(repr, functions[:3]))}"
    return "the tests run nothing: there is no statement that checks a result"


def _unbound(needed: set[str], referenced: set[str], entry: str) -> str:
    """The tests compare by a name that is theirs to import, or use nothing that a response could define."""
    for name in sorted(needed & _COMPARERS - {entry}):
        return f"the tests use {name!r}, which they do not import"
    if not entry and not needed and not referenced & {"globals", "vars", "solution", *_EXECUTORS}:
        return "the tests use no name that a response could define"
    return ""


def _name_of(function: ast.expr) -> str:
    """`a.b.c` of such an expression, else an empty text."""
    if isinstance(function, ast.Name):
        return function.id
    if isinstance(function, ast.Attribute):
        above = _name_of(function.value)
        return f"{above}.{function.attr}" if above else ""
    return ""
