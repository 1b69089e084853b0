"""Replies as a client is given them: whole, or piece by piece while they are sampled."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from roll.data.templates import Template
from roll.data.tools import ToolCall, read
from roll.proxy.requests import Asked, Refused
from roll.serving.pending import Sampled
from roll.types import Finish, record

if TYPE_CHECKING:
    from roll.types import Ints

_CALL = "<tool_call>"
_UNWHOLE = "\ufffd"
"""What bytes that are not a character yet decode to."""
_TYPES = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}
encode = msgspec.json.encode


@record
class Answer:
    """One reply of the policy."""

    id: str
    text: str
    """All of it, as its ids decode."""
    content: str
    """Without the calls in it."""
    calls: tuple[ToolCall, ...]
    sampled: Sampled
    num_prompt: int
    """Tokens that it was sampled after."""
    created: int
    """Seconds since 1970."""

    @property
    def finish(self) -> str:
        """Why it ended, in a client's words."""
        if self.calls:
            return "tool_calls"
        return "length" if self.sampled.finish is Finish.LENGTH else "stop"


def answer_of(id: str, asked: Asked, sampled: Sampled, template: Template, num_prompt: int) -> Answer:
    """A reply with its calls read; one that tries to call a tool and fails is text, and calls nothing."""
    text = template.decode(sampled.ids)
    content, calls = text, ()
    form = template.tool_form
    if asked.tools and asked.calling and form is not None:
        calls = read(text, asked.tools, form).calls
        if calls:
            content = text.partition(_CALL)[0] if form == "hermes" else ""
    return Answer(
        id=f"chatcmpl-{id}",
        text=text,
        content=content,
        calls=calls,
        sampled=sampled,
        num_prompt=num_prompt,
        created=int(time.time()),
    )


def whole(answer: Answer, asked: Asked, template: Template) -> bytes:
    """The body of an answer that is not streamed."""
    message: dict[str, Any] = {"role": "assistant", "content": answer.content or (None if answer.calls else "")}
    if answer.calls:
        message["tool_calls"] = _calls(answer)
    choice = {
        "index": 0,
        "message": message,
        "logprobs": _logprobs(answer.sampled, template) if asked.logprobs else None,
        "finish_reason": answer.finish,
    }
    versions = answer.sampled.versions
    return encode(
        {
            "id": answer.id,
            "object": "chat.completion",
            "created": answer.created,
            "model": asked.model,
            "system_fingerprint": f"version-{int(versions[-1])}" if len(versions) else None,
            "choices": [choice],
            "usage": _usage(answer),
        }
    )


class Stream:
    """A reply in pieces, each an event that a client puts together with the others."""

    def __init__(self, id: str, asked: Asked, template: Template) -> None:
        self._asked, self._template = asked, template
        self._ids: list[int] = []
        self._sent = ""
        self._form = template.tool_form if asked.tools and asked.calling else None
        self._head = {
            "id": f"chatcmpl-{id}",
            "object": "chat.completion.chunk",
            "created": int(time.time()),
            "model": asked.model,
        }

    def opening(self) -> bytes:
        """The first event."""
        return self._event({"role": "assistant", "content": ""})

    def add(self, ids: Ints) -> bytes:
        """An event of the text that is sure to be part of the reply by now; nothing where no more is."""
        if self._asked.logprobs:
            return b""  # they go with the text, and are known of the whole
        self._ids += ids.tolist()
        text = self._sure(self._template.decode(self._ids))
        new = text[len(self._sent) :] if text.startswith(self._sent) else ""
        self._sent += new
        return self._event({"content": new}) if new else b""

    def end(self, answer: Answer) -> Iterator[bytes]:
        """What is left once the reply is whole."""
        rest = answer.content[len(self._sent) :]
        if self._asked.logprobs:
            yield self._event({"content": rest}, logprobs=_logprobs(answer.sampled, self._template))
        elif rest:
            yield self._event({"content": rest})
        if answer.calls:
            yield self._event({"tool_calls": _calls(answer, numbered=True)})
        yield self._event({}, finish=answer.finish)
        if self._asked.usage:
            yield _data({**self._head, "choices": [], "usage": _usage(answer)})
        yield b"data: [DONE]\n\n"

    def failure(self, error: Refused) -> bytes:
        """That no more will come, and why."""
        return b"data: " + refusal(error) + b"\n\n"

    def _event(self, delta: dict[str, Any], *, finish: str | None = None, logprobs: Any = None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": logprobs, "finish_reason": finish}
        return _data({**self._head, "choices": [choice]})

    def _sure(self, text: str) -> str:
        """Without what later tokens may still change, or make a call of."""
        text = text.rstrip(_UNWHOLE)
        if self._form is None:
            return text
        if self._form == "llama":
            return "" if text.lstrip()[:1] in ("", "{") else text
        before, called, _ = text.partition(_CALL)
        if called:
            return before
        most = min(len(_CALL) - 1, len(text))
        begun = next((size for size in range(most, 0, -1) if text.endswith(_CALL[:size])), 0)
        return text[: len(text) - begun]


def refusal(error: Refused) -> bytes:
    """Why there is no reply, as clients of this protocol expect it."""
    kind = _TYPES.get(error.status, "invalid_request_error" if error.status < 500 else "server_error")
    return encode({"error": {"message": error.why, "type": kind, "param": error.param, "code": error.code}})


def model(name: str, created: int) -> dict[str, Any]:
    """One name that the policy goes by."""
    return {"id": name, "object": "model", "created": created, "owned_by": "roll"}


def _data(entries: dict[str, Any]) -> bytes:
    return b"data: " + encode(entries) + b"\n\n"


def _calls(answer: Answer, *, numbered: bool = False) -> list[dict[str, Any]]:
    return [
        {
            **({"index": place} if numbered else {}),
            "id": f"call-{answer.id.removeprefix('chatcmpl-')}-{place}",
            "type": "function",
            "function": {"name": call.name, "arguments": encode(call.arguments).decode()},
        }
        for place, call in enumerate(answer.calls)
    ]


def _usage(answer: Answer) -> dict[str, int]:
    num_new = len(answer.sampled.ids)
    return {
        "prompt_tokens": answer.num_prompt,
        "completion_tokens": num_new,
        "total_tokens": answer.num_prompt + num_new,
    }


def _logprobs(sampled: Sampled, template: Template) -> dict[str, Any]:
    """Of every sampled token, the one that ended the reply included: that one has no text."""
    texts = [template.decode([id]) for id in sampled.ids.tolist()]
    return {
        "content": [
            {"token": text, "logprob": logprob, "bytes": list(text.encode()), "top_logprobs": []}
            for text, logprob in zip(texts, sampled.logprobs.tolist(), strict=True)
        ]
    }
