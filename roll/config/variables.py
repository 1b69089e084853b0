"""Variables: `${name}` inside text is replaced by the value of `name` in the section `vars`."""

from __future__ import annotations

import json
import re
from typing import Any, cast

from roll.config.document import Document
from roll.errors import ConfigError, did_you_mean

_REFERENCE = re.compile(r"(\$+)\{([^{}]*)\}")


def substitute(document: Document) -> None:
    """Replace every `${name}` in the document and remove `vars`; `$${name}` is the literal text `${name}`."""
    variables = document.tree.pop("vars", None)
    if variables is not None and not isinstance(variables, dict):
        document.fault("vars", f"vars: must be a section of names and values (got {variables!r})")
        variables = None
    known = cast("dict[str, Any]", variables or {})
    document.tree = {name: _fill(document, value, name, known) for name, value in document.tree.items()}


def escape(value: Any) -> Any:
    """`value` with `${name}` in its texts escaped, so that `substitute` restores it."""
    if isinstance(value, str):
        return _REFERENCE.sub(lambda match: f"${match[0]}", value)
    if isinstance(value, dict):
        return {name: escape(inner) for name, inner in cast("dict[str, Any]", value).items()}
    return [escape(inner) for inner in cast("list[Any]", value)] if isinstance(value, list) else value


def _fill(document: Document, value: Any, key: str, variables: dict[str, Any]) -> Any:
    if isinstance(value, dict):
        section = cast("dict[str, Any]", value)
        return {name: _fill(document, inner, f"{key}.{name}", variables) for name, inner in section.items()}
    if isinstance(value, list):
        entries = cast("list[Any]", value)
        return [_fill(document, inner, f"{key}.{index}", variables) for index, inner in enumerate(entries)]
    if not isinstance(value, str):
        return value
    try:
        return _resolve(value, variables, ())
    except ConfigError as error:
        document.fault(key, f"{key}: {error}")
        return value


def _resolve(value: Any, variables: dict[str, Any], inside: tuple[str, ...]) -> Any:
    """`value` with its references replaced; `inside` holds the variables being resolved, to detect cycles."""
    if isinstance(value, dict):
        section = cast("dict[str, Any]", value)
        return {name: _resolve(inner, variables, inside) for name, inner in section.items()}
    if isinstance(value, list):
        return [_resolve(inner, variables, inside) for inner in cast("list[Any]", value)]
    if not isinstance(value, str):
        return value
    whole = _REFERENCE.fullmatch(value)
    if whole and whole[1] == "$":
        return _look_up(whole[2], variables, inside)
    return _REFERENCE.sub(lambda match: _replacement(match, variables, inside), value)


def _replacement(match: re.Match[str], variables: dict[str, Any], inside: tuple[str, ...]) -> str:
    if len(match[1]) > 1:
        return match[0][1:]
    value = _look_up(match[2], variables, inside)
    if isinstance(value, dict | list):
        raise ConfigError(f"variable {match[2]!r} is a list or a section and cannot be part of a text")
    return value if isinstance(value, str) else json.dumps(value)


def _look_up(name: str, variables: dict[str, Any], inside: tuple[str, ...]) -> Any:
    if name in inside:
        raise ConfigError(f"variables name each other in a circle: {' -> '.join((*inside, name))}")
    if name not in variables:
        near = did_you_mean(name, variables) or "; there is no 'vars' section"
        raise ConfigError(f"no variable {name!r} under 'vars'{near} ('$${{{name}}}' is the text itself)")
    return _resolve(variables[name], variables, (*inside, name))
