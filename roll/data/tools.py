"""Tools that a policy may call: their declaration by an environment, and the parsing of calls in responses.

A call must have exactly the form of the chat template; a malformed call differs from a response without a call.
Nothing here runs a tool.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast

from roll.errors import ConfigError

ToolForm: TypeAlias = Literal["hermes", "llama"]
"""`hermes`: one or more `<tool_call>{"name": ..., "arguments": {...}}</tool_call>` after any text.
`llama`: the response is `{"name": ..., "parameters": {...}}` and nothing else."""

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
    """One function: name, description and the JSON schema of its arguments, an object."""

    name: str
    """Name in calls."""
    description: str = ""
    """Text for the policy."""
    parameters: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """JSON schema of the arguments."""
    strict: bool = True
    """Whether arguments that do not match the schema make the call invalid; if not, the environment checks them."""

    @property
    def schema(self) -> dict[str, Any]:
        """The JSON schema for chat templates."""
        function = {"name": self.name, "description": self.description, "parameters": dict(self.parameters)}
        return {"type": "function", "function": function}


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call; its arguments match the tool's schema if the tool is strict."""

    name: str
    """Name of the tool."""
    arguments: dict[str, Any] = field(default_factory=dict[str, Any])
    """Values by name."""


class CallFault(StrEnum):
    """Why an attempted call is invalid."""

    NOT_CLOSED = "not_closed"
    NOT_JSON = "not_json"
    NOT_A_CALL = "not_a_call"
    """JSON without a name and arguments, or text after a call."""
    UNKNOWN_TOOL = "unknown_tool"
    BAD_ARGUMENTS = "bad_arguments"


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedResponse:
    """A response parsed for tool calls; no call and no fault means that it is the final answer."""

    text: str
    """The whole response."""
    calls: tuple[ToolCall, ...] = ()
    """Valid calls, in order."""
    fault: CallFault | None = None
    """With a fault there are no calls."""
    why: str = ""
    """Description of the fault for the policy."""


class _InvalidCall(Exception):
    def __init__(self, fault: CallFault, why: str) -> None:
        super().__init__(why)
        self.fault = fault


def parse_tools(declarations: Any) -> tuple[Tool, ...]:
    """The tools of an environment's declarations: `Tool`s, or JSON schemas of functions with or without wrapper."""
    if not isinstance(declarations, Sequence) or isinstance(declarations, str):
        raise ConfigError(f"tools: not a list of functions (got {declarations!r}); give JSON schemas")
    tools = tuple(_parse_tool(each) for each in cast(Sequence[Any], declarations))
    names = [tool.name for tool in tools]
    if len(names) != len(set(names)):
        raise ConfigError(f"tools: two of them share a name (got {', '.join(names)}); give each its own")
    return tools


def _parse_tool(value: Any) -> Tool:
    if isinstance(value, Tool):
        return value
    plain = cast(dict[str, Any], value) if isinstance(value, dict) else {}
    inner = plain.get("function", plain)
    function = cast(dict[str, Any], inner) if isinstance(inner, dict) else {}
    name = function.get("name")
    if not isinstance(name, str) or not name:
        raise ConfigError(f"tools: a function without a name (got {value!r}); give name, description and parameters")
    return Tool(name, str(function.get("description", "")), function.get("parameters", {}))


def parse_response(text: str, tools: Sequence[Tool], form: ToolForm = "hermes") -> ParsedResponse:
    """The tool calls of a response, parsed strictly and in linear time."""
    try:
        calls = tuple(_parse_call(each, tools, _ARGUMENTS[form]) for each in _call_texts(text, form))
    except _InvalidCall as error:
        return ParsedResponse(text=text, fault=error.fault, why=str(error))
    return ParsedResponse(text=text, calls=calls)


def format_call(call: ToolCall, form: ToolForm = "hermes") -> str:
    """The text of a call in a response."""
    text = json.dumps({"name": call.name, _ARGUMENTS[form]: call.arguments}, ensure_ascii=False)
    return f"{_OPEN}\n{text}\n{_CLOSE}" if form == "hermes" else text


