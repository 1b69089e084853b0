"""Variables: `${name}` inside text is replaced by the value of `name` in the section `vars`."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

from roll.config.document import Document, TooLarge
from roll.errors import ConfigError, did_you_mean

_REFERENCE = re.compile(r"(\$+)\{([^{}]*)\}")


@dataclass(frozen=True, slots=True)
class _Variables:
    values: dict[str, Any]
    document: Document
    """Counts the size of what replaces the references."""


def substitute(document: Document) -> None:
    """Replace every `${name}` in the document and remove `vars`; `$${name}` is the literal text `${name}`."""
    variables = document.tree.pop("vars", None)
    if variables is not None and not isinstance(variables, dict):
        document.fault("vars", f"vars: must be a section of names and values (got {variables!r})")
        variables = None
    known = _Variables(cast("dict[str, Any]", variables or {}), document)

    def fill(text: str, key: str) -> Any:
        try:
            return _resolve(text, known, ())
        except TooLarge:
            raise
        except RecursionError:
            raise TooLarge(
                f"{document.where(key)}: {key}: variables are nested too deeply; write them flatter"
            ) from None
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


def _resolve(value: Any, variables: _Variables, inside: tuple[str, ...]) -> Any:
    """`value` with its references replaced; `inside` holds the variables being resolved, to detect cycles."""

    def resolve_text(text: str, _: str) -> Any:
        whole = _REFERENCE.fullmatch(text)
        if whole and whole[1] == "$":
            return _look_up(whole[2], variables, inside)
        return _REFERENCE.sub(lambda match: _replacement(match, variables, inside), text)

    return _map_texts(value, resolve_text)


def _replacement(match: re.Match[str], variables: _Variables, inside: tuple[str, ...]) -> str:
    if len(match[1]) > 1:
        return match[0][1:]
    value = _look_up(match[2], variables, inside)
    if isinstance(value, dict | list):
        raise ConfigError(f"variable {match[2]!r} is a list or a section and cannot be part of a text")
    return value if isinstance(value, str) else json.dumps(value)


def _look_up(name: str, variables: _Variables, inside: tuple[str, ...]) -> Any:
    if name in inside:
        raise ConfigError(f"variables name each other in a circle: {' -> '.join((*inside, name))}")
    if name not in variables.values:
        near = did_you_mean(name, variables.values) or "; there is no 'vars' section"
        raise ConfigError(f"no variable {name!r} under 'vars'{near} ('$${{{name}}}' is the text itself)")
    value = _resolve(variables.values[name], variables, (*inside, name))
    variables.document.grow(len(json.dumps(value)), _depth(value))
    return value


def _depth(value: Any) -> int:
    inner = cast("dict[str, Any]", value).values() if isinstance(value, dict) else value
    return 1 + max(map(_depth, cast("list[Any]", inner)), default=0) if isinstance(value, dict | list) else 0
