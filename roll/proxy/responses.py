"""The Responses API: its requests become chat requests, and completions become its responses.

Everything between is that of chat completions, so both give the same tokens.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from roll.data.templates import Template
from roll.proxy.completions import Completion, VisibleText, encode, format_calls
from roll.proxy.messages import ROLES, ApiError, Faults, excerpt, read_text
from roll.proxy.requests import RequestRules, read_request

if TYPE_CHECKING:
    from roll.types import Ints

ChatEntry: TypeAlias = dict[str, Any]
"""A message as chat completions have it."""
History: TypeAlias = dict[str, list[ChatEntry]]
"""Messages of a session up to each response, by the id of the response; without instructions."""

_CHAT_ONLY = frozenset({"messages", "max_tokens", "max_completion_tokens", "n", "stop", "logprobs", "stream_options"})
_WITHOUT_EFFECT: Mapping[str, Any] = {
    "truncation": "disabled",
    "background": False,
    "include": [],
    "reasoning": {},
    "text": {"format": {"type": "text"}},
}
"""Values of parameters that change nothing; others are refused."""
_TEXT_PARTS = ("input_text", "output_text", "text")


class ResponseExchange:
    """A request of the Responses API, and the form of its response."""

    def __init__(self, fields: Mapping[str, Any], rules: RequestRules, template: Template, history: History) -> None:
        """Raises one `ApiError` with all faults."""
        self._fields, self._template, self._history = fields, template, history
        faults = Faults()
        kept = {name: value for name, value in fields.items() if name not in rules.ignored}
        faults.read(None, _check_names, kept)
        self._messages: list[ChatEntry] = [
            *faults.read([], self._previous, kept.pop("previous_response_id", None)),
            *faults.read([], _input_messages, kept.pop("input", None), faults),
        ]
        chat: dict[str, Any] = {
            name: value
            for name, value in kept.items()
            if name not in _CHAT_ONLY and (name not in _WITHOUT_EFFECT or value != _WITHOUT_EFFECT[name])
        }
        instructions = chat.pop("instructions", None)
        system = [] if instructions is None else [{"role": "system", "content": instructions}]
        chat["messages"] = [*system, *self._messages] or [{"role": "user", "content": ""}]
        if "tools" in chat:
            chat["tools"] = faults.read([], _chat_tools, chat["tools"])
        if "max_output_tokens" in chat:
            chat["max_completion_tokens"] = chat.pop("max_output_tokens")
        ignored = {name: fields[name] for name in fields.keys() & rules.ignored}
        self.request = read_request({**chat, **ignored}, rules, faults)

    def body(self, completions: Sequence[Completion]) -> bytes:
        """The body of a response that is not streamed."""
        (completion,) = completions
        return encode(self.finished(completion.id.replace("chatcmpl", "resp"), completion))

    def stream(self, id: str) -> ResponseStream:
        return ResponseStream(f"resp-{id}", self, VisibleText(self.request, self._template))

    def started(self, id: str) -> dict[str, Any]:
        """A response without output."""
        fields = self._fields
        return {
            "id": id,
            "object": "response",
            "created_at": int(time.time()),
            "status": "in_progress",
            "error": None,
            "incomplete_details": None,
            "model": self.request.model,
            "output": [],
            "parallel_tool_calls": not self.request.single_call,
            "tool_choice": fields.get("tool_choice", "auto"),
            "tools": fields.get("tools", []),
            "metadata": fields.get("metadata", {}),
            **{name: fields.get(name) for name in ("instructions", "max_output_tokens", "previous_response_id")},
            **{name: fields.get(name) for name in ("temperature", "top_p")},
            "usage": None,
        }

    def finished(self, id: str, completion: Completion) -> dict[str, Any]:
        """A complete response; later requests may continue from it."""
        entry: ChatEntry = {"role": "assistant", "content": completion.content, "tool_calls": format_calls(completion)}
        self._history[id] = [*self._messages, entry]
        num_prompt, num_new = completion.num_prompt, len(completion.sampled.ids)
        long = completion.finish == "length"
        return self.started(id) | {
            "created_at": completion.created,
            "status": "incomplete" if long else "completed",
            "incomplete_details": {"reason": "max_output_tokens"} if long else None,
            "output": output_items(id, completion),
            "usage": {
                "input_tokens": num_prompt,
                "input_tokens_details": {"cached_tokens": 0},
                "output_tokens": num_new,
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": num_prompt + num_new,
            },
        }

    def _previous(self, id: Any) -> list[ChatEntry]:
        if id is None:
            return []
        if not isinstance(id, str) or id not in self._history:
            raise ApiError(
                400,
                f"previous_response_id: no response {excerpt(id)} in this session; send the messages as `input`",
                param="previous_response_id",
                code="previous_response_not_found",
            )
        return self._history[id]


class ResponseStream:
    """A response as typed server-sent events."""

    def __init__(self, id: str, exchange: ResponseExchange, text: VisibleText) -> None:
        self._id, self._exchange, self._text = id, exchange, text
        self._num_events = 0
        self._place = {"item_id": f"msg-{id}", "output_index": 0, "content_index": 0}
        self._opened = False
        """Whether the message has begun."""

    def add(self, index: int, ids: Ints) -> bytes:
        """Events with new text that later tokens cannot change; empty if there is none."""
        new = self._text.add(ids)
        return b"".join((*self._start(), *self._delta(new))) if new else b""

    def end(self, completions: Sequence[Completion]) -> bytes:
        """The remaining events of a complete response."""
        return b"".join((*self._start(), *self._end(completions[0])))

    def failure(self, error: ApiError) -> bytes:
        """The event that ends a failed stream."""
        return self._event("error", code=error.code, message=error.message, param=error.param)

    def _start(self) -> Iterator[bytes]:
        if not self._num_events:
            started = self._exchange.started(self._id)
            yield self._event("response.created", response=started)
            yield self._event("response.in_progress", response=started)

    def _end(self, completion: Completion) -> Iterator[bytes]:
        response = self._exchange.finished(self._id, completion)
        rest = self._text.rest(completion)
        if rest or (not self._opened and response["output"][0]["type"] == "message"):
            yield from self._delta(rest)
        for index, item in enumerate(response["output"]):
            if item["type"] == "message":
                (part,) = item["content"]
                yield self._event("response.output_text.done", **self._place, text=part["text"], logprobs=[])
                yield self._event("response.content_part.done", **self._place, part=part)
            else:
                yield from self._call(index, item)
            yield self._event("response.output_item.done", output_index=index, item=item)
        yield self._event(f"response.{response['status']}", response=response)

    def _call(self, index: int, item: Mapping[str, Any]) -> Iterator[bytes]:
        place = {"item_id": item["id"], "output_index": index}
        begun = {**item, "arguments": "", "status": "in_progress"}
        yield self._event("response.output_item.added", output_index=index, item=begun)
        yield self._event("response.function_call_arguments.delta", **place, delta=item["arguments"])
        yield self._event(
            "response.function_call_arguments.done", **place, name=item["name"], arguments=item["arguments"]
        )

    def _delta(self, new: str) -> Iterator[bytes]:
        if not self._opened:
            self._opened = True
            item: dict[str, Any] = {**_message_item(self._id, "", "in_progress"), "content": []}
            yield self._event("response.output_item.added", output_index=0, item=item)
            yield self._event("response.content_part.added", **self._place, part=_text_part(""))
        if new:
            yield self._event("response.output_text.delta", **self._place, delta=new, logprobs=[])

    def _event(self, kind: str, **fields: Any) -> bytes:
        entries = {"type": kind, "sequence_number": self._num_events, **fields}
        self._num_events += 1
        return b"event: " + kind.encode() + b"\ndata: " + encode(entries) + b"\n\n"


def output_items(id: str, completion: Completion) -> list[dict[str, Any]]:
    """The text of a response as a message, then its tool calls."""
    status = "incomplete" if completion.finish == "length" else "completed"
    message = [_message_item(id, completion.content, status)] if completion.content or not completion.calls else []
    calls = [
        {
            "type": "function_call",
            "id": f"fc-{call['id']}",
            "call_id": call["id"],
            "name": call["function"]["name"],
            "arguments": call["function"]["arguments"],
            "status": "completed",
        }
        for call in format_calls(completion)
    ]
    return [*message, *calls]


def _message_item(id: str, text: str, status: str) -> dict[str, Any]:
    return {"type": "message", "id": f"msg-{id}", "status": status, "role": "assistant", "content": [_text_part(text)]}


def _text_part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _check_names(fields: Mapping[str, Any]) -> None:
    if unknown := sorted(fields.keys() & _CHAT_ONLY):
        names = ", ".join(map(repr, unknown))
        raise ApiError(400, f"parameters of chat completions: {names}; leave them out", param=unknown[0])


def _chat_tools(entries: Any) -> list[Any]:
    """Tools as chat completions have them."""
    tools: list[Any] = []
    for entry in cast(list[Any], entries) if isinstance(entries, list) else [entries]:
        fields = cast(dict[str, Any], entry) if isinstance(entry, dict) else {}
        if fields.get("type") != "function":
            raise ApiError(
                400, f"tools: only functions are supported (got {excerpt(entry)}); leave it out", param="tools"
            )
        tools.append({"type": "function", "function": {name: fields[name] for name in fields if name != "type"}})
    return tools


def _input_messages(value: Any, faults: Faults) -> list[ChatEntry]:
    """The input of a request as messages of chat completions; adds to `faults` for single items."""
    if isinstance(value, str):
        return [{"role": "user", "content": value}]
    if not isinstance(value, list) or not value:
        raise ApiError(400, f"input: no text or items (got {excerpt(value)}); send some", param="input")
    messages: list[ChatEntry] = []
    for index, item in enumerate(cast(list[Any], value)):
        faults.read(None, _add_item, messages, item, f"input.{index}")
    return messages


def _add_item(messages: list[ChatEntry], item: Any, param: str) -> None:
    """Add an item; a function call joins the message of the assistant before it."""
    fields = cast(dict[str, Any], item) if isinstance(item, dict) else {}
    kind = fields.get("type", "message")
    if kind == "message" and str(fields.get("role")) in ROLES:
        messages.append(
            {"role": fields["role"], "content": read_text(fields.get("content"), f"{param}.content", _TEXT_PARTS)}
        )
    elif kind == "function_call_output" and "output" in fields:
        messages.append({"role": "tool", "content": read_text(fields["output"], f"{param}.output", _TEXT_PARTS)})
    elif kind == "function_call":
        if not messages or messages[-1]["role"] != "assistant":
            messages.append({"role": "assistant", "content": ""})
        call = {"function": {"name": fields.get("name"), "arguments": fields.get("arguments", "{}")}}
        messages[-1] = {**messages[-1], "tool_calls": [*messages[-1].get("tool_calls", []), call]}
    else:
        what = "not a message of a known role, a function_call or a function_call_output"
        raise ApiError(400, f"{param}: {what} (got {excerpt(item)}); leave it out", param=param)