def _call_texts(text: str, form: ToolForm) -> list[str]:
    """The JSON of each call: `hermes` has it inside tags, and after the first one only further tags may follow."""
    if form == "llama":
        return [text] if text.lstrip().startswith("{") else []
    before, *rest = text.split(_OPEN)
    if _CLOSE in before:
        raise _InvalidCall(CallFault.NOT_CLOSED, f"{_CLOSE} without {_OPEN}")
    calls: list[str] = []
    for part in rest:
        inner, closed, after = part.partition(_CLOSE)
        if not closed:
            raise _InvalidCall(CallFault.NOT_CLOSED, f"{_OPEN} without {_CLOSE}")
        if after.strip():
            raise _InvalidCall(CallFault.NOT_A_CALL, "text after a call; say it before")
        calls.append(inner)
    return calls


def _parse_call(text: str, tools: Sequence[Tool], key: str) -> ToolCall:
    try:
        value: Any = json.loads(text, object_pairs_hook=_unique_keys, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        raise _InvalidCall(CallFault.NOT_JSON, "the call is not JSON") from None
    fields = cast(dict[str, Any], value) if isinstance(value, dict) else {}
    name, arguments = fields.get("name"), fields.get(key)
    if set(fields) != {"name", key} or not isinstance(name, str) or not isinstance(arguments, dict):
        raise _InvalidCall(CallFault.NOT_A_CALL, f'a call is {{"name": ..., "{key}": {{...}}}}')
    tool = next((tool for tool in tools if tool.name == name), None)
    if tool is None:
        raise _InvalidCall(CallFault.UNKNOWN_TOOL, f"no tool named {name[:50]!r}")
    checked = cast(dict[str, Any], arguments)
    if tool.strict and (why := _object_fault(checked, tool.parameters)):
        raise _InvalidCall(CallFault.BAD_ARGUMENTS, f"{name}: {why}")
    return ToolCall(name, checked)


def _object_fault(arguments: Mapping[str, Any], schema: Mapping[str, Any]) -> str:
    """The first violation of a schema's `required` and `properties`; empty if there is none."""
    properties = cast(Mapping[str, Any], schema.get("properties", {}))
    for name in schema.get("required", ()):
        if name not in arguments:
            return f"{name!r} is missing"
    for name, value in arguments.items():
        if name not in properties:
            if schema.get("additionalProperties") is True:
                continue
            return f"takes no {name[:50]!r}"
        if why := _expected(value, cast(Mapping[str, Any], properties[name])):
            return f"{name!r} must be {why}"
    return ""


def _expected(value: Any, schema: Mapping[str, Any]) -> str:
    """Description of a valid value; empty if `value` is valid."""
    if not _has_type(value, schema.get("type")):
        return f"of type {schema['type']}"
    if "enum" in schema and value not in schema["enum"]:
        return f"one of {', '.join(map(str, schema['enum']))}"
    if isinstance(value, int | float):
        if value < schema.get("minimum", value):
            return f"at least {schema['minimum']}"
        if value > schema.get("maximum", value):
            return f"at most {schema['maximum']}"
    return _expected_inside(value, schema)


def _expected_inside(value: Any, schema: Mapping[str, Any]) -> str:
    """Description of valid entries of a list or an object; empty if all are valid."""
    items, properties = schema.get("items"), schema.get("properties")
    if isinstance(value, list) and isinstance(items, Mapping):
        inner = (_expected(each, cast(Mapping[str, Any], items)) for each in cast(list[Any], value))
        why = next(filter(None, inner), "")
        return f"a list whose entries are {why}" if why else ""
    if isinstance(value, dict) and isinstance(properties, Mapping):
        why = _object_fault(cast(dict[str, Any], value), schema)
        return f"an object that fits: {why}" if why else ""
    return ""


def _has_type(value: Any, kind: Any) -> bool:
    """Whether a value has a JSON type, or one of several; booleans are not numbers."""
    if kind is None:
        return True
    if isinstance(kind, list):
        return any(_has_type(value, each) for each in cast(list[Any], kind))
    if isinstance(value, bool):
        return kind == "boolean"
    return isinstance(value, _TYPES.get(str(kind), (object,)))


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    mapping = dict(pairs)
    if len(mapping) != len(pairs):
        raise ValueError("a key twice")
    return mapping


def _refuse_constant(text: str) -> Any:
    raise ValueError(text)


_RENAMED = {"Spoken": "ParsedResponse", "read": "parse_response", "written": "format_call", "declared": "parse_tools"}

if not TYPE_CHECKING:  # a type checker reports unknown names itself

    def __getattr__(name: str) -> Any:
        if name in _RENAMED:
            raise ImportError(f"roll.data.tools has no {name!r}; it is called {_RENAMED[name]}")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
