"""Requests of clients: every refusal is answered and recorded, and none ends the run."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import openai
import pytest

from roll.data.templates import Template, character_tokenizer
from roll.errors import EngineFailed
from roll.proxy.limits import RateLimiter
from roll.proxy.server import DISCONNECTED, SESSION_HEADER
from tests.data.chat_templates import family
from tests.proxy.rig import MODEL, Served, serving

pytestmark = pytest.mark.slow

HELLO: list[Any] = [{"role": "user", "content": "hello"}]


@pytest.fixture(scope="module")
def template() -> Template:
    return family("chatml")


def served(
    folder: Path,
    template: Template,
    work: Callable[[Served], Awaitable[None]],
    *replies: str | Exception | None,
    **options: Any,
) -> None:
    """Do some work with a proxy that has these replies."""
    ids = [template.answer(each, where="a test").tolist() if isinstance(each, str) else each for each in replies]

    async def inside() -> None:
        async with asyncio.timeout(20), serving(folder, template, ids, **options) as found:
            await work(found)

    asyncio.run(inside())


async def post(served: Served, body: bytes, **headers: str) -> httpx.Response:
    """Bytes that no client library would send."""
    async with httpx.AsyncClient(verify=False) as client:
        return await client.post(f"{served.proxy.url}/chat/completions", content=body, headers=headers)


def test_a_completion_has_the_fields_of_the_protocol(tmp_path: Path, template: Template) -> None:
    async def work(served: Served) -> None:
        client = served.client(served.open())
        assert [model.id async for model in await client.models.list()] == [MODEL, "alias"]
        assert (await client.models.retrieve("alias")).id == "alias"
        found = await client.chat.completions.create(
            model="alias", messages=HELLO, logprobs=True, max_tokens=50, temperature=1.0, user="me"
        )
        choice = found.choices[0]
        assert (choice.message.content, choice.finish_reason, found.model) == ("ab12", "stop", "alias")
        assert choice.logprobs is not None and choice.logprobs.content is not None
        assert [entry.token for entry in choice.logprobs.content] == ["ab", "12", ""], "two merges, and the end"
        assert [entry.logprob for entry in choice.logprobs.content] == [-0.25, -0.25, -0.5]
        assert found.usage is not None and found.usage.completion_tokens == 3
        assert found.usage.prompt_tokens == len(served.generator.asked[0].ids)
        assert served.generator.asked[0].max_new_tokens == 50
        assert served.proxy.drain_counts() == {"proxy/requests": 1.0, "proxy/refused": 0.0}

    served(tmp_path, template, work, "ab12")


def test_a_stream_has_several_events_and_ends_with_its_usage(tmp_path: Path, template: Template) -> None:
    async def work(served: Served) -> None:
        client = served.client(served.open())
        stream = await client.chat.completions.create(
            model=MODEL, messages=HELLO, stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
        texts = [chunk.choices[0].delta.content for chunk in chunks if chunk.choices and chunk.choices[0].delta.content]
        assert texts == ["one t", "wo.!"], "as the generator gave it"
        assert chunks[-2].choices[0].finish_reason == "stop"
        assert chunks[-1].usage is not None and chunks[-1].usage.completion_tokens == 10

    served(tmp_path, template, work, "one two.!")


def test_a_repeated_request_is_sampled_once_concurrently_and_afterwards(tmp_path: Path, template: Template) -> None:
    async def work(served: Served) -> None:
        client = served.client(session := served.open())
        ask = client.chat.completions.create
        found = await asyncio.gather(*(ask(model=MODEL, messages=HELLO) for _ in range(3)))
        found.append(await ask(model=MODEL, messages=HELLO))
        assert {answer.choices[0].message.content for answer in found} == {"first"}
        assert len({answer.id for answer in found}) == 1 and len(served.generator.asked) == 1
        other = await ask(model=MODEL, messages=HELLO, seed=2)
        assert other.choices[0].message.content == "second", "another seed asks for another reply"
        assert [len(segment.turns) for segment in session.tree.segments()] == [1, 1]

    served(tmp_path, template, work, "first", "second")


@pytest.mark.parametrize("stream", [False, True])
def test_sampling_is_aborted_when_its_client_disconnects(tmp_path: Path, template: Template, stream: bool) -> None:
    async def work(served: Served) -> None:
        session = served.open()
        with pytest.raises(openai.APITimeoutError):
            await served.client(session, timeout=0.3).chat.completions.create(
                model=MODEL, messages=HELLO, stream=stream
            )
        while not served.generator.aborted:
            await asyncio.sleep(0.01)
        (event,) = served.refused()
        assert (event.status, event.session) == (DISCONNECTED, "train/d/t1/0/0") and "disconnected" in event.reason
        found = await served.client(session).chat.completions.create(model=MODEL, messages=HELLO)
        assert found.choices[0].message.content == "back", "it may come back, and is sampled for anew"
        assert len(session.tree.segments()) == 1

    served(tmp_path, template, work, None, "back")


def test_a_response_with_two_waiting_clients_survives_the_first_disconnect(tmp_path: Path, template: Template) -> None:
    async def work(served: Served) -> None:
        session = served.open()
        leaving = served.client(session, timeout=0.2).chat.completions.create(model=MODEL, messages=HELLO)
        staying = asyncio.ensure_future(served.client(session).chat.completions.create(model=MODEL, messages=HELLO))
        with pytest.raises(openai.APITimeoutError):
            await leaving
        await asyncio.sleep(0.1)
        assert not served.generator.aborted and not staying.done()
        served.proxy.close(session)
        with pytest.raises(openai.NotFoundError, match="its attempt is over"):
            await staying

    served(tmp_path, template, work, None)


def test_a_wrong_token_an_unknown_session_and_another_sessions_key_are_refused(
    tmp_path: Path, template: Template
) -> None:
    token = "a token of sixteen or more"

    async def work(served: Served) -> None:
        mine, other = served.open(), served.open(sibling=1)
        signature = served.proxy.key_of(other).partition(".")[2]
        for key in ("guess", f"{mine.id}.{signature}", f"{mine.id}.", token[:-1]):
            with pytest.raises(openai.AuthenticationError, match="not that of this run"):
                await served.client(key=key).chat.completions.create(model=MODEL, messages=HELLO)
        headers = {SESSION_HEADER: "s99"}
        with pytest.raises(openai.NotFoundError, match="no session 's99'"):
            await served.client(key=token, default_headers=headers).chat.completions.create(model=MODEL, messages=HELLO)
        with pytest.raises(openai.NotFoundError, match="names no session"):
            await served.client(key=token).chat.completions.create(model=MODEL, messages=HELLO)
        headers = {SESSION_HEADER: mine.id}
        found = await served.client(key=token, default_headers=headers).chat.completions.create(
            model=MODEL, messages=HELLO
        )
        assert found.choices[0].message.content == "fine", "the run's token may name any session"
        served.proxy.close(mine)
        with pytest.raises(openai.NotFoundError, match="has ended"):
            await served.client(mine).chat.completions.create(model=MODEL, messages=HELLO)
        statuses = {(event.status, event.count) for event in served.refused()}
        assert statuses == {(401, 1), (401, 3), (404, 1), (404, 2)}
        told = " ".join(event.reason for event in served.refused())
        assert token not in told and signature not in told

    served(tmp_path, template, work, "fine", token=token)


@pytest.mark.parametrize("body", [b"{", b"[1]", b"\xff\xfe", b'{"messages": ' + b"[" * 100_000, b""])
def test_a_body_that_is_not_json_is_refused(tmp_path: Path, template: Template, body: bytes) -> None:
    async def work(served: Served) -> None:
        found = await post(served, body, Authorization=f"Bearer {served.proxy.key_of(served.open())}")
        assert found.status_code == 400 and "JSON object" in found.json()["error"]["message"]
        assert [event.status for event in served.refused()] == [400]

    served(tmp_path, template, work)


@pytest.mark.parametrize(
    ("changes", "status", "named"),
    [
        ({"model": "gpt-9"}, 404, "no model 'gpt-9'; use tiny, alias"),
        ({"temperature": 0.5}, 400, "temperature: this run samples at 1"),
        ({"n": 0}, 400, "n: not between 1 and 128"),
        ({"top_k": 5, "beams": 2}, 400, "unsupported parameters: 'beams', 'top_k'"),
        ({"response_format": {"type": "json_object"}}, 400, "response_format"),
        ({"tool_choice": "required"}, 400, "tool_choice"),
        ({"stop": [5]}, 400, "stop: not a string or a list of at most 16 strings"),
        ({"parallel_tool_calls": 0}, 400, "parallel_tool_calls"),
        ({"messages": []}, 400, "send at least one"),
        ({"messages": "hello"}, 400, "no list of messages"),
        ({"messages": [{"role": "king", "content": ""}]}, 400, "no known role"),
        ({"messages": [*HELLO, {"role": "assistant", "content": "so"}]}, 400, "the last one is the assistant's"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, 400, "only text is supported"),
        ({"messages": [{"role": "user", "content": "\u00e4"}]}, 400, "the tokenizer does not know"),
        ({"tools": [{"type": "function"}]}, 400, "a function without a name"),
        ({"max_tokens": 0}, 400, "at least 1"),
        ({"seed": "x"}, 400, "not a whole number"),
        ({"stream": 1}, 400, "stream"),
    ],
)
def test_unsupported_requests_are_refused_by_name(
    tmp_path: Path, template: Template, changes: dict[str, Any], status: int, named: str
) -> None:
    async def work(served: Served) -> None:
        key = served.proxy.key_of(served.open())
        body = json.dumps({"model": MODEL, "messages": HELLO, **changes}).encode()
        found = await post(served, body, Authorization=f"Bearer {key}")
        error = found.json()["error"]
        assert found.status_code == status and named in error["message"], error
        assert set(error) == {"message", "type", "param", "code"}
        assert [event.status for event in served.refused()] == [status]
        assert served.generator.asked == []

    served(tmp_path, template, work)


def test_ignored_parameters_are_counted_and_reported_once(tmp_path: Path, template: Template) -> None:
    async def work(served: Served) -> None:
        notices: list[str] = []
        served.proxy.notice = notices.append
        create = served.client(served.open()).chat.completions.create
        for seed in (1, 2):
            await create(model=MODEL, messages=HELLO, logit_bias={"5": 100}, seed=seed, extra_body={"top_k": 3})
        assert sorted(notices) == [
            f"proxy: requests have the parameter {name!r}, which the run ignores (proxy.ignore)"
            for name in ("logit_bias", "top_k")
        ]
        assert served.proxy.drain_counts() == {"proxy/requests": 2.0, "proxy/refused": 0.0, "proxy/ignored": 4.0}

    served(tmp_path, template, work, "a", "b", settings={"ignored": frozenset({"logit_bias", "top_k", "store"})})


def test_a_hundred_megabytes_are_refused_before_they_are_read(tmp_path: Path, template: Template) -> None:
    async def work(served: Served) -> None:
        address, key = urlsplit(served.proxy.url), served.proxy.key_of(served.open())
        reader, writer = await asyncio.open_connection(address.hostname, address.port)
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\n"
        writer.write(f"{head}Content-Length: {100 * 2**20}\r\n\r\n".encode() + b"x" * 1000)
        assert b" 413 " in await reader.readline(), "told after a thousand bytes"
        writer.close()
        with pytest.raises(openai.APIStatusError, match="more than 100000 bytes") as refused:
            await served.client(served.open()).chat.completions.create(
                model=MODEL, messages=[{"role": "user", "content": "x" * 2_000_000}]
            )
        assert refused.value.status_code == 413

        async def endless() -> Any:
            for _ in range(20):  # few enough for a client that reads the response only after its last byte
                yield b"x" * 2**16

        async with httpx.AsyncClient(
            verify=False
        ) as client:  # without a length there is nothing to tell it by but the bytes
            url, headers = f"{served.proxy.url}/chat/completions", {"Authorization": f"Bearer {key}"}
            found = await client.post(url, content=endless(), headers=headers)
        assert found.status_code == 413
        assert {event.status for event in served.refused()} == {413}
        found = await served.client(served.open()).chat.completions.create(model=MODEL, messages=HELLO)
        assert found.choices[0].message.content == "still here"

    served(tmp_path, template, work, "still here", settings={"max_bytes": 100_000})


def test_requests_above_the_rate_limit_are_told_to_wait(tmp_path: Path, template: Template) -> None:
    async def work(served: Served) -> None:
        client = served.client(served.open())
        for number in range(2):
            await client.chat.completions.create(model=MODEL, messages=HELLO, seed=number)
        with pytest.raises(openai.RateLimitError, match="1 requests per second") as refused:
            await client.chat.completions.create(model=MODEL, messages=HELLO)
        assert refused.value.response.headers["Retry-After"] == "1"
        assert (await served.client(served.open()).chat.completions.create(model=MODEL, messages=HELLO)).choices

    served(tmp_path, template, work, "a", "b", "c", settings={"requests_per_s": 1.0})


def test_a_rate_limiter_admits_its_rate() -> None:
    rate = RateLimiter(2.0, 100.0)
    assert [rate.wait_s(100.0) for _ in range(5)] == [0.0, 0.0, 0.0, 0.0, 0.5]
    assert rate.wait_s(100.25) == 0.25
    assert rate.wait_s(100.5) == 0.0


def test_too_many_concurrent_requests_are_told_to_wait(tmp_path: Path, template: Template) -> None:
    async def work(served: Served) -> None:
        client = served.client(served.open())
        first = asyncio.ensure_future(client.chat.completions.create(model=MODEL, messages=HELLO))
        while not served.generator.asked:
            await asyncio.sleep(0.01)
        with pytest.raises(openai.RateLimitError, match="1 requests are in flight"):
            await client.chat.completions.create(model=MODEL, messages=HELLO, seed=2)
        first.cancel()

    served(tmp_path, template, work, None, settings={"max_inflight": 1})


def test_a_flood_of_refusals_does_not_fill_the_journal(tmp_path: Path, template: Template) -> None:
    async def work(served: Served) -> None:
        async with httpx.AsyncClient(verify=False) as client:
            for number in range(60):
                await client.get(f"{served.proxy.url}/models", headers={"Authorization": f"Bearer {number}"})
        events = served.refused()
        assert [event.count for event in events] == [1, 59]
        assert served.proxy.drain_counts()["proxy/refused"] == 60.0

    served(tmp_path, template, work)


def test_a_full_context_and_the_turn_limit_are_errors_with_their_reason(tmp_path: Path, template: Template) -> None:
    async def work(served: Served) -> None:
        session = served.open()
        client = served.client(session)
        with pytest.raises(openai.BadRequestError, match="no room for a response") as refused:
            await client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "x" * 300}])
        assert refused.value.code == "context_length_exceeded" and session.cut == "the context is full"
        await client.chat.completions.create(model=MODEL, messages=HELLO)
        with pytest.raises(openai.BadRequestError, match="1 turns are over"):
            await client.chat.completions.create(model=MODEL, messages=HELLO, seed=7)
        assert session.cut == "1 turns are over"

    served(tmp_path, template, work, "a", max_seq_len=200, max_turns=1)


def test_an_engine_failure_is_an_error_and_the_request_can_be_repeated(tmp_path: Path, template: Template) -> None:
    async def work(served: Served) -> None:
        session = served.open()
        with pytest.raises(openai.InternalServerError, match="does not fit") as refused:
            await served.client(session).chat.completions.create(model=MODEL, messages=HELLO)
        assert refused.value.status_code == 503 and "does not fit" in session.engine_error
        found = await served.client(session).chat.completions.create(model=MODEL, messages=HELLO)
        assert found.choices[0].message.content == "now"

    served(tmp_path, template, work, EngineFailed("it does not fit"), "now")


def test_a_response_survives_a_weight_update_and_reports_its_version(tmp_path: Path, template: Template) -> None:
    async def work(served: Served) -> None:
        session = served.open()
        ask = served.client(session).chat.completions.create
        before = await ask(model=MODEL, messages=HELLO)
        waiting = asyncio.ensure_future(ask(model=MODEL, messages=[{"role": "user", "content": "and now?"}]))
        while len(served.generator.asked) < 2:
            await asyncio.sleep(0.01)
        await served.router.hold()
        await served.router.release(1)
        after = await waiting
        assert after.choices[0].message.content == "new", "the client has not noticed"
        assert (before.system_fingerprint, after.system_fingerprint) == ("version-0", "version-1")
        turns = [turn for segment in session.tree.segments() for turn in segment.turns]
        assert [set(turn.versions.tolist()) for turn in turns] == [{0}, {1}]
        assert served.refused() == []

    served(tmp_path, template, work, "old", None, "new")


def test_a_model_without_a_chat_template_is_served_too(tmp_path: Path) -> None:
    async def work(served: Served) -> None:
        session = served.open()
        client, talk = served.client(session), [{"role": "user", "content": "1+1="}]
        for _ in range(2):
            found = await client.chat.completions.create(model=MODEL, messages=talk)  # pyright: ignore
            talk += [found.choices[0].message.model_dump(exclude_none=True), {"role": "user", "content": "+2="}]
        (segment,) = session.tree.segments()
        decode = served.runner.template.tokenizer.decode
        assert decode(segment.ids.tolist()).replace(" ", "") == "1+1=2<eos>+2=4<eos>"
        assert segment.trained.tolist() == [False] * 4 + [True] * 2 + [False] * 3 + [True] * 2

    served(tmp_path, Template(character_tokenizer("0123456789+=")), work, "2", "4")
