"""The segment of a response, determined by the messages before it."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from roll.data.templates import Template, character_tokenizer
from roll.engines.base import Output
from roll.rollout.episode.conversation import checksum
from roll.types import Segment
from tests.data.chat_templates import family
from tests.proxy.rig import MODEL, Served, serving

pytestmark = pytest.mark.slow

TOOL: Any = {
    "type": "function",
    "function": {"name": "add", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}},
}
CALL = 'let me <tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'


@pytest.fixture(scope="module")
def template() -> Template:
    return family("chatml")


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def talked(
    folder: Path,
    template: Template,
    work: Callable[[Served, Callable[..., Awaitable[Any]]], Awaitable[None]],
    *replies: str,
    **limits: Any,
) -> tuple[Segment, ...]:
    """The segments of an attempt in which that was done; `ask` gives the assistant's message."""
    ids = [template.answer(text, where="a test").tolist() for text in replies]

    async def inside() -> tuple[Segment, ...]:
        async with asyncio.timeout(20), serving(folder, template, ids, **limits) as served:
            session = served.open()
            create = served.client(session).chat.completions.create

            async def ask(*messages: Any, **options: Any) -> Any:
                given: Any = {"model": MODEL, "messages": list(messages), **options}
                return (await create(**given)).choices[0].message

            await work(served, ask)
            return session.tree.segments()

    return asyncio.run(inside())


def spoken(template: Template, segment: Segment) -> list[str]:
    return [template.decode(turn.sampled) for turn in segment.turns]


def test_a_tool_call_is_parsed_and_its_result_continues_the_same_segment(tmp_path: Path, template: Template) -> None:
    async def work(served: Served, ask: Any) -> None:
        first = await ask(user("1+1"), tools=[TOOL])
        (call,) = first.tool_calls
        assert (first.content, call.function.name, call.function.arguments) == ("let me ", "add", '{"a":1}')
        result = {"role": "tool", "tool_call_id": call.id, "content": "2"}
        last = await ask(user("1+1"), first.model_dump(exclude_none=True), result, tools=[TOOL])
        assert (last.content, last.tool_calls) == ("two", None)

    (segment,) = talked(tmp_path, template, work, CALL, "two")
    assert spoken(template, segment) == [CALL, "two"]
    heard = template.tokenizer.decode(segment.turns[1].observation.tolist())
    assert "<tool_response>\n2\n</tool_response>" in heard and "1+1" not in heard, "only what is new"


@pytest.mark.parametrize("said", ["<tool_call>{", '<tool_call>{"name": "sub", "arguments": {}}</tool_call>', "add(1)"])
def test_a_malformed_call_is_text(tmp_path: Path, template: Template, said: str) -> None:
    async def work(served: Served, ask: Any) -> None:
        found = await ask(user("1+1"), tools=[TOOL])
        assert (found.content, found.tool_calls) == (said, None)

    talked(tmp_path, template, work, said)


def test_with_tool_choice_none_a_call_is_text(tmp_path: Path, template: Template) -> None:
    async def work(served: Served, ask: Any) -> None:
        assert (await ask(user("1+1"), tools=[TOOL], tool_choice="none")).content == CALL

    talked(tmp_path, template, work, CALL)


def test_a_fork_has_the_earlier_ids_as_context(tmp_path: Path, template: Template) -> None:
    async def work(served: Served, ask: Any) -> None:
        first = (await ask(user("go"))).model_dump(exclude_none=True)
        await ask(user("go"), first, user("left"))
        await ask(user("go"), first, user("right"))

    main, fork = talked(tmp_path, template, work, "abc", "l", "r")
    assert spoken(template, main) == ["abc", "l"] and spoken(template, fork) == ["r"]
    shared = len(main.turns[0].observation) + len(main.turns[0].sampled)
    assert fork.ids[:shared].tolist() == main.ids[:shared].tolist()
    assert not fork.trained[:shared].any() and main.trained[:shared].any()


