"""Connections that send nothing, or a body without an end, cannot exhaust the descriptors of the run."""

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from roll.data.templates import Template
from tests.data.chat_templates import family
from tests.proxy.rig import MODEL, Served, serving

pytestmark = pytest.mark.slow

HELLO: list[Any] = [{"role": "user", "content": "hello"}]
Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@pytest.fixture(scope="module")
def template() -> Template:
    return family("chatml")


def serve(folder: Path, template: Template, work: Callable[[Served], Awaitable[None]], **settings: Any) -> None:
    """Do some work with a proxy that has one reply."""
    ids = template.answer("hi", where="a test").tolist()

    async def inside() -> None:
        async with asyncio.timeout(300), serving(folder, template, [ids], settings=settings) as served:
            await work(served)

    asyncio.run(inside())


async def connect(served: Served) -> Connection:
    address = urlsplit(served.proxy.url)
    return await asyncio.open_connection(address.hostname, address.port)


def header(served: Served, length: int) -> bytes:
    key = served.proxy.key_of(served.open())
    lines = ("POST /v1/chat/completions HTTP/1.1", "Host: x", f"Authorization: Bearer {key}")
    return "\r\n".join((*lines, f"Content-Length: {length}", "", "")).encode()


async def ask(served: Served) -> str | None:
    completion = await served.client(served.open()).chat.completions.create(model=MODEL, messages=HELLO)
    return completion.choices[0].message.content


def test_a_request_succeeds_beside_two_hundred_silent_connections(tmp_path: Path, template: Template) -> None:
    async def work(served: Served) -> None:
        before = len(os.listdir("/proc/self/fd"))
        silent = [await connect(served) for _ in range(200)]
        assert await ask(served) == "hi"
        closed = [asyncio.ensure_future(reader.read()) for reader, _ in silent[:190]]
        await asyncio.wait(closed)  # by the server; the clients keep their 200 descriptors
        assert len(os.listdir("/proc/self/fd")) <= before + 200 + 10 + 2, "the limit, the client and an accepted one"
        for _, writer in silent:
            writer.close()

    serve(tmp_path, template, work, max_connections=10)


def test_a_connection_with_a_request_in_progress_is_not_closed_for_others(tmp_path: Path, template: Template) -> None:
    async def work(served: Served) -> None:
        reader, writer = await connect(served)
        body = f'{{"model": "{MODEL}", "messages": [{{"role": "user", "content": "hello"}}]}}'.encode()
        writer.write(header(served, len(body)) + body[:-1])
        await writer.drain()
        others = [await connect(served) for _ in range(20)]
        await others[0][0].read()  # closed by the server, so the server has accepted later ones
        writer.write(body[-1:])
        assert b" 200 " in await reader.readline()
        for _, each in (*others, (reader, writer)):
            each.close()

    serve(tmp_path, template, work, max_connections=4)


def test_a_silent_connection_and_an_incomplete_header_are_closed(tmp_path: Path, template: Template) -> None:
    async def work(served: Served) -> None:
        silent, incomplete = await connect(served), await connect(served)
        incomplete[1].write(header(served, 10)[:-4])
        assert [await reader.read() for reader, _ in (silent, incomplete)] == [b"", b""]
        for _, writer in (silent, incomplete):
            writer.close()
        assert await ask(served) == "hi"

    serve(tmp_path, template, work, idle_s=0.5)


def test_a_body_that_stops_midway_is_refused_and_its_connection_closed(tmp_path: Path, template: Template) -> None:
    async def work(served: Served) -> None:
        reader, writer = await connect(served)
        writer.write(header(served, 1000) + b'{"model": ')
        response = await reader.read()  # until the server closes
        writer.close()
        assert response.startswith(b"HTTP/1.1 408") and b"incomplete after 1 s (proxy.body_timeout_s)" in response
        assert [event.status for event in served.refused()] == [408]
        assert await ask(served) == "hi"

    serve(tmp_path, template, work, body_s=1.0)


def test_a_kept_connection_is_reused_at_the_limit(tmp_path: Path, template: Template) -> None:
    async def work(served: Served) -> None:
        headers = {"Authorization": f"Bearer {served.proxy.key_of(served.open())}"}
        async with httpx.AsyncClient(verify=False, headers=headers) as first, httpx.AsyncClient(verify=False) as second:
            for _ in range(3):
                assert (await first.get(f"{served.proxy.url}/models")).status_code == 200
            reply = await second.get(f"{served.proxy.url}/models", headers=headers)
            assert reply.status_code == 200, "the idle connection of the first client was closed for it"

    serve(tmp_path, template, work, max_connections=1)
