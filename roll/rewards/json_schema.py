"""JSON: the reply, or the last block of it fenced as JSON, parses and is what a schema asks for.

The schema's language is the common part of JSON Schema, listed in `_KEYWORDS`; any other keyword is refused, so that no
part of a schema is passed over in silence.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, cast

from roll.errors import ConfigError, did_you_mean
from roll.rewards.patterns import matches
from roll.rewards.reply import spoken
from roll.types import Score, Task

_LONGEST = 1_000_000
_DEEPEST = 50
_REMARKS = frozenset({"$schema", "$id", "$comment", "title", "description", "default", "examples"})


class _NotJson(ValueError):
    pass


def score(task: Task, reply: str, *, schema: dict[str, Any] | None = None) -> Score:
    """1 if the reply is JSON that the schema allows, else 0; the part `parsed` is 1 if it is JSON at all.

    The schema is the task's own, its field `schema`, where none is given. Thinking before the JSON is not read.
    """
    wanted: object = task.metadata.get("schema") if schema is None else schema
    if wanted is None:
        raise ConfigError(f"task {task.id!r}: no schema; give the reward or the task a 'schema'")
    check(wanted, f"task {task.id!r}: schema")
    try:
        found = _parsed(spoken(reply).strip())
    except _NotJson:
        return Score(0.0, {"parsed": 0.0})
    return Score(float(allows(wanted, found)), {"parsed": 1.0})


def allows(schema: Any, value: Any) -> bool:
    """Whether a schema that passed `check` describes the value."""
    if isinstance(schema, bool):
        return schema
    return all(
        _KEYWORDS[keyword][1](schema, operand, value) for keyword, operand in schema.items() if keyword not in _REMARKS
    )


def check(schema: Any, place: str, depth: int = 0) -> None:
    """Raises `ConfigError` where the schema has a keyword that is not known here, or one that is malformed."""
    if isinstance(schema, bool):
        return
    if not isinstance(schema, Mapping) or depth > _DEEPEST:
        raise ConfigError(f"{place}: not a schema (got {schema!r}); write an object, at most {_DEEPEST} deep")
    for keyword, operand in cast(Mapping[str, Any], schema).items():
        if keyword in _REMARKS:
            continue
        if keyword not in _KEYWORDS:
            raise ConfigError(f"{place}: no keyword named {keyword!r}{did_you_mean(keyword, _KEYWORDS)}")
        if not _KEYWORDS[keyword][0](operand):
            raise ConfigError(f"{place}.{keyword}: not what this keyword takes (got {operand!r}); see JSON Schema")
        if keyword == "pattern":
            matches(operand, "")
        for name, inner in _inner(keyword, operand):
            check(inner, f"{place}.{keyword}{name}", depth + 1)


def _inner(keyword: str, operand: Any) -> list[tuple[str, Any]]:
    """The schemas within a keyword's operand, and where they are."""
    if keyword == "properties":
        return [(f".{name}", schema) for name, schema in operand.items()]
    if keyword == "anyOf":
        return [(f"[{index}]", schema) for index, schema in enumerate(operand)]
    return [("", operand)] if keyword in ("items", "additionalProperties") else []


def _parsed(text: str) -> Any:
    """The JSON that a text is, or else that the last of its fenced blocks holds."""
    if len(text) > _LONGEST:
        raise _NotJson
    try:
        return _loaded(text)
    except _NotJson:
        return _loaded(_last_block(text))


def _loaded(text: str) -> Any:
    try:
        return json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):  # numbers of thousands of digits are ValueErrors too
        raise _NotJson from None


def _refuse(name: str) -> None:
    raise _NotJson(name)


def _last_block(text: str) -> str:
    """The last closed block fenced as JSON, or fenced without a language; empty without one."""
    last, lines, inside = "", list[str](), None
    for line in text.split("\n"):
        fence = line.strip()
        if inside is None:
            if fence.startswith("```"):
                inside, lines = fence[3:].strip().casefold(), []
        elif fence == "```":
            last = "\n".join(lines) if inside in ("json", "") else last
            inside = None
        else:
            lines.append(line)
    return last


