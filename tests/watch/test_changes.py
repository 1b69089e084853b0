"""The response that goes on: a line per change, over HTTP."""

from __future__ import annotations

import asyncio
import http.client
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp
import pytest
from aiohttp import web

from roll.watch.changes import ChangeStreams, Look
from tests.watch.runs import DEADLINE_S, TOKEN, Client, RunWriter, attempt, serving


class Source:
    """Looks at a run that a test writes."""

    def __init__(self, *cursors: str, failed: bool = False) -> None:
        self.cursors, self.failed = list(cursors), failed
        self.asked: list[str] = []
        self.looked = asyncio.Event()

    async def look(self, cursor: str) -> Look:
        self.asked.append(cursor)
        self.looked.set()
        if self.failed:
            return Look(status=503, body=b'{"error": "locked"}')
        if not self.cursors:
            return Look(status=200, body=b"{}", cursor=cursor, unchanged=True)
        newest = self.cursors.pop(0)
        return Look(status=200, body=json.dumps(newest).encode(), cursor=newest)


@asynccontextmanager
async def streaming(source: Source, streams: ChangeStreams) -> AsyncIterator[aiohttp.ClientResponse]:
    async def answer(request: web.Request) -> web.StreamResponse:
        return await streams.send(request, source.look)

    app = web.Application()
    app.router.add_get("/", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0][:2]
    async with aiohttp.ClientSession() as session, session.get(f"http://{host}:{port}/") as stream:
        yield stream
        streams.close()
    await runner.cleanup()


def test_a_line_is_sent_per_change_and_each_look_begins_where_the_last_ended() -> None:
    async def run() -> None:
        source = Source("a", "b", "c")
        async with streaming(source, ChangeStreams(every_s=0.01)) as stream:
            lines = [await stream.content.readline() for _ in range(3)]
            assert lines == [b'"a"\n', b'"b"\n', b'"c"\n'] and source.asked[:3] == ["", "a", "b"]

    asyncio.run(asyncio.wait_for(run(), DEADLINE_S))


def test_a_stream_without_changes_sends_signs_of_life() -> None:
    async def run() -> None:
        async with streaming(Source("a"), ChangeStreams(every_s=0.01, alive_s=0.03)) as stream:
            assert [await stream.content.readline() for _ in range(3)] == [b'"a"\n', b"\n", b"\n"]

    asyncio.run(asyncio.wait_for(run(), DEADLINE_S))


def test_a_look_that_fails_is_the_answer_or_ends_the_stream() -> None:
    async def run() -> None:
        async with streaming(Source(failed=True), ChangeStreams(every_s=0.01)) as stream:
            assert stream.status == 503 and await stream.json() == {"error": "locked"}
        source = Source("a")
        async with streaming(source, ChangeStreams(every_s=0.01)) as stream:
            assert stream.status == 200
            source.failed = True
            assert await stream.read() == b'"a"\n'

    asyncio.run(asyncio.wait_for(run(), DEADLINE_S))


def test_nobody_looks_for_a_page_that_has_left() -> None:
    async def run() -> None:
        source = Source("a")
        async with streaming(source, ChangeStreams(every_s=0.01)) as stream:
            await stream.content.readline()
            stream.close()
            while True:
                source.looked.clear()
                try:
                    await asyncio.wait_for(source.looked.wait(), 1.0)
                except TimeoutError:
                    return

    asyncio.run(asyncio.wait_for(run(), DEADLINE_S))


@pytest.fixture
def run(tmp_path: Path) -> Iterator[RunWriter]:
    run = RunWriter(tmp_path / "run")
    run.step(1, run.group(attempt()))
    run.journal.flush()
    yield run
    run.close()


def test_a_followed_overview_is_the_overview_and_then_what_is_new(run: RunWriter, tmp_path: Path) -> None:
    with serving(tmp_path) as client:
        first = client.json("/api/runs/run/overview?points=500")
        connection = http.client.HTTPConnection(urlsplit(client.base).netloc, timeout=DEADLINE_S)
        connection.request("GET", "/api/runs/run/overview?points=500&follow=1", headers=_authorisation())
        response = connection.getresponse()
        sent = json.loads(response.readline())
        assert {**sent, "state": None} == {**first, "state": None}
        run.group(attempt(prompt="<b>"))
        run.journal.flush()
        newer = json.loads(response.readline())
        assert newer["numbers"]["attempts"] == 2 and newer["cursor"] != first["cursor"]
    assert response.read() == b"", "the end of the server ends the stream"


def test_a_stream_needs_the_token_and_forbids_what_hostile_text_would_need(run: RunWriter, tmp_path: Path) -> None:
    address = "/api/runs/run/overview?follow=1"
    with serving(tmp_path) as client:
        assert client.get(address, Authorization="").status == 403
        assert client.get(address, Host="evil.example").status == 421
        assert client.get("/api/runs/no/overview?follow=1").status == 404
        head = client.get(address, method="HEAD")
        assert head.status == 200 and head.body == b""
        whole = _stream_headers(client, address)
        assert {name: whole[name] for name in _GUARDS} == {name: head.headers[name] for name in _GUARDS}


_GUARDS = ("Content-Security-Policy", "X-Content-Type-Options", "X-Frame-Options", "Referrer-Policy", "Cache-Control")


def _stream_headers(client: Client, address: str) -> dict[str, str]:
    connection = http.client.HTTPConnection(urlsplit(client.base).netloc, timeout=DEADLINE_S)
    connection.request("GET", address, headers=_authorisation())
    response = connection.getresponse()
    assert response.getheader("Content-Type") == "application/x-ndjson; charset=utf-8"
    connection.close()
    return dict(response.getheaders())


def _authorisation() -> dict[str, str]:
    return {"Authorization": f"Bearer {TOKEN}"}
