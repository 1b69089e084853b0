"""Clients see exactly the decoded ids that were recorded, and every id is trained once, for any requests."""

import asyncio
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from openai import AsyncOpenAI

from roll.data.templates import Template
from roll.data.tools import parse_response, parse_tools
from roll.types import Segment
from tests.data.chat_templates import ALPHABET, FAMILIES, family
from tests.proxy.rig import MODEL, Served, serving

pytestmark = pytest.mark.slow

TURNS, FORKED, EDITED = 10, 2, 2
TEXT = "".join(letter for letter in ALPHABET if letter not in "<>")
TOOL = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Adds.",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
    },
}
CALLS = {
    "hermes": 'so <tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>',
    "llama": '{"name": "add", "parameters": {"a": 1}}',
}
texts = st.text(TEXT, min_size=1, max_size=12)


@cache
def words(name: str) -> Template:
    return family(name)


def replies(name: str, num: int) -> st.SearchStrategy[list[list[int]]]:
    """Any ids at all, spelled as no tokenizer would, with and without an end, and calls of a tool among them."""
    template = words(name)
    call = template.tokenizer.encode(CALLS[template.tool_form or "hermes"], add_special_tokens=False)
    inner = st.sampled_from(sorted(set(template.tokenizer.get_vocab().values()) - template.eos_ids))
    scattered = st.lists(inner, min_size=1, max_size=8)
    ends = st.sampled_from([[template.eos_id], []])
    reply = st.tuples(st.one_of(scattered, scattered, st.just(list(call))), ends).map(lambda two: [*two[0], *two[1]])
    return st.lists(reply, min_size=num, max_size=num)


class Talk:
    """A client that remembers what it was shown."""

    def __init__(self, served: Served, client: AsyncOpenAI) -> None:
        self.served, self.client = served, client

    async def ask(self, messages: list[dict[str, Any]], *, stream: bool = False) -> dict[str, Any]:
        """The assistant's message, ready to be sent back, after a look at whether its ids decode to it."""
        num = len(self.served.generator.given)
        asked: Any = {"model": MODEL, "messages": messages, "tools": [TOOL]}
        found = await (self._streamed(asked) if stream else self._whole(asked))
        assert len(self.served.generator.given) == num + 1
        self._compare(found, self.served.generator.given[-1])
        return found

    async def again(self, messages: list[dict[str, Any]]) -> dict[str, Any]:
        """The same request once more."""
        return await self._whole({"model": MODEL, "messages": messages, "tools": [TOOL]})

    async def _whole(self, asked: Any) -> dict[str, Any]:
        answer = await self.client.chat.completions.create(**asked)
        return answer.choices[0].message.model_dump(include={"role", "content", "tool_calls"})

    async def _streamed(self, asked: Any) -> dict[str, Any]:
        content, calls = "", []
        async for chunk in await self.client.chat.completions.create(**asked, stream=True):
            delta = chunk.choices[0].delta
            content += delta.content or ""
            calls += [call.model_dump(exclude={"index"}) for call in delta.tool_calls or []]
        return {"role": "assistant", "content": content, "tool_calls": calls or None}

    def _compare(self, found: dict[str, Any], ids: list[int]) -> None:
        template = self.served.runner.template
        text, form = template.decode(ids), template.tool_form
        calls = parse_response(text, parse_tools([TOOL]), form).calls if form else ()
        seen = [(call["function"]["name"], call["function"]["arguments"]) for call in found["tool_calls"] or []]
        assert seen == [(call.name, '{"a":1}') for call in calls]
        assert text.startswith(found["content"] or "") and (calls or found["content"] == text)


def after(message: dict[str, Any], text: str) -> list[dict[str, Any]]:
    """What an agent says to a reply: the results of its calls, or something else."""
    calls = message["tool_calls"] or []
    if calls:
        return [{"role": "tool", "tool_call_id": call["id"], "content": text} for call in calls]
    return [{"role": "user", "content": text}]


def check_exact(served: Served, segments: tuple[Segment, ...]) -> None:
    """Every sampled id is trained once, after exactly what the engine was shown."""
    trained = sorted(tuple(turn.sampled.tolist()) for segment in segments for turn in segment.turns)
    assert trained == sorted(map(tuple, served.generator.given))
    shown = sorted(tuple(request.ids) for request in served.generator.asked)
    contexts: list[tuple[int, ...]] = []
    for segment in segments:
        end, ids = 0, segment.ids.tolist()
        for turn in segment.turns:
            end += len(turn.observation)
            contexts.append(tuple(ids[:end]))
            end += len(turn.sampled)
            assert len(turn.sampled) == len(turn.sampler_logprobs) == len(turn.versions)
        assert end == len(ids)
    assert sorted(contexts) == shown


async def converse(served: Served, data: st.DataObject) -> None:
    """Ten turns, a fork, an edited history, and some requests asked again."""
    session = served.open()
    talk = Talk(served, served.client(session))
    said = data.draw(st.lists(texts, min_size=TURNS + FORKED + EDITED + 2, max_size=TURNS + FORKED + EDITED + 2))
    again, streamed = data.draw(st.sets(st.integers(0, TURNS - 1))), data.draw(st.sets(st.integers(0, TURNS - 1)))
    fork = data.draw(st.integers(1, TURNS - 1))
    main: list[dict[str, Any]] = [{"role": "system", "content": "Use tools."}, {"role": "user", "content": said.pop()}]
    asked_at: list[int] = []
    for turn in range(TURNS):
        asked_at.append(len(main))
        message = await talk.ask(main, stream=turn in streamed)
        if turn in again:
            same = await talk.again(main)
            assert (same["content"] or "") == (message["content"] or "")
        if turn == fork:  # continues from an earlier response with another message, then returns
            branch = main[: asked_at[fork - 1] + 1]
            for number in range(FORKED):
                branch = [*branch, *after(branch[-1], f"other {number} {said.pop()}")]
                branch.append(await talk.ask(branch))
        main = [*main, message, *after(message, f"{turn} {said.pop()}")]
    edited = [*main]
    place = next(at for at, entry in enumerate(edited) if entry["role"] == "assistant")
    edited[place] = {"role": "assistant", "content": "as if it had said this"}
    for _ in range(EDITED):
        edited.append(await talk.ask(edited))
        edited += after(edited[-1], said.pop())
    assert len(served.generator.given) == TURNS + FORKED + EDITED
    segments = session.tree.segments()
    check_exact(served, segments)
    assert sum(len(segment.turns) for segment in segments) == TURNS + FORKED + EDITED
    if served.runner.segment_breaks.rewritten == 0:  # always so with a template that leaves replies alone
        assert sorted(len(segment.turns) for segment in segments) == [EDITED, FORKED, TURNS]
    served.proxy.close(session)


@pytest.mark.sweep(keep=1)
@pytest.mark.parametrize("name", sorted(FAMILIES))
@settings(max_examples=5, deadline=None, derandomize=True, phases=[Phase.generate])
@given(data=st.data())
def test_ten_turns_with_tools_a_fork_an_edited_history_and_retries_are_trained_exactly(
    name: str, data: st.DataObject
) -> None:
    async def work() -> None:
        with tempfile.TemporaryDirectory() as folder:
            prepared = data.draw(replies(name, TURNS + FORKED + EDITED))
            async with serving(Path(folder), words(name), prepared) as served:
                await converse(served, data)
                assert name != "chatml" or served.runner.segment_breaks.rewritten == 0
                assert served.refused() == []

    asyncio.run(work())
