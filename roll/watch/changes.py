"""A stream of answers about a run: one line of JSON at once, and another line whenever the run has changed.

A request per change costs a browser several times as much as a line. An empty line is a sign of life.

| call | waits for | woken by |
|---|---|---|
| `ChangeStreams.send` | the next look at the run, `EVERY_S` after the last one | `close` |
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeAlias

from aiohttp import web

EVERY_S = 1.6
"""Seconds between two looks at the run. A change must be in view within 2 s, reading and drawing included."""
ALIVE_S = 15.0
"""Longest time without a line; a page that gets none for twice as long connects again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What one look at a run found."""

    status: int
    body: bytes
    cursor: str = ""
    """Where the next look begins."""
    unchanged: bool = False


LookFn: TypeAlias = Callable[[str], Awaitable[Look]]
"""Takes the cursor of the look before; empty for that of the request."""


class ChangeStreams:
    """All streams of one server."""

    def __init__(self, *, every_s: float = EVERY_S, alive_s: float = ALIVE_S) -> None:
        self._every_s, self._alive_s = every_s, alive_s
        self._closing = asyncio.Event()

    def close(self) -> None:
        """End all streams."""
        self._closing.set()

    async def send(self, request: web.Request, look: LookFn) -> web.StreamResponse:
        """Send lines until the page leaves, the server ends, or a look fails; a first one that fails is the answer."""
        found = await look("")
        if found.status != 200 or request.method == "HEAD":
            return web.Response(body=found.body, status=found.status, content_type="application/json")
        response = web.StreamResponse(headers={"Content-Type": "application/x-ndjson; charset=utf-8"})
        await response.prepare(request)
        await response.write(found.body + b"\n")
        sent = time.monotonic()
        while not await self._is_closed(request):
            found = await look(found.cursor)
            if found.status != 200:
                break  # the page asks again, and gets the reason as an answer
            silent = time.monotonic() - sent >= self._alive_s
            if silent or not found.unchanged:
                await response.write(b"\n" if found.unchanged else found.body + b"\n")
                sent = time.monotonic()
        return response

    async def _is_closed(self, request: web.Request) -> bool:
        """Whether the page has left, or the server ends, before the next look."""
        try:
            await asyncio.wait_for(self._closing.wait(), self._every_s)
        except TimeoutError:
            return request.transport is None or request.transport.is_closing()
        return True