def _typed(name: str, value: Any) -> bool:
    if name == "integer":
        return _number(value) and (isinstance(value, int) or value.is_integer())
    if name == "number":
        return _number(value)
    return isinstance(value, _TYPES[name])


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _same(one: Any, other: Any) -> bool:
    """JSON's equality: true is not 1, but 1.0 is. Recursion is as deep as the first, which is the schema's."""
    if isinstance(one, list) and isinstance(other, list):
        ones, others = cast(list[Any], one), cast(list[Any], other)
        return len(ones) == len(others) and all(map(_same, ones, others))
    if isinstance(one, dict) and isinstance(other, dict):
        fields, others = cast(dict[str, Any], one), cast(dict[str, Any], other)
        return fields.keys() == others.keys() and all(_same(fields[key], others[key]) for key in fields)
    alike = (_number(one) and _number(other)) or (isinstance(one, bool) and isinstance(other, bool))
    return bool(one == other) and (alike or isinstance(one, str | None))


def _count(operand: Any) -> bool:
    return isinstance(operand, int) and not isinstance(operand, bool) and operand >= 0


def _names(operand: Any) -> bool:
    return isinstance(operand, list) and all(isinstance(name, str) for name in cast(list[Any], operand))


def _some(operand: Any) -> bool:
    return isinstance(operand, list) and bool(cast(list[Any], operand))


def _type_names(operand: Any) -> bool:
    names = cast(list[Any], operand) if _some(operand) else [operand]
    return all(isinstance(name, str) and name in (*_TYPES, "integer", "number") for name in names)


def _object(operand: Any) -> bool:
    return isinstance(operand, dict)


def _text(operand: Any) -> bool:
    return isinstance(operand, str)


def _anything(operand: Any) -> bool:
    return True


def _any_type(_: Any, names: Any, value: Any) -> bool:
    return any(_typed(name, value) for name in ([names] if isinstance(names, str) else names))


def _properties(_: Any, properties: Any, value: Any) -> bool:
    return not isinstance(value, dict) or all(
        allows(inner, value[name]) for name, inner in properties.items() if name in value
    )


def _additional(schema: Any, additional: Any, value: Any) -> bool:
    if not isinstance(value, dict):
        return True
    fields, known = cast(dict[str, Any], value), schema.get("properties", {})
    return all(allows(additional, field) for name, field in fields.items() if name not in known)


def _when(kind: Callable[[Any], bool], holds: Callable[[Any, Any], bool]) -> Callable[[Any, Any, Any], bool]:
    """A check of an operand and a value that says nothing about values of another kind."""
    return lambda _schema, operand, value: not kind(value) or holds(operand, value)


def _list(value: Any) -> bool:
    return isinstance(value, list)


_TYPES: dict[str, Any] = {
    "object": dict, "array": list, "string": str, "boolean": bool, "null": type(None),
}  # fmt: skip

_KEYWORDS: dict[str, tuple[Callable[[Any], bool], Callable[[Any, Any, Any], bool]]] = {
    "type": (_type_names, _any_type),
    "enum": (_some, lambda _, known, value: any(_same(one, value) for one in known)),
    "const": (_anything, lambda _, wanted, value: _same(wanted, value)),
    "anyOf": (_some, lambda _, schemas, value: any(allows(schema, value) for schema in schemas)),
    "properties": (_object, _properties),
    "additionalProperties": (_anything, _additional),
    "required": (_names, _when(_object, lambda names, value: all(name in value for name in names))),
    "items": (_anything, _when(_list, lambda schema, value: all(allows(schema, item) for item in value))),
    "minItems": (_count, _when(_list, lambda least, value: len(value) >= least)),
    "maxItems": (_count, _when(_list, lambda most, value: len(value) <= most)),
    "minimum": (_number, _when(_number, lambda least, value: value >= least)),
    "maximum": (_number, _when(_number, lambda most, value: value <= most)),
    "minLength": (_count, _when(_text, lambda least, value: len(value) >= least)),
    "maxLength": (_count, _when(_text, lambda most, value: len(value) <= most)),
    "pattern": (_text, _when(_text, matches)),
}
"""By keyword: whether its operand is well formed, and whether a schema's operand of it allows a value."""
