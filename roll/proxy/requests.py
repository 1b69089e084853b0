"""What a client asks for, read from its JSON: strict, and every refusal says what to do instead."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, cast

import msgspec

from roll.data.tools import Tool, ToolCall, ToolForm, declared
from roll.errors import ConfigError
from roll.types import Sampling, record

_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
_UNHEARD = frozenset(
    {"user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_retention"}
)
"""Says nothing about the reply."""
_ONLY: dict[str, tuple[tuple[Any, ...], str]] = {
    "n": ((1,), "ask once for each reply, every time with another `seed`"),
    "stop": (("", []), "name the tokens that end a reply in rollout.stop of the run"),
    "logit_bias": (({},), "leave it out: the trainer would not know of it"),
    "frequency_penalty": ((0,), "leave it out: the trainer would not know of it"),
    "presence_penalty": ((0,), "leave it out: the trainer would not know of it"),
    "top_logprobs": ((0,), "leave it out: the logprobs of sampled tokens alone are known"),
    "response_format": (({"type": "text"},), "leave it out: nothing holds the policy to a form"),
    "tool_choice": (("auto", "none"), "write 'auto' or 'none': nothing can make the policy call a tool"),
    "parallel_tool_calls": ((True,), "leave it out: nothing keeps the policy from calling several tools"),
    "modalities": ((["text"],), "leave it out: there is text alone"),
}
"""What is read as long as it asks for nothing out of the ordinary, and what to do instead."""
_READ = frozenset(
    {
        "messages",
        "model",
        "tools",
        "seed",
        "stream",
        "stream_options",
        "logprobs",
        "max_tokens",
        "max_completion_tokens",
        "temperature",
        "top_p",
    }
)
_EXCERPT = 80


class Refused(Exception):
    """A request that gets no reply: what the client is told, as an HTTP status and in words."""

    def __init__(
        self, status: int, why: str, *, param: str | None = None, code: str | None = None, retry_s: float | None = None
    ) -> None:
        super().__init__(why)
        self.status, self.why, self.param, self.code, self.retry_s = status, why, param, code, retry_s


class Said(NamedTuple):
    """One message, as far as it says something: two conversations that are alike in this are one."""

    role: str
    content: str
    calls: tuple[tuple[str, str], ...] = ()
    """Name and arguments of each, these as JSON with sorted keys. A call's id says nothing."""


@record
class Asked:
    """One request for a reply."""

    model: str
    messages: tuple[Said, ...]
    tools: tuple[Tool, ...] = ()
    told: str = ""
    """The tools as text: under others the same messages are another conversation."""
    seed: int | None = None
    """Another one asks for another reply to the same messages."""
    most: int | None = None
    """Tokens of the reply; None: as many as the run allows."""
    sampling: Mapping[str, float]
    """What it says of temperature and top_p."""
    calling: bool = True
    """Whether calls in the reply are read as such."""
    stream: bool = False
    usage: bool = False
    """Whether a stream ends with the number of its tokens."""
    logprobs: bool = False

    @property
    def key(self) -> tuple[Any, ...]:
        """Two requests for the same messages that agree in this are one, asked twice."""
        return self.told, self.seed, self.most, self.calling


def read_request(body: bytes | bytearray) -> Asked:
    """The request in a body; raises `Refused`."""
    try:
        found: Any = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise Refused(400, f"the body is not JSON ({error}); send one JSON object", code="invalid_json") from None
    if not isinstance(found, dict):
        raise Refused(400, f"the body is no JSON object (got {_short(found)}); send one", code="invalid_json")
    given = {name: value for name, value in cast(dict[str, Any], found).items() if value is not None}
    _check_names(given)
    tools = _tools(given.get("tools", []))
    options = _typed(given, "stream_options", dict, {})
    return Asked(
        model=_typed(given, "model", str),
        messages=_messages(given.get("messages")),
        tools=tools,
        told=json.dumps([tool.schema for tool in tools]) if tools else "",
        seed=_whole(given, "seed"),
        most=_most(given),
        sampling={name: _number(given, name) for name in ("temperature", "top_p") if name in given},
        calling=given.get("tool_choice") != "none",
        stream=_typed(given, "stream", bool, False),
        usage=bool(cast(dict[str, Any], options).get("include_usage")),
        logprobs=_typed(given, "logprobs", bool, False),
    )


def check_sampling(asked: Asked, sampling: Sampling) -> None:
    """Refuse another distribution than the one that the trainer will read the tokens under."""
    for name, value in asked.sampling.items():
        own: float = getattr(sampling, name)
        if value != own:
            raise Refused(
                400,
                f"{name}: replies of this run are drawn at {own:g} (got {value:g}); leave it out, or set "
                "proxy.sampling to 'ignore' in the run, to have its own used whatever is asked",
                param=name,
            )


