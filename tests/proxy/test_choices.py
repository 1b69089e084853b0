"""Several choices of one request: each is sampled and recorded as its own branch."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import openai
import pytest

from roll.data.templates import Template
from roll.engines.base import Output
from roll.proxy.session import Session
from tests.data.chat_templates import family
from tests.proxy.rig import MODEL, Served, serving
from tests.proxy.test_message_tree import spoken, user

pytestmark = pytest.mark.slow

GO: list[Any] = [user("go")]


@pytest.fixture(scope="module")
def template() -> Template:
    return family("chatml")


def serve(
    folder: Path,
    template: Template,
    work: Callable[[Served, Session, Any], Awaitable[None]],
    *replies: str | Exception | None,
    **limits: Any,
) -> None:
    ids = [template.answer(each, where="a test").tolist() if isinstance(each, str) else each for each in replies]

    async def inside() -> None:
        async with asyncio.timeout(300), serving(folder, template, ids, **limits) as served:
            session = served.open()
            await work(served, session, served.client(session).chat.completions.create)

    asyncio.run(inside())


def contents(response: Any) -> list[str]:
    return [choice.message.content for choice in response.choices]


def test_each_choice_is_a_branch_and_the_next_request_selects_one(tmp_path: Path, template: Template) -> None:
    async def work(served: Served, session: Session, ask: Any) -> None:
        response = await ask(model=MODEL, messages=GO, n=3)
        assert contents(response) == ["a", "bb", "ccc"] and [each.index for each in response.choices] == [0, 1, 2]
        assert session.text == "ccc", "of several choices, the last one counts as the last response"
        num_prompt = len(served.generator.asked[0].ids)
        assert response.usage.model_dump(include={"prompt_tokens", "completion_tokens"}) == {
            "prompt_tokens": num_prompt,
            "completion_tokens": sum(map(len, served.generator.given)),
        }
        said = response.choices[1].message.model_dump(exclude_none=True)
        await ask(model=MODEL, messages=[*GO, said, user("on")])
        first, third, second = session.tree.segments()
        assert [spoken(template, each) for each in (first, third, second)] == [["a"], ["ccc"], ["bb", "d"]]
        prompts = {tuple(each.turns[0].observation.tolist()) for each in (first, second, third)}
        assert len(prompts) == 1, "the choices share their prompt"

    serve(tmp_path, template, work, "a", "bb", "ccc", "d")


def test_choices_have_different_noise_and_the_first_has_that_of_a_single_one(
    tmp_path: Path, template: Template
) -> None:
    async def work(served: Served, session: Session, ask: Any) -> None:
        single = await ask(model=MODEL, messages=GO)
        response = await ask(model=MODEL, messages=GO, n=3)
        assert contents(response) == [*contents(single), "b", "c"], "an earlier response is not sampled again"
        assert contents(await ask(model=MODEL, messages=GO, n=2)) == ["a", "b"]
        await ask(model=MODEL, messages=GO, n=2, seed=1)
        keys = [request.key for request in served.generator.asked]
        assert len(keys) == len(set(keys)) == 5

    serve(tmp_path, template, work, "a", "b", "c", "d", "e")


def test_choices_are_recorded_in_their_order_whichever_ends_first(tmp_path: Path, template: Template) -> None:
    async def work(served: Served, session: Session, ask: Any) -> None:
        waiting = asyncio.ensure_future(ask(model=MODEL, messages=GO, n=2))
        while len(served.generator.asked) < 2:
            await asyncio.sleep(0.01)
        await served.router.hold()  # the first choice returns, to be sampled again
        assert session.tree.num_turns == 0, "the second one is complete, and waits for the first"
        await served.router.release(1)
        assert contents(await waiting) == ["late", "b"] and session.text == "b"
        assert [spoken(template, each) for each in session.tree.segments()] == [["late"], ["b"]]

    serve(tmp_path, template, work, None, "b", "late")


def test_a_stream_has_all_choices(tmp_path: Path, template: Template) -> None:
    async def work(served: Served, session: Session, ask: Any) -> None:
        stream = await ask(model=MODEL, messages=GO, n=2, stream=True, stream_options={"include_usage": True})
        texts, finished = ["", ""], list[int]()
        async for chunk in stream:
            for choice in chunk.choices:
                texts[choice.index] += choice.delta.content or ""
                finished += [choice.index] if choice.finish_reason == "stop" else []
        assert texts == ["one two", "three four"] and finished == [0, 1]
        assert chunk.usage.completion_tokens == sum(map(len, served.generator.given))

    serve(tmp_path, template, work, "one two", "three four")


def test_more_choices_than_turns_are_refused_and_nothing_is_sampled(tmp_path: Path, template: Template) -> None:
    async def work(served: Served, session: Session, ask: Any) -> None:
        with pytest.raises(openai.BadRequestError) as caught:
            await ask(model=MODEL, messages=GO, n=3)
        assert caught.value.body == {
            "message": "n: 3 choices need 3 turns and 2 of 2 are left (rollout.max_turns); send n <= 2",
            "type": "invalid_request_error",
            "param": "n",
            "code": "turns_over",
        }
        assert not served.generator.asked and session.tree.num_turns == 0 and session.cut
        await ask(model=MODEL, messages=GO)
        with pytest.raises(openai.BadRequestError, match=r"need 2 turns and 1 of 2 are left .*; send n <= 2"):
            await ask(model=MODEL, messages=GO, n=3)
        assert contents(await ask(model=MODEL, messages=GO, n=2)) == ["a", "b"], "the first one is not sampled again"
        with pytest.raises(openai.BadRequestError, match="2 turns are over"):
            await ask(model=MODEL, messages=GO, n=3)

    serve(tmp_path, template, work, "a", "b", max_turns=2)


def test_a_client_that_repeats_a_streamed_request_gets_the_text_from_its_start(
    tmp_path: Path, template: Template
) -> None:
    async def work(served: Served, session: Session, ask: Any) -> None:
        ids = template.answer("one two three", where="a test").tolist()
        seen = ["", ""]

        async def read(client: int) -> None:
            async for chunk in await ask(model=MODEL, messages=GO, stream=True):
                seen[client] += chunk.choices[0].delta.content or ""

        first = asyncio.ensure_future(read(0))
        while not served.generator.asked:
            await asyncio.sleep(0.01)
        partial = Output.of(served.generator.asked[0].id, ids[:4], [-0.5] * 4, version=0)
        served.generator._outputs.append(partial)  # pyright: ignore[reportPrivateUsage]
        while not seen[0]:
            await asyncio.sleep(0.01)
        again = asyncio.ensure_future(read(1))
        while not seen[1]:
            await asyncio.sleep(0.01)
        assert seen[0] == seen[1] == template.decode(ids[:4])
        served.generator.replies[1] = ids[4:]
        await served.router.hold()
        await served.router.release(1)
        await asyncio.gather(first, again)
        assert seen == ["one two three"] * 2

    serve(tmp_path, template, work, None, None)
