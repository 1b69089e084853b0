"""Chat requests, parsed strictly from JSON: every error says what to do instead."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, cast

import msgspec

from roll.data.tools import Tool, ToolCall, ToolForm, parse_tools
from roll.errors import ConfigError
from roll.types import Sampling, record

_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
_IGNORED = frozenset(
    {"user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_retention"}
)
"""Parameters without influence on the response."""
_ALLOWED_VALUES: dict[str, tuple[tuple[Any, ...], str]] = {
    "n": ((1,), "send one request per response, each with another `seed`"),
    "stop": (("", []), "name the tokens that end a response in rollout.stop of the run"),
    "logit_bias": (({},), "leave it out: the trainer does not apply it"),
    "frequency_penalty": ((0,), "leave it out: the trainer does not apply it"),
    "presence_penalty": ((0,), "leave it out: the trainer does not apply it"),
    "top_logprobs": ((0,), "leave it out: only the logprobs of sampled tokens are known"),
    "response_format": (({"type": "text"},), "leave it out: decoding is not constrained"),
    "tool_choice": (("auto", "none"), "write 'auto' or 'none': the policy cannot be forced to call a tool"),
    "parallel_tool_calls": ((True,), "leave it out: the policy may always call several tools"),
    "modalities": ((["text"],), "leave it out: only text is supported"),
}
"""Parameters accepted with these values only, and the advice for any other value."""
_SUPPORTED = frozenset({"messages", "model", "tools", "seed", "stream", "stream_options", "logprobs"}) | frozenset(
    {"max_tokens", "max_completion_tokens", "temperature", "top_p"}
)
_EXCERPT = 80


class ApiError(Exception):
    """A request that gets no response: HTTP status and message for the client."""

    def __init__(
        self, status: int, text: str, *, param: str | None = None, code: str | None = None, retry_s: float | None = None
    ) -> None:
        super().__init__(text)
        self.status, self.message, self.param, self.code, self.retry_s = status, text, param, code, retry_s


class ChatMessage(NamedTuple):
    """One message; conversations with equal messages are the same conversation."""

    role: str
    content: str
    calls: tuple[tuple[str, str], ...] = ()
    """Name and arguments of each tool call, the arguments as JSON with sorted keys. Call ids are ignored."""


@record
class ChatRequest:
    """One request for a response."""

    model: str
    messages: tuple[ChatMessage, ...]
    tools: tuple[Tool, ...] = ()
    tools_json: str = ""
    """The tools as text; the same messages with other tools are another conversation."""
    seed: int | None = None
    """Another seed gives another response to the same messages."""
    max_new_tokens: int | None = None
    """None: as many as the run allows."""
    sampling: Mapping[str, float]
    """Temperature and top_p, if present."""
    parse_calls: bool = True
    """Whether tool calls in the response are parsed."""
    stream: bool = False
    usage: bool = False
    """Whether a stream ends with its token counts."""
    logprobs: bool = False

    @property
    def key(self) -> tuple[Any, ...]:
        """Requests with the same messages and the same key are repetitions of one request."""
        return self.tools_json, self.seed, self.max_new_tokens, self.parse_calls


def read_request(body: bytes | bytearray) -> ChatRequest:
    """Parse the body of a request; raises `ApiError`."""
    try:
        content: Any = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise ApiError(400, f"the body is not JSON ({error}); send one JSON object", code="invalid_json") from None
    if not isinstance(content, dict):
        raise ApiError(400, f"the body is not a JSON object (got {_short(content)}); send one", code="invalid_json")
    fields = {name: value for name, value in cast(dict[str, Any], content).items() if value is not None}
    _check_names(fields)
    tools = _tools(fields.get("tools", []))
    options = _typed(fields, "stream_options", dict, {})
    return ChatRequest(
        model=_typed(fields, "model", str),
        messages=_messages(fields.get("messages")),
        tools=tools,
        tools_json=json.dumps([tool.schema for tool in tools]) if tools else "",
        seed=_integer(fields, "seed"),
        max_new_tokens=_max_new_tokens(fields),
        sampling={name: _number(fields, name) for name in ("temperature", "top_p") if name in fields},
        parse_calls=fields.get("tool_choice") != "none",
        stream=_typed(fields, "stream", bool, False),
        usage=bool(cast(dict[str, Any], options).get("include_usage")),
        logprobs=_typed(fields, "logprobs", bool, False),
    )


def check_sampling(request: ChatRequest, sampling: Sampling) -> None:
    """Reject a distribution other than the one under which the trainer evaluates the tokens."""
    for name, value in request.sampling.items():
        expected: float = getattr(sampling, name)
        if value != expected:
            raise ApiError(
                400,
                f"{name}: this run samples at {expected:g} (got {value:g}); leave it out, or set "
                "proxy.sampling_params to 'ignore' in the run, which then ignores the requested value",
                param=name,
            )


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


def _check_names(fields: Mapping[str, Any]) -> None:
    unknown = sorted(fields.keys() - _SUPPORTED - _IGNORED - _ALLOWED_VALUES.keys())
    if unknown:
        names = ", ".join(map(repr, unknown))
        raise ApiError(400, f"unsupported parameters: {names}; leave them out", param=unknown[0])
    for name in fields.keys() & _ALLOWED_VALUES.keys():
        allowed, advice = _ALLOWED_VALUES[name]
        if fields[name] not in allowed:
            raise ApiError(400, f"{name}: {_short(fields[name])} is not supported; {advice}", param=name)


def _messages(entries: Any) -> tuple[ChatMessage, ...]:
    if not isinstance(entries, list) or not entries:
        raise ApiError(
            400, f"messages: no list of messages (got {_short(entries)}); send at least one", param="messages"
        )
    messages = tuple(_message(entry, index) for index, entry in enumerate(cast(list[Any], entries)))
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
    role = _ROLES.get(str(fields.get("role")))
    if role is None:
        raise ApiError(
            400, f"{param}: no known role (got {_short(entry)}); give one of {', '.join(_ROLES)}", param=param
        )
    calls = fields.get("tool_calls") or ()
    if calls and role != "assistant":
        raise ApiError(400, f"{param}.tool_calls: only an assistant calls tools; remove them", param=param)
    return ChatMessage(role, _content(fields.get("content"), param), tuple(_call(each, param) for each in calls))


def _content(content: Any, param: str) -> str:
    if isinstance(content, str):
        return content
    if content is None:
        return ""
    texts: list[str] = []
    for part in cast(list[Any], content) if isinstance(content, list) else [content]:
        fields = cast(dict[str, Any], part) if isinstance(part, dict) else {}
        if fields.get("type") != "text" or not isinstance(fields.get("text"), str):
            raise ApiError(
                400, f"{param}.content: only text is supported (got {_short(part)}); send text parts", param=param
            )
        texts.append(fields["text"])
    return "".join(texts)


def _call(entry: Any, param: str) -> tuple[str, str]:
    function: Any = cast(dict[str, Any], entry).get("function") if isinstance(entry, dict) else None
    fields = cast(dict[str, Any], function) if isinstance(function, dict) else {}
    name, arguments = fields.get("name"), fields.get("arguments", "{}")
    if not isinstance(name, str) or not isinstance(arguments, str):
        raise ApiError(
            400,
            f"{param}.tool_calls: not a function call (got {_short(entry)}); give name and arguments",
            param=param,
        )
    try:
        return name, _to_sorted_json(msgspec.json.decode(arguments))
    except (msgspec.DecodeError, RecursionError):
        return name, arguments


def _to_sorted_json(arguments: Any) -> str:
    return msgspec.json.encode(arguments, order="sorted").decode()


def _tools(entries: Any) -> tuple[Tool, ...]:
    try:
        return tuple(replace(tool, strict=False) for tool in parse_tools(entries))  # the agent checks the arguments
    except ConfigError as error:
        raise ApiError(400, str(error), param="tools") from None


def _max_new_tokens(fields: Mapping[str, Any]) -> int | None:
    name = "max_completion_tokens" if "max_completion_tokens" in fields else "max_tokens"
    number = _integer(fields, name)
    if number is not None and number < 1:
        raise ApiError(400, f"{name}: a response has at least 1 token (got {number}); raise it", param=name)
    return number


def _integer(fields: Mapping[str, Any], name: str) -> int | None:
    value = fields.get(name)
    if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
        raise ApiError(400, f"{name}: not a whole number (got {_short(value)}); send one", param=name)
    return value


def _number(fields: Mapping[str, Any], name: str) -> float:
    value = fields[name]
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise ApiError(400, f"{name}: not a number (got {_short(value)}); send one", param=name)
    return float(value)


def _typed(fields: Mapping[str, Any], name: str, kind: type, default: Any = None) -> Any:
    value = fields.get(name, default)
    if not isinstance(value, kind):
        raise ApiError(400, f"{name}: missing or of another type (got {_short(value)}); send it", param=name)
    return value


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= _EXCERPT else f"{text[:_EXCERPT]}..."
