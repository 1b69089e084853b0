"""JSON: the response, or its last block fenced as JSON, parses and satisfies a schema.

Schemas use the common subset of JSON Schema listed in `_OPERANDS`. Any other keyword is refused, so that no part of a
schema is silently ignored. The package `jsonschema` validates; `pattern` is matched in linear time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, cast

from jsonschema import Draft202012Validator, ValidationError, validators

from roll.errors import ConfigError, did_you_mean
from roll.rewards.patterns import matches
from roll.rewards.response import answer_text, parse_json
from roll.types import Score, Task

_MAX_CHARS = 1_000_000
_MAX_DEPTH = 50
_ANNOTATIONS = frozenset({"$id", "$comment", "title", "description", "default", "examples"})


def score(task: Task, response: str, *, schema: dict[str, Any] | None = None) -> Score:
    """1 if the response is JSON that satisfies the schema, else 0; the part `parsed` is 1 if it is JSON at all.

    The schema defaults to the task's field `schema`. Thinking before the JSON is ignored.
    """
    rules: Any = task.metadata.get("schema") if schema is None else schema
    if rules is None:
        raise ConfigError(f"task {task.id!r}: no schema; give the reward or the task a 'schema'")
    check(rules, f"task {task.id!r}: schema")
    try:
        value = _parse(answer_text(response).strip())
    except ValueError:
        return Score(0.0, {"parsed": 0.0})
    return Score(float(_Validator(rules).is_valid(value)), {"parsed": 1.0})


def check(schema: Any, where: str, depth: int = 0) -> None:
    """Raise `ConfigError` if the schema has an unknown or malformed keyword."""
    if isinstance(schema, bool):
        return
    if not isinstance(schema, Mapping) or depth > _MAX_DEPTH:
        raise ConfigError(f"{where}: not a schema (got {schema!r}); write an object, at most {_MAX_DEPTH} deep")
    for keyword, operand in cast(Mapping[str, Any], schema).items():
        if keyword in _ANNOTATIONS or (keyword == "$schema" and depth == 0):
            continue
        if keyword not in _OPERANDS:
            raise ConfigError(f"{where}: no keyword named {keyword!r}{did_you_mean(keyword, _OPERANDS)}")
        if not _OPERANDS[keyword].is_valid(operand):
            raise ConfigError(f"{where}.{keyword}: not what this keyword takes (got {operand!r}); see JSON Schema")
        if keyword == "pattern":
            matches(operand, "")
        for name, inner in _subschemas(keyword, operand):
            check(inner, f"{where}.{keyword}{name}", depth + 1)


def _subschemas(keyword: str, operand: Any) -> list[tuple[str, Any]]:
    """The schemas inside a keyword's operand, with their location."""
    if keyword == "properties":
        return [(f".{name}", schema) for name, schema in operand.items()]
    if keyword == "anyOf":
        return [(f"[{index}]", schema) for index, schema in enumerate(operand)]
    return [("", operand)] if keyword in ("items", "additionalProperties") else []


def _parse(text: str) -> Any:
    """The JSON value of a text, or else of its last fenced block."""
    if len(text) > _MAX_CHARS:
        raise ValueError("too long")
    try:
        return parse_json(text)
    except ValueError:  # also for numbers of thousands of digits
        return parse_json(_last_block(text))


def _last_block(text: str) -> str:
    """The last closed block fenced as JSON or without a language; empty if there is none."""
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


def _match_pattern(validator: Any, pattern: str, value: Any, schema: Any) -> Iterator[ValidationError]:
    if isinstance(value, str) and not matches(pattern, value):
        yield ValidationError(pattern)


def _no_id(schema: Any) -> str:
    """`$id` is an annotation here."""
    return ""


_TYPE = {"enum": ["array", "boolean", "integer", "null", "number", "object", "string"]}
_SCHEMA, _COUNT, _NUMBER = True, {"type": "integer", "minimum": 0}, {"type": "number"}
_OPERAND_SCHEMAS: dict[str, Any] = {
    "type": {"anyOf": [_TYPE, {"type": "array", "minItems": 1, "items": _TYPE}]},
    "enum": {"type": "array", "minItems": 1},
    "const": True,
    "anyOf": {"type": "array", "minItems": 1},
    "properties": {"type": "object"},
    "additionalProperties": _SCHEMA,
    "required": {"type": "array", "items": {"type": "string"}},
    "items": _SCHEMA,
    "minItems": _COUNT,
    "maxItems": _COUNT,
    "minimum": _NUMBER,
    "maximum": _NUMBER,
    "minLength": _COUNT,
    "maxLength": _COUNT,
    "pattern": {"type": "string"},
}
_Validator: Any = cast(Any, validators).create(
    meta_schema={},
    validators={
        **{keyword: Draft202012Validator.VALIDATORS[keyword] for keyword in _OPERAND_SCHEMAS},
        "pattern": _match_pattern,
    },
    type_checker=Draft202012Validator.TYPE_CHECKER,
    id_of=_no_id,
)
_OPERANDS = {keyword: _Validator(schema) for keyword, schema in _OPERAND_SCHEMAS.items()}
"""By keyword, the validator of its operand. Nested schemas are checked by `check`."""
