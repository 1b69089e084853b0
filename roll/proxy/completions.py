"""Responses in the form that clients expect: as one body, or as a stream of events while they are sampled."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from roll.data.templates import Template
from roll.data.tools import ToolCall, ToolForm, parse_response
from roll.proxy.messages import ApiError
from roll.proxy.requests import ChatRequest, RequestRules, read_request
from roll.proxy.stopping import before_marker, before_partial
from roll.serving.dispatch import Sampled
from roll.types import Finish, record

if TYPE_CHECKING:
    from roll.types import Ints

_CALL, _CALL_END = "<tool_call>", "</tool_call>"
_REPLACEMENT = "\ufffd"
"""Decoding of bytes that do not form a complete character yet."""
_TYPES = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}
encode = msgspec.json.encode


@record
class Completion:
    """One response of the policy."""

    id: str
    text: str
    """The decoded ids."""
    visible: str
    """The text before a stop string."""
    content: str
    """The visible text without tool calls."""
    calls: tuple[ToolCall, ...]
    sampled: Sampled
    num_prompt: int
    """Tokens of the context."""
    created: int
    """Unix time in seconds."""

    @property
    def finish(self) -> str:
        """`finish_reason` of the protocol."""
        if self.calls:
            return "tool_calls"
        return "length" if self.sampled.finish is Finish.LENGTH else "stop"


def call_form(request: ChatRequest, template: Template) -> ToolForm | None:
    """The form in which calls of the response are parsed; None if they are not."""
    return template.tool_form if request.tools and request.parse_calls else None


def end_markers(request: ChatRequest, template: Template) -> tuple[str, ...]:
    """Texts that end the response to a request, beside the tokens that end every response."""
    ends_with_call = request.single_call and call_form(request, template) == "hermes"  # "llama" has one call at most
    return (*request.stop, _CALL_END) if ends_with_call else request.stop


def build_completion(
    id: str, request: ChatRequest, sampled: Sampled, template: Template, num_prompt: int
) -> Completion:
    """A response with its tool calls parsed; a malformed call stays text."""
    text = template.decode(sampled.ids)
    visible = content = before_marker(text, request.stop)
    calls: tuple[ToolCall, ...] = ()
    form = call_form(request, template)
    if form is not None:
        calls = parse_response(visible, request.tools, form).calls
        if calls:
            content = visible.partition(_CALL)[0] if form == "hermes" else ""
    return Completion(
        id=f"chatcmpl-{id}",
        text=text,
        visible=visible,
        content=content,
        calls=calls,
        sampled=sampled,
        num_prompt=num_prompt,
        created=int(time.time()),
    )


class EventStream(Protocol):
    """A response as server-sent events; the first call that returns any returns the opening, too."""

    def add(self, index: int, ids: Ints) -> bytes:
        """Events with new text of a choice; empty if there is none."""
        ...

    def end(self, completions: Sequence[Completion]) -> bytes: ...

    def failure(self, error: ApiError) -> bytes: ...


class Exchange(Protocol):
    """A request, and the form of its response."""

    request: ChatRequest

    def body(self, completions: Sequence[Completion]) -> bytes:
        """The body of a response that is not streamed."""
        ...

    def stream(self, id: str) -> EventStream: ...


class ChatExchange:
    """A request for chat completions, and the form of its response."""

    def __init__(self, fields: Mapping[str, Any], rules: RequestRules, template: Template) -> None:
        """Raises one `ApiError` with all faults."""
        self.request, self._template = read_request(fields, rules), template

    def body(self, completions: Sequence[Completion]) -> bytes:
        return completion_body(completions, self.request, self._template)

    def stream(self, id: str) -> EventStream:
        return CompletionStream(id, self.request, self._template)


def completion_body(completions: Sequence[Completion], request: ChatRequest, template: Template) -> bytes:
    """The body of a response that is not streamed; each completion is a choice."""
    first = completions[0]
    versions = first.sampled.versions
    return encode(
        {
            "id": first.id,
            "object": "chat.completion",
            "created": first.created,
            "model": request.model,
            "system_fingerprint": f"version-{int(versions[-1])}" if len(versions) else None,
            "choices": [_choice(index, each, request, template) for index, each in enumerate(completions)],
            "usage": _usage(completions),
        }
    )


def _choice(index: int, completion: Completion, request: ChatRequest, template: Template) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": completion.content or (None if completion.calls else "")}
    if completion.calls:
        message["tool_calls"] = format_calls(completion)
    return {
        "index": index,
        "message": message,
        "logprobs": _logprobs(completion.sampled, template) if request.logprobs else None,
        "finish_reason": completion.finish,
    }


class VisibleText:
    """The text of a response while it is sampled, without what later tokens may change or turn into a tool call."""

    def __init__(self, request: ChatRequest, template: Template) -> None:
        self._decode, self._form = template.decode, call_form(request, template)
        self._markers = (*request.stop, _CALL) if self._form == "hermes" else request.stop
        self._ids: list[int] = []
        self._sent = ""

    def add(self, ids: Ints) -> str:
        """The new text; empty if there is none."""
        self._ids += ids.tolist()
        text = self._stable(self._decode(self._ids))
        new = text[len(self._sent) :] if text.startswith(self._sent) else ""
        self._sent += new
        return new

    def rest(self, completion: Completion) -> str:
        """The text of the complete response that `add` has not returned."""
        return completion.content[len(self._sent) :]

    def _stable(self, text: str) -> str:
        if self._form == "llama" and text.lstrip()[:1] in ("", "{"):
            return ""
        return before_partial(text.rstrip(_REPLACEMENT), self._markers)


class ChoiceStream:
    """One choice of a response as server-sent events."""

    def __init__(self, id: str, index: int, request: ChatRequest, template: Template) -> None:
        self._index, self._request, self._template = index, request, template
        self._text = VisibleText(request, template)
        self._head = {
            "id": f"chatcmpl-{id}",
            "object": "chat.completion.chunk",
            "created": int(time.time()),
            "model": request.model,
        }

    def opening(self) -> bytes:
        """The first event."""
        return self._event({"role": "assistant", "content": ""})

    def add(self, ids: Ints) -> bytes:
        """An event with the new text that later tokens cannot change; empty if there is none."""
        if self._request.logprobs:
            return b""  # logprobs accompany the text, and are known at the end
        new = self._text.add(ids)
        return self._event({"content": new}) if new else b""

    def end(self, completion: Completion) -> Iterator[bytes]:
        """The remaining events of a complete response."""
        rest = self._text.rest(completion)
        if self._request.logprobs:
            yield self._event({"content": rest}, logprobs=_logprobs(completion.sampled, self._template))
        elif rest:
            yield self._event({"content": rest})
        if completion.calls:
            yield self._event({"tool_calls": format_calls(completion, numbered=True)})
        yield self._event({}, finish=completion.finish)

    def usage(self, completions: Sequence[Completion]) -> bytes:
        """The event with the token counts of all choices."""
        return _event_bytes({**self._head, "choices": [], "usage": _usage(completions)})

    def _event(self, delta: dict[str, Any], *, finish: str | None = None, logprobs: Any = None) -> bytes:
        choice = {"index": self._index, "delta": delta, "logprobs": logprobs, "finish_reason": finish}
        return _event_bytes({**self._head, "choices": [choice]})


class CompletionStream:
    """A response with all of its choices as server-sent events."""

    def __init__(self, id: str, request: ChatRequest, template: Template) -> None:
        self._request = request
        self._choices = [ChoiceStream(id, index, request, template) for index in range(request.num_choices)]
        self._opening = b"".join(choice.opening() for choice in self._choices)

    def add(self, index: int, ids: Ints) -> bytes:
        """An event with new text of a choice that later tokens cannot change; empty if there is none."""
        event = self._choices[index].add(ids)
        return self._take_opening() + event if event else b""

    def end(self, completions: Sequence[Completion]) -> bytes:
        """The remaining events of a complete response."""
        pairs = zip(self._choices, completions, strict=True)
        events = [event for choice, completion in pairs for event in choice.end(completion)]
        if self._request.usage:
            events.append(self._choices[0].usage(completions))
        return b"".join((self._take_opening(), *events, b"data: [DONE]\n\n"))

    def failure(self, error: ApiError) -> bytes:
        """The event that ends a failed stream."""
        return b"data: " + error_body(error) + b"\n\n"

    def _take_opening(self) -> bytes:
        opening, self._opening = self._opening, b""
        return opening


def error_body(error: ApiError) -> bytes:
    """The body of an error."""
    kind = _TYPES.get(error.status, "invalid_request_error" if error.status < 500 else "server_error")
    return encode({"error": {"message": error.message, "type": kind, "param": error.param, "code": error.code}})


def model_entry(name: str, created: int) -> dict[str, Any]:
    """One entry of the list of models."""
    return {"id": name, "object": "model", "created": created, "owned_by": "roll"}


def _event_bytes(entries: dict[str, Any]) -> bytes:
    return b"data: " + encode(entries) + b"\n\n"


def format_calls(completion: Completion, *, numbered: bool = False) -> list[dict[str, Any]]:
    """Tool calls of a response as chat completions have them."""
    return [
        {
            **({"index": index} if numbered else {}),
            "id": f"call-{completion.id.removeprefix('chatcmpl-')}-{index}",
            "type": "function",
            "function": {"name": call.name, "arguments": encode(call.arguments).decode()},
        }
        for index, call in enumerate(completion.calls)
    ]


def _usage(completions: Sequence[Completion]) -> dict[str, int]:
    """Token counts; the choices share one prompt."""
    num_prompt, num_new = completions[0].num_prompt, sum(len(each.sampled.ids) for each in completions)
    return {"prompt_tokens": num_prompt, "completion_tokens": num_new, "total_tokens": num_prompt + num_new}


def _logprobs(sampled: Sampled, template: Template) -> dict[str, Any]:
    """Logprobs of all sampled tokens; the stop token is included and has no text."""
    texts = [template.decode([id]) for id in sampled.ids.tolist()]
    return {
        "content": [
            {"token": text, "logprob": logprob, "bytes": list(text.encode()), "top_logprobs": []}
            for text, logprob in zip(texts, sampled.logprobs.tolist(), strict=True)
        ]
    }
