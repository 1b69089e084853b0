"""Compare calls with expected ones by the published rules of the Berkeley function calling leaderboard.

Expected calls are a list of `{function: {argument: [allowed values]}}`. An empty string among the allowed values means
that the argument is optional.

| argument type | right if |
|---|---|
| string | allowed, ignoring case, spaces and `,./-_*^`; single and double quotes are equal |
| integer, boolean | allowed and of exactly this type: true is not 1 |
| float | allowed; whole numbers count as floats |
| array, tuple | allowed, with strings compared as above, in the same order |
| dict | all keys and values are allowed; a key that allows an empty string is optional |
| array of dicts | each dict is right, in the same order |
| other than the schema's type | equal to an allowed value: the name of a variable, or null |

A call needs every argument that the schema requires and no argument that is not expected. The number of calls must
match; their order is free, and each expected call is matched once.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias, cast

from roll.data.tools import ToolCall

Allowed: TypeAlias = Mapping[str, Sequence[Any]]
"""Allowed values by argument."""
_IGNORED = re.compile(r"[ ,./\-_*^]")
_TYPES: dict[str, type] = {
    "string": str,
    "integer": int,
    "float": float,
    "number": float,
    "boolean": bool,
    "array": list,
    "tuple": list,
    "dict": dict,
    "object": dict,
    "any": str,
}


def calls_match(
    calls: Sequence[ToolCall], expected: Sequence[tuple[str, Allowed]], schemas: Mapping[str, Mapping[str, Any]]
) -> bool:
    """Whether the calls match the expected ones; `schemas` has the parameters of every function by name."""

    def matches(call: ToolCall, name: str, allowed: Allowed) -> bool:
        return call.name == name and arguments_match(call.arguments, allowed, schemas[name])

    return len(calls) == len(expected) and _perfect_matching(
        [[index for index, call in enumerate(calls) if matches(call, *each)] for each in expected]
    )


def arguments_match(arguments: Mapping[str, Any], allowed: Allowed, schema: Mapping[str, Any]) -> bool:
    """Whether all arguments of one call are allowed."""
    properties = cast(Mapping[str, Mapping[str, Any]], schema.get("properties", {}))
    return (
        arguments.keys() >= set(schema.get("required", ()))
        and _has_all(arguments, allowed)
        and all(
            name in properties and name in allowed and _value_matches(value, allowed[name], properties[name])
            for name, value in arguments.items()
        )
    )


def _has_all(arguments: Mapping[str, Any], allowed: Mapping[str, Any]) -> bool:
    """Whether only optional arguments are missing."""
    return all(name in arguments or "" in choices for name, choices in allowed.items())


def _perfect_matching(fitting: Sequence[Sequence[int]]) -> bool:
    """Whether every row can be assigned a different candidate."""
    assigned: dict[int, int] = {}

    def assign(row: int, tried: set[int]) -> bool:
        for column in fitting[row]:
            if column not in tried:
                tried.add(column)
                if column not in assigned or assign(assigned[column], tried):
                    assigned[column] = row
                    return True
        return False

    return all(assign(row, set()) for row in range(len(fitting)))


def _value_matches(value: Any, choices: Sequence[Any], about: Mapping[str, Any]) -> bool:
    kind = str(about.get("type", "any"))
    expected_type, inner = _TYPES.get(kind, str), _item_type(kind, about)
    if expected_type is float and type(value) is int:
        value = float(value)
    usual = _first_type(choices)
    typed = type(value) is expected_type and (inner is None or _items_have_type(value, choices, inner))
    if not typed and type(value) is not usual:
        return False
    if not typed or usual not in (None, expected_type):
        return value in choices  # a variable name, or null
    if expected_type is dict:
        return any(_dict_matches(value, choice) for choice in choices if choice != "")
    if expected_type is list and inner is dict:
        return any(len(value) == len(choice) and all(map(_dict_matches, value, choice)) for choice in choices)
    if expected_type is list:
        return list(map(_normalise, value)) in [list(map(_normalise, choice)) for choice in choices]
    return _normalise(value) in [_normalise(choice) for choice in choices]


def _item_type(kind: str, about: Mapping[str, Any]) -> type | None:
    items = about.get("items")
    if kind not in ("array", "tuple") or not isinstance(items, Mapping):
        return None
    return _TYPES.get(str(cast(Mapping[str, Any], items).get("type", "any")), str)


def _first_type(choices: Sequence[object]) -> type | None:
    """The type of the first non-empty choice."""
    return next((type(choice) for choice in choices if choice != ""), None)


def _items_have_type(value: Sequence[Any], choices: Sequence[Any], inner: type) -> bool:
    """Whether all entries of a list have the schema's type, or the type of an allowed list's entries."""
    for choice in choices:
        if not isinstance(choice, list):
            return True
        usual = _first_type(cast(list[Any], choice))
        if all(type(entry) in (inner, usual) for entry in value):
            return True
    return False


def _dict_matches(value: Any, choice: Any) -> bool:
    if not isinstance(value, dict) or not isinstance(choice, dict):
        return False
    arguments, allowed = cast(dict[str, Any], value), cast(dict[str, Any], choice)
    return _has_all(arguments, allowed) and all(
        name in allowed and _entry_matches(entry, allowed[name]) for name, entry in arguments.items()
    )


def _entry_matches(value: Any, choices: Any) -> bool:
    """Whether a dict's value is allowed; allowed values may be nested dicts."""
    if isinstance(value, dict) and isinstance(choices, dict):
        return _dict_matches(value, choices)
    listed = cast(list[Any], choices) if isinstance(choices, list) else [choices]
    return _normalise(value) in [_normalise(choice) for choice in listed] or any(
        _dict_matches(value, choice) for choice in listed
    )


def _normalise(value: Any) -> Any:
    """Text without ignored characters; other values unchanged."""
    return _IGNORED.sub("", value).lower().replace("'", '"') if isinstance(value, str) else value
