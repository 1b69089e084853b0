"""The Responses API, used through the real client: the same tokens as chat completions."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import openai
import pytest

from roll.data.templates import Template
from roll.proxy.session import Session
from roll.types import Segment
from tests.data.chat_templates import family
from tests.proxy.rig import MODEL, Served, serving
from tests.proxy.test_message_tree import CALL, TOOL, spoken, user

pytestmark = pytest.mark.slow

FUNCTION: Any = {"type": "function", **TOOL["function"]}


@pytest.fixture(scope="module")
def template() -> Template:
    return family("chatml")


def serve(
    folder: Path,
    template: Template,
    work: Callable[[Served, Session, Any], Awaitable[None]],
    *replies: str | None,
    **options: Any,
) -> tuple[Segment, ...]:
    """The segments of an attempt in which that was done."""
    ids = [None if each is None else template.answer(each, where="a test").tolist() for each in replies]
    folder.mkdir(exist_ok=True)

    async def inside() -> tuple[Segment, ...]:
        async with asyncio.timeout(300), serving(folder, template, ids, **options) as served:
            session = served.open()
            await work(served, session, served.client(session))
            return session.tree.segments()

    return asyncio.run(inside())


def test_a_conversation_with_a_tool_gives_the_same_tokens_as_chat_completions(
    tmp_path: Path, template: Template
) -> None:
    async def chat(served: Served, session: Session, client: Any) -> None:
        messages = [{"role": "system", "content": "Use tools."}, user("1+1")]
        first = await client.chat.completions.create(model=MODEL, messages=messages, tools=[TOOL])
        message = first.choices[0].message
        messages += [message.model_dump(exclude_none=True)]
        messages += [{"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "2"}]
        await client.chat.completions.create(model=MODEL, messages=messages, tools=[TOOL])

    async def items(served: Served, session: Session, client: Any) -> None:
        options = {"model": MODEL, "instructions": "Use tools.", "tools": [FUNCTION]}
        first = await client.responses.create(**options, input="1+1")
        message, call = first.output
        assert (first.status, message.type, message.content[0].text) == ("completed", "message", "let me ")
        assert (call.type, call.name, call.arguments) == ("function_call", "add", '{"a":1}')
        result = {"type": "function_call_output", "call_id": call.call_id, "output": "2"}
        items = [user("1+1"), *(item.model_dump() for item in first.output), result]
        last = await client.responses.create(**options, input=items)
        assert last.output_text == "two" and last.usage.output_tokens == len(served.generator.given[-1])

    async def previous(served: Served, session: Session, client: Any) -> None:
        options = {"model": MODEL, "instructions": "Use tools.", "tools": [FUNCTION]}
        first = await client.responses.create(**options, input=[user("1+1")], store=True)
        result = {"type": "function_call_output", "call_id": first.output[1].call_id, "output": "2"}
        last = await client.responses.create(**options, input=[result], previous_response_id=first.id)
        assert (last.output_text, last.previous_response_id) == ("two", first.id)

    runs = [serve(tmp_path / work.__name__, template, work, CALL, "two") for work in (chat, items, previous)]
    for (segment,) in runs:
        assert spoken(template, segment) == [CALL, "two"]
        assert segment.ids.tolist() == runs[0][0].ids.tolist()
        assert segment.trained.tolist() == runs[0][0].trained.tolist()


@pytest.mark.parametrize("reply", ["one two", CALL, CALL.removeprefix("let me "), ""])
def test_the_events_of_a_stream_form_the_response(tmp_path: Path, template: Template, reply: str) -> None:
    async def work(served: Served, session: Session, client: Any) -> None:
        options = {"model": MODEL, "input": "go", "tools": [FUNCTION]}
        events = [event async for event in await client.responses.create(**options, stream=True)]
        assert [event.sequence_number for event in events] == list(range(len(events)))
        assert [event.type for event in events[:2]] == ["response.created", "response.in_progress"]
        assert events[-1].type == "response.completed" and events[0].response.id == events[-1].response.id
        final = events[-1].response
        text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
        arguments = "".join(event.delta for event in events if event.type == "response.function_call_arguments.delta")
        done = [event.item for event in events if event.type == "response.output_item.done"]
        added = [event.output_index for event in events if event.type == "response.output_item.added"]
        assert text == final.output_text == reply.partition("<")[0]
        assert [item.model_dump() for item in done] == [item.model_dump() for item in final.output]
        assert added == list(range(len(final.output))) and arguments == ('{"a":1}' if "<" in reply else "")
        whole = await client.responses.create(**options)
        kinds = [(item.type, getattr(item, "arguments", "")) for item in final.output]
        assert [(item.type, getattr(item, "arguments", "")) for item in whole.output] == kinds
        assert len(served.generator.asked) == 1, "the same request, in another form"
        more = await client.responses.create(model=MODEL, input="on", tools=[FUNCTION], previous_response_id=final.id)
        assert more.output_text == "more"

    (segment,) = serve(tmp_path, template, work, reply, "more")
    assert spoken(template, segment) == [reply, "more"]


def test_a_response_cut_at_its_limit_is_incomplete(tmp_path: Path, template: Template) -> None:
    async def work(served: Served, session: Session, client: Any) -> None:
        response = await client.responses.create(model=MODEL, input="go", max_output_tokens=2)
        assert (response.status, response.incomplete_details.reason) == ("incomplete", "max_output_tokens")
        events = [
            event
            async for event in await client.responses.create(model=MODEL, input="go", max_output_tokens=2, stream=True)
        ]
        assert events[-1].type == "response.incomplete"

    serve(tmp_path, template, work, "one two three")


def test_all_faults_of_a_request_are_reported_at_once(tmp_path: Path, template: Template) -> None:
    async def work(served: Served, session: Session, client: Any) -> None:
        image = {"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}
        wrong: dict[str, Any] = {
            "input": [image, {"type": "reasoning", "summary": []}],
            "previous_response_id": "resp-5",
            "tools": [{"type": "web_search"}],
            "temperature": 0.5,
            "reasoning": {"effort": "high"},
            "max_output_tokens": 0,
            "extra_body": {"n": 2},
        }
        with pytest.raises(openai.BadRequestError) as refused:
            await client.responses.create(model=MODEL, **wrong)
        for fault in (
            "8 faults",
            "parameters of chat completions: 'n'",
            'no response "resp-5" in this session',
            "input.0.content: only text",
            "input.1: not a message",
            "tools: only functions",
            "temperature: this run",
            "unsupported parameters: 'reasoning'",
            "a response has at least 1 token",
        ):
            assert fault in str(refused.value), fault
        assert served.generator.asked == []
        response = await client.responses.create(
            model=MODEL, input="go", text={"format": {"type": "text"}}, truncation="disabled", max_tool_calls=3
        )
        assert response.output_text == "fine"

    serve(tmp_path, template, work, "fine", settings={"ignored": frozenset({"max_tool_calls"})})
