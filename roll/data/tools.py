"""Tools that a policy may call: how an environment declares them, and what a reply says to them.

A call has to be written exactly as the chat template teaches it; a reply that tries and fails is told apart from one
that calls nothing. Nothing here runs a tool.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal, TypeAlias, cast

from roll.errors import ConfigError

ToolForm: TypeAlias = Literal["hermes", "llama"]
"""`hermes`: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>` after any text, several in a row if need be.
`llama`: the reply is `{"name": ..., "parameters": {...}}` and nothing else."""

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_ARGUMENTS: dict[str, str] = {"hermes": "arguments", "llama": "parameters"}
_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "number": (int, float),
    "integer": (int,),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
    "null": (type(None),),
}


@dataclass(frozen=True, slots=True)
class Tool:
    """One function: its name, what it is for, and the JSON schema of its arguments, an object."""

    name: str
    description: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict[str, Any])
    strict: bool = True
    """Whether a call whose arguments do not fit the schema is none; else they are the environment's to judge."""

    @property
    def schema(self) -> dict[str, Any]:
        """As chat templates take it."""
        about = {"name": self.name, "description": self.description, "parameters": dict(self.parameters)}
        return {"type": "function", "function": about}


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call, with arguments that fit the tool's schema, where it is strict."""

    name: str
    arguments: dict[str, Any] = field(default_factory=dict[str, Any])


class CallFault(StrEnum):
    """Why a reply that meant to call a tool does not."""

    NOT_CLOSED = "not_closed"
    NOT_JSON = "not_json"
    NOT_A_CALL = "not_a_call"
    """JSON, but not a name and arguments; or something stands where only calls may."""
    UNKNOWN_TOOL = "unknown_tool"
    BAD_ARGUMENTS = "bad_arguments"


@dataclass(frozen=True, slots=True, kw_only=True)
class Spoken:
    """A reply as an environment with tools gets it: no call and no fault means that the policy has its answer."""

    text: str
    """All of it."""
    calls: tuple[ToolCall, ...] = ()
    fault: CallFault | None = None
    """With a fault there is no call, whatever else the reply holds."""
    why: str = ""
    """The fault in words, for the policy to read."""


class _Refused(Exception):
    def __init__(self, fault: CallFault, why: str) -> None:
        super().__init__(why)
        self.fault = fault


def declared(found: Any) -> tuple[Tool, ...]:
    """Tools as an environment declares them: `Tool`s, or JSON schemas of functions, with or without their wrapping."""
    if not isinstance(found, Sequence) or isinstance(found, str):
        raise ConfigError(f"tools: not a list of functions (got {found!r}); give JSON schemas")
    tools = tuple(_declared(each) for each in cast(Sequence[Any], found))
    names = [tool.name for tool in tools]
    if len(names) != len(set(names)):
        raise ConfigError(f"tools: two of them share a name (got {', '.join(names)}); give each its own")
    return tools


def _declared(found: Any) -> Tool:
    if isinstance(found, Tool):
        return found
    plain = cast(dict[str, Any], found) if isinstance(found, dict) else {}
    about = plain.get("function", plain)
    section = cast(dict[str, Any], about) if isinstance(about, dict) else {}
    name = section.get("name")
    if not isinstance(name, str) or not name:
        raise ConfigError(f"tools: a function without a name (got {found!r}); give name, description and parameters")
    return Tool(name, str(section.get("description", "")), section.get("parameters", {}))


def read(text: str, tools: Sequence[Tool], form: ToolForm = "hermes") -> Spoken:
    """What a reply calls; strict, and quick whatever it holds."""
    try:
        found = _written_hermes(text) if form == "hermes" else _written_llama(text)
        calls = tuple(_call(each, tools, _ARGUMENTS[form]) for each in found)
    except _Refused as error:
        return Spoken(text=text, fault=error.fault, why=str(error))
    return Spoken(text=text, calls=calls)


def written(call: ToolCall, form: ToolForm = "hermes") -> str:
    """A call as a reply has to write it."""
    text = json.dumps({"name": call.name, _ARGUMENTS[form]: call.arguments}, ensure_ascii=False)
    return f"{_OPEN}\n{text}\n{_CLOSE}" if form == "hermes" else text


def _written_hermes(text: str) -> list[str]:
    """What stands within the tags, one after the other, with nothing after the first but more of them."""
    before, *rest = text.split(_OPEN)
    if _CLOSE in before:
        raise _Refused(CallFault.NOT_CLOSED, f"{_CLOSE} without {_OPEN}")
    found: list[str] = []
    for part in rest:
        inner, closed, after = part.partition(_CLOSE)
        if not closed:
            raise _Refused(CallFault.NOT_CLOSED, f"{_OPEN} without {_CLOSE}")
        if after.strip():
            raise _Refused(CallFault.NOT_A_CALL, "text after a call; say it before")
        found.append(inner)
    return found


def _written_llama(text: str) -> list[str]:
    return [text] if text.lstrip().startswith("{") else []


def _call(text: str, tools: Sequence[Tool], key: str) -> ToolCall:
    try:
        found: Any = json.loads(text, object_pairs_hook=_once, parse_constant=_no_number)
    except (ValueError, RecursionError):
        raise _Refused(CallFault.NOT_JSON, "the call is not JSON") from None
    fields = cast(dict[str, Any], found) if isinstance(found, dict) else {}
    name, arguments = fields.get("name"), fields.get(key)
    if set(fields) != {"name", key} or not isinstance(name, str) or not isinstance(arguments, dict):
        raise _Refused(CallFault.NOT_A_CALL, f'a call is {{"name": ..., "{key}": {{...}}}}')
    tool = next((tool for tool in tools if tool.name == name), None)
    if tool is None:
        raise _Refused(CallFault.UNKNOWN_TOOL, f"no tool named {name[:50]!r}")
    given = cast(dict[str, Any], arguments)
    if tool.strict and (why := _unfit(given, tool.parameters)):
        raise _Refused(CallFault.BAD_ARGUMENTS, f"{name}: {why}")
    return ToolCall(name, given)


def _unfit(given: Mapping[str, Any], schema: Mapping[str, Any]) -> str:
    """What is wrong with arguments by a schema's `required` and `properties`; empty where nothing is."""
    properties = cast(Mapping[str, Any], schema.get("properties", {}))
    for name in schema.get("required", ()):
        if name not in given:
            return f"{name!r} is missing"
    for name, value in given.items():
        if name not in properties:
            if schema.get("additionalProperties") is True:
                continue
            return f"takes no {name[:50]!r}"
        if why := _misfit(value, cast(Mapping[str, Any], properties[name])):
            return f"{name!r} must be {why}"
    return ""


def _misfit(value: Any, about: Mapping[str, Any]) -> str:
    """What a value would have to be; empty where it is."""
    if not _typed(value, about.get("type")):
        return f"of type {about['type']}"
    if "enum" in about and value not in about["enum"]:
        return f"one of {', '.join(map(str, about['enum']))}"
    if isinstance(value, int | float):
        if value < about.get("minimum", value):
            return f"at least {about['minimum']}"
        if value > about.get("maximum", value):
            return f"at most {about['maximum']}"
    return _misfit_inside(value, about)


def _misfit_inside(value: Any, about: Mapping[str, Any]) -> str:
    """The same of what a list or an object holds, as far as the schema says what that is."""
    items, properties = about.get("items"), about.get("properties")
    if isinstance(value, list) and isinstance(items, Mapping):
        inner = (_misfit(each, cast(Mapping[str, Any], items)) for each in cast(list[Any], value))
        why = next(filter(None, inner), "")
        return f"a list whose entries are {why}" if why else ""
    if isinstance(value, dict) and isinstance(properties, Mapping):
        why = _unfit(cast(dict[str, Any], value), about)
        return f"an object that fits: {why}" if why else ""
    return ""


def _typed(value: Any, wanted: Any) -> bool:
    """Whether a value is of a JSON type, or of one of several; true and false are no numbers."""
    if wanted is None:
        return True
    if isinstance(wanted, list):
        return any(_typed(value, each) for each in cast(list[Any], wanted))
    if isinstance(value, bool):
        return wanted == "boolean"
    return isinstance(value, _TYPES.get(str(wanted), (object,)))


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key twice")
    return found


def _no_number(text: str) -> Any:
    raise ValueError(text)
