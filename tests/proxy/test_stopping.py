"""Responses that end at a stop string or after one tool call: clients see less text, the record has all tokens."""

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from roll.data.templates import Template
from roll.proxy.session import Session
from roll.proxy.stopping import StopDetector, before_marker, before_partial
from roll.rollout.episode.conversation import checksum
from roll.rollout.episode.runner import SavedTurn
from roll.serving.dispatch import Sampled
from roll.types import Finish, Segment, Turn
from tests.data.chat_templates import family
from tests.proxy.rig import MODEL, serving
from tests.proxy.test_message_tree import CALL, TOOL, user

WORDS = ["so", " ", "Ob", "serv", "ation:", "\n", "é", "x"]


@pytest.fixture(scope="module")
def template() -> Template:
    return family("chatml")


def talk(folder: Path, template: Template, reply: str, **options: Any) -> tuple[Any, tuple[Segment, ...], list[int]]:
    """The first choice of a response, the segments after one more turn, and the ids that the generator gave first."""
    ids = [template.answer(text, where="a test").tolist() for text in (reply, "on")]

    async def inside() -> tuple[Any, tuple[Segment, ...], list[int]]:
        async with asyncio.timeout(300), serving(folder, template, ids) as served:
            session = served.open()
            create = served.client(session).chat.completions.create
            choice = (await create(model=MODEL, messages=[user("go")], **options)).choices[0]
            said = choice.message.model_dump(exclude_none=True)
            assert session.text.startswith(choice.message.content or "")
            await create(model=MODEL, messages=[user("go"), said, user("on")], **options)
            assert served.router.counts.discarded == len(ids[0]) - len(session.tree.segments()[0].turns[0].sampled)
            return choice, session.tree.segments(), served.generator.given[0]

    return asyncio.run(inside())


@pytest.mark.parametrize("size", [1, 2, 3, 8])
def test_a_marker_is_found_at_the_same_token_for_every_split(size: int) -> None:
    def decode(ids: Any) -> str:
        return "".join(WORDS[id] for id in ids)

    ids = np.array([7] * 50 + [0, 1, 2, 3, 4, 1, 6], np.int32)
    detector, num = StopDetector(decode, ["ation: no", "Observation:"]), 0
    for start in range(0, len(ids), size):
        part = ids[start : start + size]
        found = detector.find(part)
        num += len(part) if found is None else found
        if found is not None:
            break
    assert num == 55, "fifty times x, so, a space, and three tokens of the marker"
    assert StopDetector(decode, []).find(ids) is None
    assert StopDetector(decode, ["ationx"]).find(ids) is None


def test_text_before_a_marker_and_before_a_possible_one() -> None:
    assert before_marker("one. two; three", [";", ". "]) == "one"
    assert before_marker("one", []) == before_marker("one", ["."]) == "one"
    assert before_partial("a <tool", ["<tool_call>", "l."]) == "a "
    assert before_partial("a <tool> b.", [".."]) == "a <tool> b"


@pytest.mark.slow
@pytest.mark.parametrize(("stop", "content"), [(" two", "one"), (["nothing", "o t"], "one tw")])
def test_a_stop_string_ends_the_content_and_the_sampled_tokens_are_recorded(
    tmp_path: Path, template: Template, stop: Any, content: str
) -> None:
    choice, segments, given = talk(tmp_path, template, "one two three", stop=stop)
    assert (choice.finish_reason, choice.message.content) == ("stop", content)
    (segment,) = segments
    first = segment.turns[0]
    assert first.sampled.tolist() == given[: len(first.sampled)] and first.finish is Finish.STOP
    text = template.decode(first.sampled)
    stops = [stop] if isinstance(stop, str) else stop
    assert any(each in text for each in stops), "the stop string is part of the record"
    assert not any(each in template.decode(first.sampled[:-1]) for each in stops), "and nothing after its last token"


@pytest.mark.slow
def test_with_parallel_tool_calls_false_a_response_ends_with_its_first_call(tmp_path: Path, template: Template) -> None:
    both = CALL + "\n" + CALL.removeprefix("let me ")
    for parallel, num_calls in ((True, 2), (False, 1)):
        folder = tmp_path / str(parallel)
        folder.mkdir()
        choice, segments, given = talk(folder, template, both, tools=[TOOL], parallel_tool_calls=parallel)
        assert choice.finish_reason == "tool_calls" and len(choice.message.tool_calls) == num_calls
        assert len(segments) == 1, "the next request continues the segment"
        sampled = segments[0].turns[0].sampled.tolist()
        assert (sampled == given) == parallel
        assert template.decode(sampled) == (both if parallel else CALL)


@pytest.mark.slow
def test_a_stream_sends_nothing_of_a_stop_string(tmp_path: Path, template: Template) -> None:
    async def inside() -> None:
        ids = template.answer("one two three", where="a test").tolist()
        async with asyncio.timeout(300), serving(tmp_path, template, [ids]) as served:
            create = served.client(served.open()).chat.completions.create
            stream = await create(model=MODEL, messages=[user("go")], stop="e two t", stream=True)  # pyright: ignore[reportArgumentType]
            chunks = [chunk.choices[0] async for chunk in stream]
            assert "".join(chunk.delta.content or "" for chunk in chunks) == "on"
            assert chunks[-1].finish_reason == "stop"

    asyncio.run(inside())


@pytest.mark.slow
def test_a_saved_response_that_ended_at_a_stop_string_is_not_continued(tmp_path: Path, template: Template) -> None:
    async def inside() -> None:
        ids = template.answer("one two three", where="a test").tolist()
        async with asyncio.timeout(300), serving(tmp_path, template, [ids]) as served:

            async def ask(session: Session) -> tuple[str | None, Turn]:
                create = served.client(session).chat.completions.create
                response = await create(model=MODEL, messages=[user("go")], stop="two")  # pyright: ignore[reportArgumentType]
                return response.choices[0].message.content, session.tree.segments()[0].turns[0]

            content, turn = await ask(served.open())
            so_far = Sampled(ids=turn.sampled, logprobs=turn.sampler_logprobs, versions=turn.versions)
            saved = SavedTurn(checksum=checksum(turn.observation.tolist()), so_far=so_far)
            again, replayed = await ask(served.open(saved_turns=(saved,)))
            assert content == again == "one " and len(served.generator.asked) == 1
            assert replayed.sampled.tolist() == turn.sampled.tolist() and replayed.finish is Finish.STOP

    asyncio.run(inside())