def text_of(said: Said, form: ToolForm | None) -> str:
    """A message as the template is given it: an assistant's calls stand in its text, as the policy would write them."""
    if not said.calls:
        return said.content
    key = "parameters" if form == "llama" else "arguments"
    calls = [f'{{"name": {json.dumps(name)}, "{key}": {arguments}}}' for name, arguments in said.calls]
    if form == "llama":
        return "\n".join(calls)
    written = "\n".join(f"<tool_call>\n{call}\n</tool_call>" for call in calls)
    return f"{said.content}\n{written}" if said.content else written


def said_by_policy(content: str, calls: Sequence[ToolCall]) -> Said:
    """A reply of ours as a client will give it back."""
    return Said("assistant", content, tuple((call.name, _sorted(call.arguments)) for call in calls))


def _check_names(given: Mapping[str, Any]) -> None:
    unknown = sorted(given.keys() - _READ - _UNHEARD - _ONLY.keys())
    if unknown:
        names = ", ".join(map(repr, unknown))
        raise Refused(400, f"unsupported parameters: {names}; leave them out", param=unknown[0])
    for name in given.keys() & _ONLY.keys():
        fine, advice = _ONLY[name]
        if given[name] not in fine:
            raise Refused(400, f"{name}: {_short(given[name])} is not supported; {advice}", param=name)


def _messages(found: Any) -> tuple[Said, ...]:
    if not isinstance(found, list) or not found:
        raise Refused(400, f"messages: no list of messages (got {_short(found)}); send at least one", param="messages")
    said = tuple(_said(entry, place) for place, entry in enumerate(cast(list[Any], found)))
    if said[-1].role == "assistant":
        raise Refused(
            400, "messages: the last is the assistant's, and replies are whole; end with another", param="messages"
        )
    return said


def _said(entry: Any, place: int) -> Said:
    param = f"messages.{place}"
    fields = cast(dict[str, Any], entry) if isinstance(entry, dict) else {}
    role = _ROLES.get(str(fields.get("role")))
    if role is None:
        raise Refused(
            400, f"{param}: no role that is known (got {_short(entry)}); give one of {', '.join(_ROLES)}", param=param
        )
    calls = fields.get("tool_calls") or ()
    if calls and role != "assistant":
        raise Refused(400, f"{param}.tool_calls: only an assistant calls tools; remove them", param=param)
    return Said(role, _content(fields.get("content"), param), tuple(_call(each, param) for each in calls))


def _content(found: Any, param: str) -> str:
    if isinstance(found, str):
        return found
    if found is None:
        return ""
    texts: list[str] = []
    for part in cast(list[Any], found) if isinstance(found, list) else [found]:
        fields = cast(dict[str, Any], part) if isinstance(part, dict) else {}
        if fields.get("type") != "text" or not isinstance(fields.get("text"), str):
            raise Refused(
                400, f"{param}.content: there is text alone (got {_short(part)}); send text parts", param=param
            )
        texts.append(fields["text"])
    return "".join(texts)


def _call(found: Any, param: str) -> tuple[str, str]:
    about: Any = cast(dict[str, Any], found).get("function") if isinstance(found, dict) else None
    fields = cast(dict[str, Any], about) if isinstance(about, dict) else {}
    name, arguments = fields.get("name"), fields.get("arguments", "{}")
    if not isinstance(name, str) or not isinstance(arguments, str):
        raise Refused(
            400,
            f"{param}.tool_calls: no call of a function (got {_short(found)}); give name and arguments",
            param=param,
        )
    try:
        return name, _sorted(msgspec.json.decode(arguments))
    except (msgspec.DecodeError, RecursionError):
        return name, arguments


def _sorted(arguments: Any) -> str:
    return msgspec.json.encode(arguments, order="sorted").decode()


def _tools(found: Any) -> tuple[Tool, ...]:
    try:
        return tuple(replace(tool, strict=False) for tool in declared(found))  # the agent judges the arguments
    except ConfigError as error:
        raise Refused(400, str(error), param="tools") from None


def _most(given: Mapping[str, Any]) -> int | None:
    name = "max_completion_tokens" if "max_completion_tokens" in given else "max_tokens"
    most = _whole(given, name)
    if most is not None and most < 1:
        raise Refused(400, f"{name}: no reply is that short (got {most}); ask for at least 1", param=name)
    return most


def _whole(given: Mapping[str, Any], name: str) -> int | None:
    found = given.get(name)
    if found is not None and (not isinstance(found, int) or isinstance(found, bool)):
        raise Refused(400, f"{name}: not a whole number (got {_short(found)}); send one", param=name)
    return found


def _number(given: Mapping[str, Any], name: str) -> float:
    found = given[name]
    if not isinstance(found, int | float) or isinstance(found, bool):
        raise Refused(400, f"{name}: not a number (got {_short(found)}); send one", param=name)
    return float(found)


def _typed(given: Mapping[str, Any], name: str, kind: type, default: Any = None) -> Any:
    found = given.get(name, default)
    if not isinstance(found, kind):
        raise Refused(400, f"{name}: missing or of another type (got {_short(found)}); send it", param=name)
    return found


def _short(found: Any) -> str:
    text = json.dumps(found, ensure_ascii=False, default=str)
    return text if len(text) <= _EXCERPT else f"{text[:_EXCERPT]}..."
