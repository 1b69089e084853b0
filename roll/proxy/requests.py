"""Chat requests, parsed strictly from JSON: every error says what to do instead."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import msgspec

from roll.data.tools import Tool, parse_tools
from roll.errors import ConfigError
from roll.proxy.messages import ApiError, ChatMessage, Faults, excerpt, read_messages
from roll.types import Sampling, record

_WITHOUT_EFFECT = frozenset(
    {"user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_retention"}
)
"""Parameters without influence on the response."""
_ALLOWED_VALUES: dict[str, tuple[tuple[Any, ...], str]] = {
    "logit_bias": (({},), "leave it out: the trainer does not apply it"),
    "frequency_penalty": ((0,), "leave it out: the trainer does not apply it"),
    "presence_penalty": ((0,), "leave it out: the trainer does not apply it"),
    "top_logprobs": ((0,), "leave it out: only the logprobs of sampled tokens are known"),
    "response_format": (({"type": "text"},), "leave it out: decoding is not constrained"),
    "tool_choice": (("auto", "none"), "write 'auto' or 'none': the policy cannot be forced to call a tool"),
    "modalities": ((["text"],), "leave it out: only text is supported"),
}
"""Parameters accepted with these values only, and the advice for any other value."""
_SUPPORTED = frozenset({"messages", "model", "tools", "seed", "stream", "stream_options", "logprobs"}) | frozenset(
    {"max_tokens", "max_completion_tokens", "temperature", "top_p", "n", "stop", "parallel_tool_calls"}
)
_MAX_CHOICES, _MAX_STOPS = 128, 16


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
    parse_calls: bool = True
    """Whether tool calls in the response are parsed."""
    single_call: bool = False
    """Whether the response ends with its first tool call."""
    stop: tuple[str, ...] = ()
    """Strings that end the response."""
    num_choices: int = 1
    """Responses to sample."""
    choice: int = 0
    """Which of them this is; each has different noise."""
    stream: bool = False
    usage: bool = False
    """Whether a stream ends with its token counts."""
    logprobs: bool = False
    ignored: tuple[str, ...] = ()
    """Parameters of the request that the run ignores."""

    @property
    def key(self) -> tuple[Any, ...]:
        """Requests with the same messages and the same key are repetitions of one request."""
        how = self.parse_calls, self.single_call, self.stop
        return self.tools_json, self.seed, self.max_new_tokens, *how, self.choice


@record
class RequestRules:
    """Limits of a run on what requests may ask for."""

    models: tuple[str, ...]
    """Accepted model names."""
    ignored: frozenset[str] = frozenset()
    """Parameters that are dropped, whatever their value."""
    sampling: Sampling | None = None
    """The distribution under which the trainer evaluates tokens; others are rejected. None: they are ignored."""


def decode_body(body: bytes | bytearray) -> dict[str, Any]:
    """The parameters of a request that have a value; raises `ApiError`."""
    try:
        content: Any = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise ApiError(400, f"the body is not JSON ({error}); send one JSON object", code="invalid_json") from None
    if not isinstance(content, dict):
        raise ApiError(400, f"the body is not a JSON object (got {excerpt(content)}); send one", code="invalid_json")
    return {name: value for name, value in cast(dict[str, Any], content).items() if value is not None}


def read_request(fields: Mapping[str, Any], rules: RequestRules, faults: Faults | None = None) -> ChatRequest:
    """Parse the parameters of a request; raises one `ApiError` with all of its faults, after those in `faults`."""
    ignored = tuple(sorted(fields.keys() & rules.ignored))
    fields = {name: value for name, value in fields.items() if name not in ignored}
    faults = Faults() if faults is None else faults
    read = faults.read
    read(None, _check_unknown, fields)
    for name in fields:
        read(None, _check_value, fields, name)
    for name in ("temperature", "top_p"):
        read(None, _check_sampling, fields, name, rules.sampling)
    tools = read((), _tools, fields.get("tools", []))
    options: dict[str, Any] = read({}, _typed, fields, "stream_options", dict, {})
    request = ChatRequest(
        model=read("", _model, fields, rules.models),
        messages=read((), read_messages, fields.get("messages"), faults),
        tools=tools,
        tools_json=json.dumps([tool.schema for tool in tools]) if tools else "",
        seed=read(None, _integer, fields, "seed"),
        max_new_tokens=read(None, _max_new_tokens, fields),
        parse_calls=fields.get("tool_choice") != "none",
        single_call=not read(True, _typed, fields, "parallel_tool_calls", bool, True),
        stop=read((), _stop, fields.get("stop", [])),
        num_choices=read(1, _num_choices, fields),
        stream=read(False, _typed, fields, "stream", bool, False),
        usage=bool(options.get("include_usage")),
        logprobs=read(False, _typed, fields, "logprobs", bool, False),
        ignored=ignored,
    )
    faults.check()
    return request


def _check_unknown(fields: Mapping[str, Any]) -> None:
    unknown = sorted(fields.keys() - _SUPPORTED - _WITHOUT_EFFECT - _ALLOWED_VALUES.keys())
    if unknown:
        names = ", ".join(map(repr, unknown))
        advice = "leave them out, or list them in proxy.ignore of the run"
        raise ApiError(400, f"unsupported parameters: {names}; {advice}", param=unknown[0])


def _check_value(fields: Mapping[str, Any], name: str) -> None:
    allowed, advice = _ALLOWED_VALUES.get(name, ((fields[name],), ""))
    if fields[name] not in allowed:
        raise ApiError(400, f"{name}: {excerpt(fields[name])} is not supported; {advice}", param=name)


def _check_sampling(fields: Mapping[str, Any], name: str, sampling: Sampling | None) -> None:
    """Reject a distribution other than the one under which the trainer evaluates the tokens."""
    if name not in fields:
        return
    value = fields[name]
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise ApiError(400, f"{name}: not a number (got {excerpt(value)}); send one", param=name)
    if sampling is not None and value != getattr(sampling, name):
        raise ApiError(
            400,
            f"{name}: this run samples at {getattr(sampling, name):g} (got {value:g}); leave it out, or set "
            "proxy.sampling_params to 'ignore' in the run, which then ignores the requested value",
            param=name,
        )


def _model(fields: Mapping[str, Any], models: Sequence[str]) -> str:
    model = _typed(fields, "model", str)
    if model not in models:
        advice = f"use {', '.join(models)}, or add it to proxy.models of the run"
        raise ApiError(404, f"no model {model[:80]!r}; {advice}", param="model", code="model_not_found")
    return model


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


def _num_choices(fields: Mapping[str, Any]) -> int:
    number = _integer(fields, "n")
    if number is not None and not 1 <= number <= _MAX_CHOICES:
        raise ApiError(400, f"n: not between 1 and {_MAX_CHOICES} (got {number}); change it", param="n")
    return number or 1


def _stop(value: Any) -> tuple[str, ...]:
    strings: list[Any] = cast(list[Any], value) if isinstance(value, list) else [value]
    if not all(isinstance(each, str) for each in strings) or len(strings) > _MAX_STOPS:
        what = f"stop: not a string or a list of at most {_MAX_STOPS} strings (got {excerpt(value)}); send one"
        raise ApiError(400, what, param="stop")
    return tuple(each for each in strings if each)


def _integer(fields: Mapping[str, Any], name: str) -> int | None:
    value = fields.get(name)
    if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
        raise ApiError(400, f"{name}: not a whole number (got {excerpt(value)}); send one", param=name)
    return value


def _typed(fields: Mapping[str, Any], name: str, kind: type, default: Any = None) -> Any:
    value = fields.get(name, default)
    if not isinstance(value, kind):
        raise ApiError(400, f"{name}: missing or of another type (got {excerpt(value)}); send it", param=name)
    return value