def test_concurrent_continuations_are_separate_branches(tmp_path: Path, template: Template) -> None:
    async def work(served: Served, ask: Any) -> None:
        first = (await ask(user("go"))).model_dump(exclude_none=True)
        found = await asyncio.gather(*(ask(user("go"), first, user(where)) for where in "xyz"))
        assert len({message.content for message in found}) == 3
        goes_on = found[0].model_dump(exclude_none=True)
        await ask(user("go"), first, user("x"), goes_on, user("on"))

    segments = talked(tmp_path, template, work, "abc", "1", "2", "3", "4")
    assert sorted(len(segment.turns) for segment in segments) == [1, 1, 3]
    assert sorted(text for segment in segments for text in spoken(template, segment)) == ["1", "2", "3", "4", "abc"]
    assert spoken(template, segments[-1])[-1] == "4", "the branch that was added to last is the last"


def test_an_edited_history_keeps_the_ids_before_the_edit(tmp_path: Path, template: Template) -> None:
    async def work(served: Served, ask: Any) -> None:
        said = [user("go")]
        for text in ("on", "more"):
            said += [(await ask(*said)).model_dump(exclude_none=True), user(text)]
        edited = {"role": "assistant", "content": "not what it said"}
        await ask(*said[:3], edited, said[-1])

    main, other = talked(tmp_path, template, work, "abc", "def", "new")
    assert spoken(template, main) == ["abc", "def"] and spoken(template, other) == ["new"]
    shared = len(main.turns[0].observation) + len(main.turns[0].sampled)
    assert other.ids[:shared].tolist() == main.ids[:shared].tolist()
    assert "not what it said" in template.tokenizer.decode(other.turns[0].observation.tolist())


def test_other_tools_are_another_conversation(tmp_path: Path, template: Template) -> None:
    async def work(served: Served, ask: Any) -> None:
        first = (await ask(user("go"), tools=[TOOL])).model_dump(exclude_none=True)
        await ask(user("go"), first, user("on"))

    assert [len(segment.turns) for segment in talked(tmp_path, template, work, "a", "b")] == [1, 1]


def test_recorded_progress_has_the_checksum_of_its_context(tmp_path: Path, template: Template) -> None:
    contexts: dict[int, int] = {}

    class ProgressRecorder:
        def record_output(self, turn: int, context: int, output: Output) -> None:
            contexts[turn] = context

        def record_divergence(self, turn: int) -> None: ...

    async def inside() -> None:
        ids = [template.answer(text, where="a test").tolist() for text in "abc"]
        async with asyncio.timeout(20), serving(tmp_path, template, ids) as served:
            create = served.client(served.open(recorder=ProgressRecorder())).chat.completions.create
            said = [user("go")]
            for text in ("on", "left"):
                found = await create(model=MODEL, messages=said)  # pyright: ignore[reportArgumentType]
                said += [found.choices[0].message.model_dump(exclude_none=True), user(text)]
            await create(model=MODEL, messages=[*said[:2], user("fork")])  # pyright: ignore[reportArgumentType]
            shown = [checksum(request.ids) for request in served.generator.asked]
            assert [contexts[turn] for turn in range(3)] == shown

    asyncio.run(inside())


def test_with_per_turn_every_turn_is_a_segment(tmp_path: Path, template: Template) -> None:
    async def work(served: Served, ask: Any) -> None:
        first = (await ask(user("go"))).model_dump(exclude_none=True)
        await ask(user("go"), first, user("on"))

    one, two = talked(tmp_path, template, work, "a", "b", per_turn=True)
    assert two.ids[: len(one.ids)].tolist() == one.ids.tolist() and two.trained.sum() == one.trained.sum() == 2


def test_a_template_that_shows_only_the_last_message_starts_a_segment_every_time(tmp_path: Path) -> None:
    template = Template(character_tokenizer("abcdefgho n"), "last")

    async def work(served: Served, ask: Any) -> None:
        first = (await ask(user("go"))).model_dump(exclude_none=True)
        await ask(user("go"), first, user("on"))
        assert served.runner.segment_breaks.rewritten == 0

    one, two = talked(tmp_path, template, work, "a", "b")
    assert [template.decode(segment.ids) for segment in (one, two)] == ["goa", "onb"]
