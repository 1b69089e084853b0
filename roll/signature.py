"""Keyword arguments and docstring of a function or class, read from source text without importing it."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias, cast

from roll.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Signature:
    """The keyword arguments that a config file may pass to a function or class."""

    hints: Mapping[str, ast.expr | None] = field(default_factory=dict[str, ast.expr | None])
    """Type hint of each keyword; None if it has none."""
    defaults: Mapping[str, str] = field(default_factory=dict[str, str])
    """Source text of each default."""
    required: frozenset[str] = frozenset()
    open: bool = False
    """Accepts any keyword, or the keywords are known only at run time."""
    types: Mapping[str, ast.expr] = field(default_factory=dict[str, ast.expr])
    """Values of names that hints may contain."""
    doc: str = ""
    """The docstring; for a class, also that of its `__init__`."""
    notes: Mapping[str, str] = field(default_factory=dict[str, str])
    """Text about each keyword that is a documented field of a class."""
    methods: frozenset[str] | None = None
    """Methods of a class, such as `async step`; None if it may have others, or is a function."""

    @property
    def summary(self) -> str:
        """First paragraph of the docstring, as one line."""
        return " ".join(self.doc.partition("\n\n")[0].split())

    def arguments(self) -> dict[str, str]:
        """Every keyword as a definition writes it, such as `clip_low: float = 0.2`."""
        types = {name: "" if hint is None else f": {ast.unparse(hint)}" for name, hint in self.hints.items()}
        return {
            name: f"{name}{type}" + (f" = {self.defaults[name]}" if name in self.defaults else "")
            for name, type in types.items()
        }

    def has(self, method: str) -> bool:
        """Whether it has this method, as far as the source tells."""
        return self.methods is None or method in self.methods

    def expected(self, key: str, value: Any) -> str:
        """Description of a valid value in place of `value`; empty if it is valid or cannot be judged from source."""
        kinds = _kinds(self.hints.get(key), self.types)
        if kinds is None or any(fits(value) for _, fits in kinds):
            return ""
        return _describe(kinds)


def signature_of(source: Path, attribute: str, supplied: int, supplied_to_class: int) -> Signature | None:
    """The signature of a function or class in `source`, without its first `supplied` parameters.

    None if `source` does not define it.
    """
    if source.suffix != ".py":
        return Signature(open=True)
    try:
        module = ast.parse(source.read_text(encoding="utf-8"))
    except SyntaxError as error:
        raise ConfigError(f"{source}:{error.lineno}: {error.msg}; Python cannot read this file") from None
    types = _types(module.body)
    for node in _statements(module.body):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == attribute:
            signature = replace(_from_arguments(node.args, supplied), types=types, doc=ast.get_docstring(node) or "")
            # A decorator may accept other types than the function that it decorates.
            return replace(signature, hints=dict.fromkeys(signature.hints)) if node.decorator_list else signature
        if isinstance(node, ast.ClassDef) and node.name == attribute:
            signature = replace(_from_class(node, supplied_to_class), types=types, doc=_class_doc(node))
            return replace(signature, methods=_methods(node))
        if _bound_names(node) & {attribute, "*"}:
            return Signature(open=True)
    return None


def public_names(source: Path) -> list[str]:
    """Public functions and classes of a file."""
    body = ast.parse(source.read_text(encoding="utf-8")).body
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    names = [node.name for node in _statements(body) if isinstance(node, kinds)]
    return [name for name in names if not name.startswith("_")]


def _class_doc(node: ast.ClassDef) -> str:
    starts = [item for item in node.body if isinstance(item, ast.FunctionDef) and item.name == "__init__"]
    return "\n\n".join(filter(None, (ast.get_docstring(each) for each in (node, *starts))))


def field_notes(node: ast.ClassDef) -> dict[str, str]:
    """The string below each field of a class."""
    notes: dict[str, str] = {}
    for item, below in zip(node.body, node.body[1:], strict=False):
        match item, below:
            case (
                ast.AnnAssign(target=ast.Name(id=name)) | ast.Assign(targets=[ast.Name(id=name)]),
                ast.Expr(value=ast.Constant(value=str(text))),
            ):
                notes[name] = " ".join(text.split())
            case _:
                pass
    return notes


_UNKNOWN = ast.Tuple([])
"""A hint without information."""
Kind: TypeAlias = tuple[str, Callable[[Any], bool]]
"""A type of value: its description, and a test for it."""
_PLAIN: dict[str, Kind] = {
    "int": ("a whole number", lambda value: isinstance(value, int) and not isinstance(value, bool)),
    "float": ("a number", lambda value: isinstance(value, int | float) and not isinstance(value, bool)),
    "str": ("text", lambda value: isinstance(value, str)),
    "bool": ("true or false", lambda value: isinstance(value, bool)),
}
_NULL: Kind = ("null", lambda value: value is None)
_LISTS = ("list", "tuple", "Sequence", "set", "frozenset")


def _kinds(hint: ast.expr | None, types: Mapping[str, ast.expr]) -> list[Kind] | None:
    """All types of value that a hint allows; None if it contains more than YAML's types."""
    match hint:
        case ast.Constant(value=None):
            return [_NULL]
        case ast.Constant(value=str(text)):
            return _kinds(_parse_hint(text), types)
        case ast.Name(id=name) if name in types:
            return _kinds(types[name], {})
        case ast.Name(id=name) if name in _PLAIN:
            return [_PLAIN[name]]
        case ast.Name(id=name) if name in _LISTS:
            return [_list_of(None)]
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            return _either([left, right], types)
        case ast.Subscript(value=ast.Name(id=name), slice=inner):
            return _generic(name, inner.elts if isinstance(inner, ast.Tuple) else [inner], types)
        case _:
            return None


