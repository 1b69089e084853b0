"""The names that a file may use, from source text: one line about each, or all about one. Imports none of them."""

from __future__ import annotations

from roll.config.load import recipes
from roll.errors import UnknownName
from roll.registry import TABLES

_RECIPES = "recipes"
_INDENT = "    "


def list_names(kind: str | None) -> list[str]:
    """One line per name of a kind, or of all kinds, with its summary."""
    kinds = (_RECIPES, *TABLES) if kind is None else (_known_kind(kind),)
    lines: list[str] = []
    for each in kinds:
        summaries = _recipe_titles() if each == _RECIPES else TABLES[each].summaries()
        width = max(map(len, summaries))
        lines += [each, *(f"  {name:<{width}}  {summary}".rstrip() for name, summary in summaries.items())]
    return lines


def list_arguments(kind: str, name: str) -> list[str]:
    """Where a name is defined, its docstring, and its arguments with types, defaults and texts."""
    kind = _known_kind(kind)
    if kind == _RECIPES:
        if name not in recipes():
            raise UnknownName("recipe", name, recipes())
        return recipes()[name].splitlines()
    table = TABLES[kind]
    signature = table.signature(name)
    lines = [":".join(table.locate(name)), *(f"{_INDENT}{line}".rstrip() for line in signature.doc.splitlines())]
    arguments = signature.arguments()
    lines += ["arguments"] if arguments else ["takes any arguments" if signature.open else "takes no arguments"]
    for argument, definition in arguments.items():
        lines.append(f"{_INDENT}{definition}" + ("" if argument in signature.defaults else "  (required)"))
        if argument in signature.notes:
            lines.append(f"{_INDENT}{_INDENT}{signature.notes[argument]}")
    return lines


def _known_kind(kind: str) -> str:
    kind = {"envs": "environments"}.get(kind, kind)  # the config key is `envs`
    if kind not in (known := (_RECIPES, *TABLES)):
        raise UnknownName("kind", kind, known)
    return kind


def _recipe_titles() -> dict[str, str]:
    return {name: text.partition("\n")[0].lstrip("# ") for name, text in recipes().items()}
