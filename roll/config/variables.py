"""Scratch values: `${name}` inside text becomes what `vars:` says of it."""

from __future__ import annotations

import json
import re
from typing import Any, cast

from roll.config.document import Document
from roll.errors import ConfigError, did_you_mean

_REFERENCE = re.compile(r"(\$+)\{([^{}]*)\}")


def substitute(document: Document) -> None:
    """Replace every `${name}` below the document's root and take `vars` away; `$${name}` is the text itself."""
    given = document.tree.pop("vars", None)
    if given is not None and not isinstance(given, dict):
        document.fault("vars", f"vars: must be a section of names and values (got {given!r})")
        given = None
    variables = cast("dict[str, Any]", given or {})
    document.tree = {name: _filled(document, value, name, variables) for name, value in document.tree.items()}


def escaped(value: Any) -> Any:
    """`value` with its texts written such that `substitute` gives them back."""
    if isinstance(value, str):
        return _REFERENCE.sub(lambda found: f"${found[0]}", value)
    if isinstance(value, dict):
        return {name: escaped(inner) for name, inner in cast("dict[str, Any]", value).items()}
    return [escaped(inner) for inner in cast("list[Any]", value)] if isinstance(value, list) else value


def _filled(document: Document, value: Any, key: str, variables: dict[str, Any]) -> Any:
    if isinstance(value, dict):
        section = cast("dict[str, Any]", value)
        return {name: _filled(document, inner, f"{key}.{name}", variables) for name, inner in section.items()}
    if isinstance(value, list):
        entries = cast("list[Any]", value)
        return [_filled(document, inner, f"{key}.{index}", variables) for index, inner in enumerate(entries)]
    if not isinstance(value, str):
        return value
    try:
        return _resolved(value, variables, ())
    except ConfigError as error:
        document.fault(key, f"{key}: {error}")
        return value


def _resolved(value: Any, variables: dict[str, Any], inside: tuple[str, ...]) -> Any:
    """`value` with its references replaced; `inside` are the variables being looked up, to find circles."""
    if isinstance(value, dict):
        section = cast("dict[str, Any]", value)
        return {name: _resolved(inner, variables, inside) for name, inner in section.items()}
    if isinstance(value, list):
        return [_resolved(inner, variables, inside) for inner in cast("list[Any]", value)]
    if not isinstance(value, str):
        return value
    whole = _REFERENCE.fullmatch(value)
    if whole and whole[1] == "$":
        return _looked_up(whole[2], variables, inside)
    return _REFERENCE.sub(lambda found: _text_of(found, variables, inside), value)


def _text_of(found: re.Match[str], variables: dict[str, Any], inside: tuple[str, ...]) -> str:
    if len(found[1]) > 1:
        return found[0][1:]
    value = _looked_up(found[2], variables, inside)
    if isinstance(value, dict | list):
        raise ConfigError(f"variable {found[2]!r} is a list or a section and cannot stand inside text")
    return value if isinstance(value, str) else json.dumps(value)


def _looked_up(name: str, variables: dict[str, Any], inside: tuple[str, ...]) -> Any:
    if name in inside:
        raise ConfigError(f"variables name each other in a circle: {' -> '.join((*inside, name))}")
    if name not in variables:
        near = did_you_mean(name, variables) or "; there is no 'vars' section"
        raise ConfigError(f"no variable {name!r} under 'vars'{near} ('$${{{name}}}' is the text itself)")
    return _resolved(variables[name], variables, (*inside, name))
