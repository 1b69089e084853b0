"""Responses in the form that clients expect: as one body, or as a stream of events while they are sampled."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from roll.data.templates import Template
from roll.data.tools import ToolCall, parse_response
from roll.proxy.requests import ApiError, ChatRequest
from roll.serving.dispatch import Sampled
from roll.types import Finish, record

if TYPE_CHECKING:
    from roll.types import Ints

_CALL = "<tool_call>"
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
    content: str
    """The text without tool calls."""
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


def build_completion(
    id: str, request: ChatRequest, sampled: Sampled, template: Template, num_prompt: int
) -> Completion:
    """A response with its tool calls parsed; a malformed call stays text."""
    text = template.decode(sampled.ids)
    content, calls = text, ()
    form = template.tool_form
    if request.tools and request.parse_calls and form is not None:
        calls = parse_response(text, request.tools, form).calls
        if calls:
            content = text.partition(_CALL)[0] if form == "hermes" else ""
    return Completion(
        id=f"chatcmpl-{id}",
        text=text,
        content=content,
        calls=calls,
        sampled=sampled,
        num_prompt=num_prompt,
        created=int(time.time()),
    )


def completion_body(completion: Completion, request: ChatRequest, template: Template) -> bytes:
    """The body of a response that is not streamed."""
    message: dict[str, Any] = {"role": "assistant", "content": completion.content or (None if completion.calls else "")}
    if completion.calls:
        message["tool_calls"] = _format_calls(completion)
    choice = {
        "index": 0,
        "message": message,
        "logprobs": _logprobs(completion.sampled, template) if request.logprobs else None,
        "finish_reason": completion.finish,
    }
    versions = completion.sampled.versions
    return encode(
        {
            "id": completion.id,
            "object": "chat.completion",
            "created": completion.created,
            "model": request.model,
            "system_fingerprint": f"version-{int(versions[-1])}" if len(versions) else None,
            "choices": [choice],
            "usage": _usage(completion),
        }
    )


class CompletionStream:
    """A response as server-sent events."""

    def __init__(self, id: str, request: ChatRequest, template: Template) -> None:
        self._request, self._template = request, template
        self._ids: list[int] = []
        self._sent = ""
        self._form = template.tool_form if request.tools and request.parse_calls else None
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
        self._ids += ids.tolist()
        text = self._stable(self._template.decode(self._ids))
        new = text[len(self._sent) :] if text.startswith(self._sent) else ""
        self._sent += new
        return self._event({"content": new}) if new else b""

    def end(self, completion: Completion) -> Iterator[bytes]:
        """The remaining events of a complete response."""
        rest = completion.content[len(self._sent) :]
        if self._request.logprobs:
            yield self._event({"content": rest}, logprobs=_logprobs(completion.sampled, self._template))
        elif rest:
            yield self._event({"content": rest})
        if completion.calls:
            yield self._event({"tool_calls": _format_calls(completion, numbered=True)})
        yield self._event({}, finish=completion.finish)
        if self._request.usage:
            yield _event_bytes({**self._head, "choices": [], "usage": _usage(completion)})
        yield b"data: [DONE]\n\n"

    def failure(self, error: ApiError) -> bytes:
        """The event that ends a failed stream."""
        return b"data: " + error_body(error) + b"\n\n"

    def _event(self, delta: dict[str, Any], *, finish: str | None = None, logprobs: Any = None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": logprobs, "finish_reason": finish}
        return _event_bytes({**self._head, "choices": [choice]})

    def _stable(self, text: str) -> str:
        """The text without an end that later tokens may change or turn into a tool call."""
        text = text.rstrip(_REPLACEMENT)
        if self._form is None:
            return text
        if self._form == "llama":
            return "" if text.lstrip()[:1] in ("", "{") else text
        before, call, _ = text.partition(_CALL)
        if call:
            return before
        longest = min(len(_CALL) - 1, len(text))
        overlap = next((size for size in range(longest, 0, -1) if text.endswith(_CALL[:size])), 0)
        return text[: len(text) - overlap]


def error_body(error: ApiError) -> bytes:
    """The body of an error."""
    kind = _TYPES.get(error.status, "invalid_request_error" if error.status < 500 else "server_error")
    return encode({"error": {"message": error.message, "type": kind, "param": error.param, "code": error.code}})


def model_entry(name: str, created: int) -> dict[str, Any]:
    """One entry of the list of models."""
    return {"id": name, "object": "model", "created": created, "owned_by": "roll"}


def _event_bytes(entries: dict[str, Any]) -> bytes:
    return b"data: " + encode(entries) + b"\n\n"


def _format_calls(completion: Completion, *, numbered: bool = False) -> list[dict[str, Any]]:
    return [
        {
            **({"index": index} if numbered else {}),
            "id": f"call-{completion.id.removeprefix('chatcmpl-')}-{index}",
            "type": "function",
            "function": {"name": call.name, "arguments": encode(call.arguments).decode()},
        }
        for index, call in enumerate(completion.calls)
    ]


def _usage(completion: Completion) -> dict[str, int]:
    num_new = len(completion.sampled.ids)
    return {
        "prompt_tokens": completion.num_prompt,
        "completion_tokens": num_new,
        "total_tokens": completion.num_prompt + num_new,
    }


def _logprobs(sampled: Sampled, template: Template) -> dict[str, Any]:
    """Logprobs of all sampled tokens; the stop token is included and has no text."""
    texts = [template.decode([id]) for id in sampled.ids.tolist()]
    return {
        "content": [
            {"token": text, "logprob": logprob, "bytes": list(text.encode()), "top_logprobs": []}
            for text, logprob in zip(texts, sampled.logprobs.tolist(), strict=True)
        ]
    }
