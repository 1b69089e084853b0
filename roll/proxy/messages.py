"""Messages of requests, parsed from JSON and written for the chat template; and the errors that clients receive."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, ParamSpec, TypeVar, cast

import msgspec

from roll.data.tools import ToolCall, ToolForm

P = ParamSpec("P")
T = TypeVar("T")

ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
_EXCERPT = 80


class ApiError(Exception):
    """A request that gets no response: HTTP status and message for the client."""

    def __init__(
        self, status: int, text: str, *, param: str | None = None, code: str | None = None, retry_s: float | None = None
    ) -> None:
        super().__init__(text)
        self.status, self.message, self.param, self.code, self.retry_s = status, text, param, code, retry_s


class Faults:
    """Collects the faults of one request, so that its client gets all of them at once."""

    def __init__(self) -> None:
        self.errors: list[ApiError] = []

    def read(self, default: T, read: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """The result of `read`; the default after an `ApiError`, which is kept."""
        try:
            return read(*args, **kwargs)
        except ApiError as error:
            self.errors.append(error)
            return default

    def check(self) -> None:
        """Raise all faults as one error, with the parameter and code of the first; status 400 unless there is one."""
        if not self.errors:
            return
        first, *others = self.errors
        if not others:
            raise first
        lines = [f"({number}) {error.message}" for number, error in enumerate(self.errors, start=1)]
        raise ApiError(400, f"{len(lines)} faults: {' '.join(lines)}", param=first.param, code=first.code)


class ChatMessage(NamedTuple):
    """One message; conversations with equal messages are the same conversation."""

    role: str
    content: str
    calls: tuple[tuple[str, str], ...] = ()
    """Name and arguments of each tool call, the arguments as JSON with sorted keys. Call ids are ignored."""


def text_of(message: ChatMessage, form: ToolForm | None) -> str:
    """Content of a message for the template; calls are written as the policy would write them."""
    if not message.calls:
        return message.content
    key = "parameters" if form == "llama" else "arguments"
    calls = [f'{{"name": {json.dumps(name)}, "{key}": {arguments}}}' for name, arguments in message.calls]
    if form == "llama":
        return "\n".join(calls)
    text = "\n".join(f"<tool_call>\n{call}\n</tool_call>" for call in calls)
    return f"{message.content}\n{text}" if message.content else text


def response_message(content: str, calls: Sequence[ToolCall]) -> ChatMessage:
    """The policy's response in the form in which a client sends it back."""
    return ChatMessage("assistant", content, tuple((call.name, _to_sorted_json(call.arguments)) for call in calls))


def read_messages(entries: Any, faults: Faults) -> tuple[ChatMessage, ...]:
    """The messages of a request; raises `ApiError`, or adds to `faults` for single messages."""
    if not isinstance(entries, list) or not entries:
        raise ApiError(
            400, f"messages: no list of messages (got {excerpt(entries)}); send at least one", param="messages"
        )
    empty = ChatMessage("user", "")
    messages = tuple(faults.read(empty, _message, entry, index) for index, entry in enumerate(cast(list[Any], entries)))
    if messages[-1].role == "assistant":
        raise ApiError(
            400,
            "messages: the last one is the assistant's, and responses cannot be prefilled; end with another",
            param="messages",
        )
    return messages


def _message(entry: Any, index: int) -> ChatMessage:
    param = f"messages.{index}"
    fields = cast(dict[str, Any], entry) if isinstance(entry, dict) else {}
    role = ROLES.get(str(fields.get("role")))
    if role is None:
        raise ApiError(
            400, f"{param}: no known role (got {excerpt(entry)}); give one of {', '.join(ROLES)}", param=param
        )
    calls = fields.get("tool_calls") or ()
    if calls and role != "assistant":
        raise ApiError(400, f"{param}.tool_calls: only an assistant calls tools; remove them", param=param)
    text = "" if fields.get("content") is None else read_text(fields["content"], f"{param}.content")
    return ChatMessage(role, text, tuple(_call(each, param) for each in calls))


def read_text(content: Any, param: str, kinds: Sequence[str] = ("text",)) -> str:
    """Text, or a list of text parts of these kinds; raises `ApiError`."""
    if isinstance(content, str):
        return content
    texts: list[str] = []
    for part in cast(list[Any], content) if isinstance(content, list) else [content]:
        fields = cast(dict[str, Any], part) if isinstance(part, dict) else {}
        if fields.get("type") not in kinds or not isinstance(fields.get("text"), str):
            raise ApiError(400, f"{param}: only text is supported (got {excerpt(part)}); send text parts", param=param)
        texts.append(fields["text"])
    return "".join(texts)


def _call(entry: Any, param: str) -> tuple[str, str]:
    function: Any = cast(dict[str, Any], entry).get("function") if isinstance(entry, dict) else None
    fields = cast(dict[str, Any], function) if isinstance(function, dict) else {}
    name, arguments = fields.get("name"), fields.get("arguments", "{}")
    if not isinstance(name, str) or not isinstance(arguments, str):
        raise ApiError(
            400,
            f"{param}.tool_calls: not a function call (got {excerpt(entry)}); give name and arguments",
            param=param,
        )
    try:
        return name, _to_sorted_json(msgspec.json.decode(arguments))
    except (msgspec.DecodeError, RecursionError):
        return name, arguments


def _to_sorted_json(arguments: Any) -> str:
    return msgspec.json.encode(arguments, order="sorted").decode()


def excerpt(value: Any) -> str:
    """The beginning of a JSON value, for errors."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= _EXCERPT else f"{text[:_EXCERPT]}..."
