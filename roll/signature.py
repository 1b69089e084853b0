"""What a function or class takes, read from source text: nothing is imported, nothing runs."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias, cast

from roll.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Signature:
    """The keywords that a config file may give to something."""

    hints: Mapping[str, ast.expr | None] = field(default_factory=dict[str, ast.expr | None])
    """By keyword, what its type hint says, if it has one."""
    required: frozenset[str] = frozenset()
    open: bool = False
    """Takes any keyword, or only running it would tell which."""
    types: Mapping[str, ast.expr] = field(default_factory=dict[str, ast.expr])
    """What names in hints may stand for."""

    def expected(self, key: str, value: Any) -> str:
        """What to give in place of `value`, in words; empty where it fits, or where only running it would tell."""
        kinds = _kinds(self.hints.get(key), self.types)
        if kinds is None or any(fits(value) for _, fits in kinds):
            return ""
        return _words(kinds)


def signature_of(source: Path, attribute: str, supplied: int, supplied_to_class: int) -> Signature | None:
    """What a function or class in `source` takes after what is supplied; None if it is not defined there."""
    if source.suffix != ".py":
        return Signature(open=True)
    try:
        module = ast.parse(source.read_text(encoding="utf-8"))
    except SyntaxError as error:
        raise ConfigError(f"{source}:{error.lineno}: {error.msg}; Python cannot read this file") from None
    types = _types(module.body)
    for node in _statements(module.body):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == attribute:
            found = replace(_of_arguments(node.args, supplied), types=types)
            # A decorator may take something else than what it decorates.
            return replace(found, hints=dict.fromkeys(found.hints)) if node.decorator_list else found
        if isinstance(node, ast.ClassDef) and node.name == attribute:
            return replace(_of_class(node, supplied_to_class), types=types)
        if _bound_names(node) & {attribute, "*"}:
            return Signature(open=True)
    return None


def defined(source: Path) -> dict[str, str]:
    """Functions and classes of a file that can be read, with the first line of what they say of themselves."""
    body = ast.parse(source.read_text(encoding="utf-8")).body
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    found = [node for node in _statements(body) if isinstance(node, kinds) and not node.name.startswith("_")]
    return {node.name: (ast.get_docstring(node) or "").partition("\n")[0] for node in found}


_UNKNOWN = ast.Tuple([])
"""A hint that says nothing."""
Kind: TypeAlias = tuple[str, Callable[[Any], bool]]
"""What a value may be: in words, and whether one is."""
_PLAIN: dict[str, Kind] = {
    "int": ("a whole number", lambda value: isinstance(value, int) and not isinstance(value, bool)),
    "float": ("a number", lambda value: isinstance(value, int | float) and not isinstance(value, bool)),
    "str": ("text", lambda value: isinstance(value, str)),
    "bool": ("true or false", lambda value: isinstance(value, bool)),
}
_NULL: Kind = ("null", lambda value: value is None)
_LISTS = ("list", "tuple", "Sequence", "set", "frozenset")


def _kinds(hint: ast.expr | None, types: Mapping[str, ast.expr]) -> list[Kind] | None:
    """Everything that a hint allows; None where it says more than types of YAML."""
    match hint:
        case ast.Constant(value=None):
            return [_NULL]
        case ast.Constant(value=str(text)):
            return _kinds(_parsed(text), types)
        case ast.Name(id=name) if name in types:
            return _kinds(types[name], {})
        case ast.Name(id=name) if name in _PLAIN:
            return [_PLAIN[name]]
        case ast.Name(id=name) if name in _LISTS:
            return [_listed(None)]
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            return _either([left, right], types)
        case ast.Subscript(value=ast.Name(id=name), slice=inner):
            return _subscripted(name, inner.elts if isinstance(inner, ast.Tuple) else [inner], types)
        case _:
            return None


def _subscripted(name: str, inner: Sequence[ast.expr], types: Mapping[str, ast.expr]) -> list[Kind] | None:
    if not inner:
        return None
    if name == "Optional":
        return _either([*inner, ast.Constant(None)], types)
    if name == "Union":
        return _either(inner, types)
    if name == "Annotated":
        return _kinds(inner[0], types)
    if name == "Literal" and all(isinstance(each, ast.Constant) for each in inner):
        return [_one_of([cast(ast.Constant, each).value for each in inner])]
    if name in _LISTS:
        alike = name != "tuple" or (len(inner) == 2 and ast.unparse(inner[1]) == "...")
        return [_listed(_kinds(inner[0], types) if alike else None)]
    return None


def _parsed(text: str) -> ast.expr | None:
    """A hint in quotes."""
    try:
        return ast.parse(text, mode="eval").body
    except SyntaxError:
        return None


def _either(hints: Sequence[ast.expr], types: Mapping[str, ast.expr]) -> list[Kind] | None:
    found = [_kinds(hint, types) for hint in hints]
    return None if None in found else [kind for kinds in found if kinds for kind in kinds]


def _words(kinds: Sequence[Kind]) -> str:
    return " or ".join(dict.fromkeys(words for words, _ in kinds))


def _one_of(values: Sequence[Any]) -> Kind:
    return (
        " or ".join(map(repr, values)),
        lambda value: any(isinstance(value, bool) is isinstance(each, bool) and value == each for each in values),
    )


def _listed(inner: list[Kind] | None) -> Kind:
    """A list, whose entries are of these kinds if they can be judged."""
    words = "" if inner is None else f", each entry {_words(inner)}"

    def fits(value: Any) -> bool:
        if not isinstance(value, list | tuple):
            return False
        entries = cast(Sequence[Any], value)
        return inner is None or all(any(one(each) for _, one in inner) for each in entries)

    return f"a list{words}", fits


def _types(body: Sequence[ast.stmt]) -> dict[str, ast.expr]:
    """What a module gives names to, types among it, such as `Side = Literal["left", "right"]`.

    Of a name that is bound twice, or by anything but an assignment, nobody knows.
    """
    found: dict[str, ast.expr] = {}
    for node in _statements(body):
        value = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
        for name in _bound_names(node):
            found[name] = _UNKNOWN if value is None or name in found else value
    return found


def _statements(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements that run when the module is imported, those under `if`, `try` and `with` among them."""
    for node in body:
        yield node
        if isinstance(node, ast.If | ast.Try | ast.With):
            for inner in ("body", "handlers", "orelse", "finalbody"):
                for child in getattr(node, inner, ()):
                    yield from _statements(child.body if isinstance(child, ast.ExceptHandler) else [child])


