"""Whether calls are the wanted ones, by the published rules of the Berkeley function calling leaderboard.

What is wanted is a list of `{function: {argument: [allowed values]}}`. An empty string among the allowed values means
that the argument may be left out.

| of an argument | counts as right |
|---|---|
| string | an allowed one, case, spaces and `,./-_*^` aside, a single quote being a double one |
| integer, boolean | an allowed one of this very type: true is not 1 |
| float | an allowed one; a whole number is one too |
| array, tuple | an allowed one, its strings compared as above, in its order |
| dict | one whose keys are allowed and whose values are; a key whose values hold an empty string may be left out |
| array of dicts | dict by dict, in order |
| of another type than the schema says | equal to an allowed one: those stand for a variable, or for nothing |

A call needs every argument that the schema requires, may have no other than those that are wanted, and there is one
call for each that is wanted: in any order, each counted once.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias, cast

from roll.data.tools import ToolCall

Allowed: TypeAlias = Mapping[str, Sequence[Any]]
"""Values by argument."""
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


def matched(
    calls: Sequence[ToolCall], wanted: Sequence[tuple[str, Allowed]], schemas: Mapping[str, Mapping[str, Any]]
) -> bool:
    """Whether the calls are those that are wanted; `schemas` has the parameters of every function, by its name."""
    if len(calls) != len(wanted):
        return False
    return _each_has_its_own([_fitting(calls, name, allowed, schemas[name]) for name, allowed in wanted])


def _fitting(calls: Sequence[ToolCall], name: str, allowed: Allowed, schema: Mapping[str, Any]) -> list[int]:
    """Which of the calls could be this one."""
    return [place for place, call in enumerate(calls) if call.name == name and fits(call.arguments, allowed, schema)]


def fits(given: Mapping[str, Any], allowed: Allowed, schema: Mapping[str, Any]) -> bool:
    """Whether the arguments of one call are allowed."""
    properties = cast(Mapping[str, Mapping[str, Any]], schema.get("properties", {}))
    if any(name not in given for name in schema.get("required", ())):
        return False
    if any(name not in given and "" not in choices for name, choices in allowed.items()):
        return False
    return all(
        name in properties and name in allowed and _right(value, allowed[name], properties[name])
        for name, value in given.items()
    )


def _each_has_its_own(fitting: Sequence[Sequence[int]]) -> bool:
    """Whether every one can have one of those that fit it, and none is had twice."""
    taken: dict[int, int] = {}

    def placed(row: int, tried: set[int]) -> bool:
        for column in fitting[row]:
            if column not in tried:
                tried.add(column)
                if column not in taken or placed(taken[column], tried):
                    taken[column] = row
                    return True
        return False

    return all(placed(row, set()) for row in range(len(fitting)))


def _right(value: Any, choices: Sequence[Any], about: Mapping[str, Any]) -> bool:
    kind = str(about.get("type", "any"))
    wanted, inner = _TYPES.get(kind, str), _inner(kind, about)
    if wanted is float and type(value) is int:
        value = float(value)
    usual = _usual(choices)
    typed = type(value) is wanted and (inner is None or _typed(value, choices, inner))
    if not typed and type(value) is not usual:
        return False
    if not typed or usual not in (None, wanted):
        return value in choices  # the name of a variable, or a null
    if wanted is dict:
        return any(_right_dict(value, choice) for choice in choices if choice != "")
    if wanted is list and inner is dict:
        return any(_right_dicts(value, choice) for choice in choices)
    if wanted is list:
        return _plain_all(value) in [_plain_all(choice) for choice in choices]
    return _plain(value) in [_plain(choice) for choice in choices]


def _inner(kind: str, about: Mapping[str, Any]) -> type | None:
    items = about.get("items")
    if kind not in ("array", "tuple") or not isinstance(items, Mapping):
        return None
    return _TYPES.get(str(cast(Mapping[str, Any], items).get("type", "any")), str)


def _usual(choices: Sequence[object]) -> type | None:
    """The type of the first that is not left out."""
    return next((type(choice) for choice in choices if choice != ""), None)


def _typed(value: Sequence[Any], choices: Sequence[Any], inner: type) -> bool:
    """Whether all entries of a list are of the type that the schema says, or of the one that an allowed list has."""
    for choice in choices:
        if not isinstance(choice, list):
            return True
        usual = _usual(cast(list[Any], choice))
        if all(type(entry) in (inner, usual) for entry in value):
            return True
    return False


def _right_dict(value: Any, choice: Any) -> bool:
    if not isinstance(value, dict) or not isinstance(choice, dict):
        return False
    given, allowed = cast(dict[str, Any], value), cast(dict[str, Any], choice)
    if any(name not in given and "" not in choices for name, choices in allowed.items()):
        return False
    return all(name in allowed and _among(entry, allowed[name]) for name, entry in given.items())


def _right_dicts(value: Sequence[Any], choice: Sequence[Any]) -> bool:
    return len(value) == len(choice) and all(map(_right_dict, value, choice))


def _among(value: Any, choices: Any) -> bool:
    """Whether a dict's value is one of those allowed, which may be dicts of such again."""
    if isinstance(value, dict) and isinstance(choices, dict):
        return _right_dict(value, choices)
    listed = cast(list[Any], choices) if isinstance(choices, list) else [choices]
    return _plain(value) in [_plain(choice) for choice in listed] or any(
        _right_dict(value, choice) for choice in listed
    )


def _plain(value: Any) -> Any:
    """Text without what does not count; anything else as it is."""
    return _IGNORED.sub("", value).lower().replace("'", '"') if isinstance(value, str) else value


def _plain_all(values: Sequence[Any]) -> list[Any]:
    return [_plain(value) for value in values]
