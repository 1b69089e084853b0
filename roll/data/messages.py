"""Messages of rows in the OpenAI or ShareGPT format: parsed from JSON, and written for a chat template."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, cast

from roll.data.tools import ToolCall, format_call
from roll.types import Message

_EXTRA = ("tool_calls", "tool_call_id", "name", "reasoning_content")
"""Further fields of a message that chat templates read."""
_ROLES = {"system": "system", "user": "user", "assistant": "assistant", "tool": "tool", "developer": "system"}
"""Roles by their names in the OpenAI format."""
_SHAREGPT = {"human": "user", "gpt": "assistant", "system": "system", "user": "user", "assistant": "assistant"}
"""Roles by the `from` of a message in the ShareGPT format."""
_LIKELY = {
    **{name: "user" for name in ("human", "prompter", "question")},
    **{name: "assistant" for name in ("gpt", "bot", "model", "ai", "chatgpt", "chatbot", "answer")},
    **{name: "tool" for name in ("function", "observation", "ipython")},
}
"""Probable roles by other names for them, for errors."""


def openai_row(row: dict[str, Any]) -> dict[str, Any]:
    """A row of the ShareGPT format, with `conversations` and perhaps `system`, as one with `messages`."""
    if "conversations" not in row or {"prompt", "messages"} & row.keys():
        return row
    entries, system = row["conversations"], row.get("system")
    rest = {name: value for name, value in row.items() if name not in ("conversations", "system")}
    if isinstance(system, str) and system and isinstance(entries, list):
        entries = [{"from": "system", "value": system}, *cast(list[Any], entries)]
    return {**rest, "messages": entries}


def parse_chat(entries: Sequence[Any]) -> tuple[tuple[Message, ...], Message | None]:
    """The prompt of a chat, and the assistant's reply to it if the chat ends with one; ValueError if it is invalid."""
    messages = tuple(parse_message(entry) for entry in entries)
    if messages[-1].role != "assistant":
        return messages, None
    if len(messages) == 1 or messages[-2].role == "assistant":
        before = "no message" if len(messages) == 1 else "another assistant message"
        raise ValueError(f"{before} before the last assistant message; put the user's or a tool's there")
    return messages[:-1], messages[-1]


def parse_message(entry: Any) -> Message:
    """A message of a row; ValueError with the fault and its remedy if it is invalid."""
    if not isinstance(entry, dict):
        raise ValueError(f"a message is not an object (got {entry!r}); write {{role, content}}")
    fields = _openai_fields(cast(dict[str, Any], entry))
    role, content = fields.get("role"), fields.get("content")
    extra = {name: fields[name] for name in _EXTRA if fields.get(name) is not None}
    if "tool_calls" in extra:
        extra["tool_calls"] = _parse_calls(extra["tool_calls"], role)
        content = "" if content is None else content
    if isinstance(content, list):
        content = "".join(_part_text(part) for part in cast(list[Any], content))
    if not isinstance(role, str) or not isinstance(content, str):
        raise ValueError(f"a message needs 'role' and 'content' as text (got {entry!r}); write both")
    if role not in _ROLES:
        raise ValueError(f"a message of an unknown role (got {role!r}); {_advise_role(role)}")
    return Message(_ROLES[role], content, json.dumps(extra, ensure_ascii=False) if extra else "")


def message_entry(message: Message) -> dict[str, Any]:
    """The message in the OpenAI format, for chat templates and clients."""
    entry: dict[str, Any] = {"role": message.role, "content": message.content}
    return entry | json.loads(message.extra) if message.extra else entry


def message_text(message: Message) -> str:
    """Content and tool calls of a message as text, for rewards and for models without a chat template."""
    if not message.extra:
        return message.content
    entries: list[Any] = json.loads(message.extra).get("tool_calls", [])
    calls = [ToolCall(entry["function"]["name"], entry["function"]["arguments"]) for entry in entries]
    return "\n".join(filter(None, [message.content, *map(format_call, calls)]))


def _openai_fields(fields: dict[str, Any]) -> dict[str, Any]:
    """The fields of a message; those of the ShareGPT format are renamed."""
    if "from" not in fields or "role" in fields:
        return fields
    role = fields["from"]
    return {"role": _SHAREGPT.get(role, role) if isinstance(role, str) else role, "content": fields.get("value")}


def _advise_role(role: str) -> str:
    likely = _LIKELY.get(role.lower(), role.lower())
    return f"write {likely!r}" if likely in _ROLES else "write system, user, assistant or tool"


def _parse_calls(value: Any, role: Any) -> list[dict[str, Any]]:
    if not isinstance(value, list) or not value:
        raise ValueError(f"'tool_calls' is not a list of calls (got {value!r}); correct it or leave it out")
    if role != "assistant":
        raise ValueError(f"'tool_calls' in a message of {role!r}; only the assistant calls tools")
    return [_parse_call(entry) for entry in cast(list[Any], value)]


def _parse_call(entry: Any) -> dict[str, Any]:
    """A call with its arguments as an object: the format has them as text, and templates expect an object."""
    call: Mapping[str, Any] = cast(dict[str, Any], entry) if isinstance(entry, dict) else {}
    value = call.get("function")
    function: Mapping[str, Any] = cast(dict[str, Any], value) if isinstance(value, dict) else {}
    name, arguments = function.get("name"), function.get("arguments", {})
    try:
        arguments = json.loads(arguments) if isinstance(arguments, str) else arguments
    except (ValueError, RecursionError):
        arguments = None
    if not isinstance(name, str) or not isinstance(arguments, dict):
        form = '{"function": {"name": ..., "arguments": "{...}"}}'
        raise ValueError(
            f"a tool call without a name and arguments that are a JSON object (got {entry!r}); write {form}"
        )
    return {**call, "type": "function", "function": {"name": name, "arguments": arguments}}


def _part_text(part: Any) -> str:
    fields = cast(dict[str, Any], part) if isinstance(part, dict) else {}
    if fields.get("type") != "text" or not isinstance(fields.get("text"), str):
        raise ValueError(f"a part of a message's content is not text (got {part!r}); only text can be trained on")
    return fields["text"]