def _of_arguments(arguments: ast.arguments, supplied: int) -> Signature:
    plain = [*arguments.posonlyargs, *arguments.args]
    given: list[ast.expr | None] = [*[None] * (len(plain) - len(arguments.defaults)), *arguments.defaults]
    return _of_parameters(
        [
            *(
                (each.arg, each.annotation, default)
                for each, default in list(zip(plain, given, strict=True))[supplied:]
            ),
            *(
                (each.arg, each.annotation, default)
                for each, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
            ),
        ],
        open_to_all=arguments.kwarg is not None,
    )


def _of_class(node: ast.ClassDef, supplied: int) -> Signature:
    for item in node.body:
        if isinstance(item, ast.FunctionDef) and item.name == "__init__":
            return _of_arguments(item.args, supplied + 1)  # and `self`
    if any(not (isinstance(base, ast.Name) and base.id == "Protocol") for base in node.bases):
        return Signature(open=True)  # fields may be inherited
    fields = [item for item in node.body if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)]
    return _of_parameters([(cast(ast.Name, item.target).id, item.annotation, item.value) for item in fields][supplied:])


def _of_parameters(
    parameters: Sequence[tuple[str, ast.expr | None, ast.expr | None]], *, open_to_all: bool = False
) -> Signature:
    """From name, hint and default of each."""
    return Signature(
        hints={name: _or_default(hint, default) for name, hint, default in parameters},
        required=frozenset(name for name, _, default in parameters if default is None),
        open=open_to_all,
    )


def _or_default(hint: ast.expr | None, default: ast.expr | None) -> ast.expr | None:
    """A hint that also allows the default, which may be given as well as left, whatever the hint says."""
    match default:
        case ast.Call(func=ast.Name(id="field"), keywords=words):
            default = next((word.value for word in words if word.arg == "default"), None)
        case _:
            pass
    if hint is None or not isinstance(default, ast.Constant):
        return hint
    kinds = _kinds(hint, {})
    if kinds is None or any(fits(default.value) for _, fits in kinds):
        return hint
    alone = default if default.value is None else ast.Subscript(ast.Name("Literal"), default)
    return ast.BinOp(hint, ast.BitOr(), alone)


def _bound_names(node: ast.stmt) -> set[str]:
    if isinstance(node, ast.Import | ast.ImportFrom):
        return {alias.asname or alias.name for alias in node.names}
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return {target.id for target in targets if isinstance(target, ast.Name)}