def _generic(name: str, inner: Sequence[ast.expr], types: Mapping[str, ast.expr]) -> list[Kind] | None:
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
        uniform = name != "tuple" or (len(inner) == 2 and ast.unparse(inner[1]) == "...")
        return [_list_of(_kinds(inner[0], types) if uniform else None)]
    return None


def _parse_hint(text: str) -> ast.expr | None:
    """The expression of a hint in quotes; None if it is invalid."""
    try:
        return ast.parse(text, mode="eval").body
    except SyntaxError:
        return None


def _either(hints: Sequence[ast.expr], types: Mapping[str, ast.expr]) -> list[Kind] | None:
    alternatives = [_kinds(hint, types) for hint in hints]
    return None if None in alternatives else [kind for kinds in alternatives if kinds for kind in kinds]


def _describe(kinds: Sequence[Kind]) -> str:
    return " or ".join(dict.fromkeys(text for text, _ in kinds))


def _one_of(values: Sequence[Any]) -> Kind:
    return (
        " or ".join(map(repr, values)),
        lambda value: any(isinstance(value, bool) is isinstance(each, bool) and value == each for each in values),
    )


def _list_of(inner: list[Kind] | None) -> Kind:
    """A list with entries of these kinds; of any kind if None."""
    text = "" if inner is None else f", each entry {_describe(inner)}"

    def fits(value: Any) -> bool:
        if not isinstance(value, list | tuple):
            return False
        entries = cast(Sequence[Any], value)
        return inner is None or all(any(one(each) for _, one in inner) for each in entries)

    return f"a list{text}", fits


def _types(body: Sequence[ast.stmt]) -> dict[str, ast.expr]:
    """Values of the names that a module assigns, such as `Side = Literal["left", "right"]`.

    A name that is bound twice, or by an import, is `_UNKNOWN`.
    """
    types: dict[str, ast.expr] = {}
    for node in _statements(body):
        value = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
        for name in _bound_names(node):
            types[name] = _UNKNOWN if value is None or name in types else value
    return types


def _statements(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements that run at import, including those inside `if`, `try` and `with`."""
    for node in body:
        yield node
        if isinstance(node, ast.If | ast.Try | ast.With):
            for inner in ("body", "handlers", "orelse", "finalbody"):
                for child in getattr(node, inner, ()):
                    yield from _statements(child.body if isinstance(child, ast.ExceptHandler) else [child])


def _from_arguments(arguments: ast.arguments, supplied: int) -> Signature:
    plain = [*arguments.posonlyargs, *arguments.args]
    defaults: list[ast.expr | None] = [*[None] * (len(plain) - len(arguments.defaults)), *arguments.defaults]
    pairs = [*list(zip(plain, defaults, strict=True))[supplied:]]
    pairs += zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    parameters = [(argument.arg, argument.annotation, default) for argument, default in pairs]
    return _from_parameters(parameters, open_to_all=arguments.kwarg is not None)


def _from_class(node: ast.ClassDef, supplied: int) -> Signature:
    for item in node.body:
        if isinstance(item, ast.FunctionDef) and item.name == "__init__":
            return _from_arguments(item.args, supplied + 1)  # and `self`
    if any(not (isinstance(base, ast.Name) and base.id == "Protocol") for base in node.bases):
        return Signature(open=True)  # fields may be inherited
    fields = [item for item in node.body if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)]
    parameters = [(cast(ast.Name, item.target).id, item.annotation, item.value) for item in fields]
    return replace(_from_parameters(parameters[supplied:]), notes=field_notes(node))


def _methods(node: ast.ClassDef) -> frozenset[str] | None:
    """The methods of a class, `async` ones with that word; None if bases, decorators or assignments may add others."""
    plain = ast.FunctionDef | ast.AsyncFunctionDef | ast.AnnAssign | ast.Expr | ast.Pass
    if node.bases or node.keywords or node.decorator_list or not all(isinstance(each, plain) for each in node.body):
        return None
    functions = [each for each in node.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)]
    if any(each.decorator_list or each.name == "__getattr__" for each in functions):
        return None
    names = {f"async {each.name}" for each in functions if isinstance(each, ast.AsyncFunctionDef)}
    return frozenset(names | {each.name for each in functions})


def _from_parameters(
    parameters: Sequence[tuple[str, ast.expr | None, ast.expr | None]], *, open_to_all: bool = False
) -> Signature:
    """The signature from name, hint and default of each parameter."""
    return Signature(
        hints={name: _or_default(hint, default) for name, hint, default in parameters},
        defaults={name: ast.unparse(default) for name, _, default in parameters if default is not None},
        required=frozenset(name for name, _, default in parameters if default is None),
        open=open_to_all,
    )


def _or_default(hint: ast.expr | None, default: ast.expr | None) -> ast.expr | None:
    """The hint, widened to allow the default value."""
    if isinstance(default, ast.Call) and ast.unparse(default.func) == "field":
        default = next((keyword.value for keyword in default.keywords if keyword.arg == "default"), None)
    if hint is None or not isinstance(default, ast.Constant):
        return hint
    kinds = _kinds(hint, {})
    if kinds is None or any(fits(default.value) for _, fits in kinds):
        return hint
    exact = default if default.value is None else ast.Subscript(ast.Name("Literal"), default)
    return ast.BinOp(hint, ast.BitOr(), exact)


def _bound_names(node: ast.stmt) -> set[str]:
    if isinstance(node, ast.Import | ast.ImportFrom):
        return {alias.asname or alias.name for alias in node.names}
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return {target.id for target in targets if isinstance(target, ast.Name)}
