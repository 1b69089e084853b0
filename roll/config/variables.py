"""Variables: `${name}` inside text is replaced by the value of `name` in the section `vars`."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
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

    def fill(text: str, key: str) -> Any:
        try:
            return _resolve(text, known, ())
        except ConfigError as error:
            document.fault(key, f"{key}: {error}")
            return text

    document.tree = {name: _map_texts(value, fill, name) for name, value in document.tree.items()}


def escape(value: Any) -> Any:
    """`value` with `${name}` in its texts escaped, so that `substitute` restores it."""
    return _map_texts(value, lambda text, _: _REFERENCE.sub(lambda match: f"${match[0]}", text))


def _map_texts(value: Any, change: Callable[[str, str], Any], key: str = "") -> Any:
    """`value` with `change(text, dotted key)` in place of every text in it."""
    if isinstance(value, str):
        return change(value, key)
    if isinstance(value, dict):
        section = cast("dict[str, Any]", value)
        return {name: _map_texts(inner, change, f"{key}.{name}") for name, inner in section.items()}
    if isinstance(value, list):
        entries = cast("list[Any]", value)
        return [_map_texts(inner, change, f"{key}.{index}") for index, inner in enumerate(entries)]
    return value


def _resolve(value: Any, variables: dict[str, Any], inside: tuple[str, ...]) -> Any:
    """`value` with its references replaced; `inside` holds the variables being resolved, to detect cycles."""

    def resolve_text(text: str, _: str) -> Any:
        whole = _REFERENCE.fullmatch(text)
        if whole and whole[1] == "$":
            return _look_up(whole[2], variables, inside)
        return _REFERENCE.sub(lambda match: _replacement(match, variables, inside), text)

    return _map_texts(value, resolve_text)


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
