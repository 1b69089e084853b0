"""The listening socket: open connections are bounded, so that clients cannot exhaust the descriptors of the run.

| call | waits for | woken by |
|---|---|---|
| `accept` | a connection; then room, if all open ones have a request in progress | the system, an end of one |

A connection is idle until the header of a request is complete. At the limit, a new connection replaces the one that
has been idle longest.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import resource
import socket
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web

_BACKLOG = 1024
"""Connections that the system holds until they are accepted."""
_LINGER_S = 1.0
"""How long the rest of a refused request is discarded, so that the client reads the error before the close."""
_RETRY_S = 1.0
"""Pause after an error of the system, such as too many open files elsewhere in the process."""

_SILENT = logging.Logger("malformed requests")
"""aiohttp logs the traceback of each request that it cannot parse; the client gets status 400 anyway."""
_SILENT.disabled = True


class BoundedServer(web.Server):
    """An HTTP server with at most `max_connections` open connections, and half of the process's descriptors."""

    def __init__(
        self,
        handle: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]],
        *,
        max_connections: int,
        idle_s: float,
    ) -> None:
        """An idle connection is closed after `idle_s` seconds."""
        super().__init__(
            self._serve,
            handler_cancellation=True,
            access_log=None,
            logger=_SILENT,
            lingering_time=_LINGER_S,
            keepalive_timeout=idle_s,
        )
        self._handle = handle
        self._max_connections = min(max_connections, max(1, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2))
        self._transports: dict[Any, asyncio.Transport] = {}
        """Open connections."""
        self._idle: dict[Any, None] = {}
        """Idle connections, the longest idle one first."""
        self._changed = asyncio.Event()
        """Set when a connection is closed or becomes idle."""

    async def accept(self, listener: socket.socket) -> None:
        """Accept connections until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, _ = await loop.sock_accept(listener)
            except OSError:
                await asyncio.sleep(_RETRY_S)
                continue
            try:
                await self._make_room()
                with contextlib.suppress(OSError):  # the client is gone already
                    await loop.connect_accepted_socket(self, connection)
            except asyncio.CancelledError:
                connection.close()
                raise

    def connection_made(self, handler: Any, transport: asyncio.Transport) -> None:
        super().connection_made(handler, transport)
        self._transports[handler], self._idle[handler] = transport, None

    def connection_lost(self, handler: Any, exc: BaseException | None = None) -> None:
        super().connection_lost(handler, exc)
        self._transports.pop(handler, None)
        self._idle.pop(handler, None)
        self._changed.set()

    async def _make_room(self) -> None:
        while len(self._transports) >= self._max_connections:
            self._changed.clear()
            if self._idle:
                longest = next(iter(self._idle))
                del self._idle[longest]
                self._transports[longest].abort()  # `close` would wait for a client that does not read
            await self._changed.wait()

    async def _serve(self, request: web.BaseRequest) -> web.StreamResponse:
        self._idle.pop(request.protocol, None)
        try:
            response = await self._handle(request)
            with contextlib.suppress(ConnectionError):
                await response.prepare(request)
                await response.write_eof()  # while the connection still counts as busy
            return response
        finally:
            if request.protocol in self._transports:
                self._idle[request.protocol] = None
                self._changed.set()


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; raises `OSError`."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.create_server((host, port), family=family, backlog=_BACKLOG)
    listener.setblocking(False)
    return listener
