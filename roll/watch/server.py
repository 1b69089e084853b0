"""The HTTP server of `roll watch`: addresses and their parameters.

Every answer is computed in a thread, so that a slow one delays no other. Nothing is ever written to a run.
"""

from __future__ import annotations

import asyncio
import secrets
import socket
import sqlite3
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import resources
from typing import Any

from aiohttp import web

from roll.errors import ConfigError, JournalDamaged, RollError, one_line
from roll.watch.access import Guard, Handler, add_headers, check_host
from roll.watch.changes import ChangeStreams, Look
from roll.watch.encoding import encode
from roll.watch.folder import RunFolder
from roll.watch.plain import PlainPages
from roll.watch.requests import RunRequests
from roll.watch.view import NotFound

_TYPES = {
    "html": "text/html",
    "css": "text/css",
    "js": "text/javascript",
    "svg": "image/svg+xml",
    "woff2": "font/woff2",
    "json": "application/json",
    "png": "image/png",
    "ico": "image/x-icon",
}
_SHUTDOWN_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerAddress:
    """Where the server listens."""

    host: str = "127.0.0.1"
    port: int = 0
    """0: any free port."""
    token: str = field(default_factory=lambda: secrets.token_urlsafe(32), repr=False)


class WatchServer:
    """Serves the runs of one folder until `stop`."""

    def __init__(self, folder: RunFolder, address: ServerAddress) -> None:
        check_host(address.host)
        self._folder, self._address = folder, address
        self._assets = _read_assets()
        self._requests, self._plain = RunRequests(folder), PlainPages(folder)
        self._runner: web.AppRunner | None = None
        self._streams = ChangeStreams()
        self._port = 0

    @property
    def link(self) -> str:
        """The address with the token, for the person who started the server."""
        host = self._address.host
        return f"http://{f'[{host}]' if ':' in host else host}:{self._port}/?token={self._address.token}"

    async def start(self) -> None:
        """Listen; `ConfigError` if the port is taken."""
        guard = Guard(self._address.token)

        @web.middleware
        async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
            return await guard.check(request, handler)

        app = web.Application(middlewares=[check])
        app.on_response_prepare.append(add_headers)
        app.router.add_get("/api/runs", self._list_runs)
        app.router.add_get("/api/compare", self._compare)
        app.router.add_get("/api/runs/{run:[^/]+}/samples/{id:[^/]+}", self._answer_run)
        app.router.add_get("/api/runs/{run:[^/]+}/{view:[^/]+}", self._answer_run)
        app.router.add_get("/api/{rest:.*}", self._unknown)
        app.router.add_get("/assets/{name}", self._asset)
        app.router.add_get("/plain{rest:(/.*)?}", self._plain_page)
        app.router.add_get("/{rest:.*}", self._index)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=_SHUTDOWN_S, handle_signals=False)
        await self._runner.setup()
        listener = _listen(self._address)
        self._port = listener.getsockname()[1]
        await web.SockSite(self._runner, listener).start()

    async def stop(self) -> None:
        """Close all connections, and delete the indexes."""
        self._streams.close()
        if self._runner is not None:
            await self._runner.cleanup()
        await asyncio.to_thread(self._folder.close)

    async def _list_runs(self, _: web.Request) -> web.Response:
        return await _answer(self._folder.list_runs)

    async def _compare(self, request: web.Request) -> web.Response:
        return await _answer(lambda: self._requests.compare(_parameters(request)))

    async def _answer_run(self, request: web.Request) -> web.StreamResponse:
        parts = request.match_info
        view, id = parts.get("view", "sample"), parts.get("id", "")
        parameters = _parameters(request)
        if view == "overview" and parameters.pop("follow", None):
            return await self._follow(request, parameters)
        return await _answer(lambda: self._requests.answer(parts["run"], view, id, parameters))

    async def _follow(self, request: web.Request, parameters: dict[str, list[str]]) -> web.StreamResponse:
        run = request.match_info["run"]

        async def look(cursor: str) -> Look:
            known = {**parameters, "cursor": [cursor]} if cursor else parameters
            answer: Mapping[str, Any] = {}

            def call() -> Mapping[str, Any]:
                nonlocal answer
                answer = self._requests.answer(run, "overview", "", known)
                return answer

            status, body = await asyncio.to_thread(_compute, call)
            unchanged = bool(answer.get("unchanged"))
            return Look(status=status, body=body, cursor=answer.get("cursor", ""), unchanged=unchanged)

        return await self._streams.send(request, look)

    async def _unknown(self, request: web.Request) -> web.Response:
        return _error(404, f"{request.path[:80]!a}: no such address; see docs/watch.md")

    async def _plain_page(self, request: web.Request) -> web.Response:
        status, text = await asyncio.to_thread(self._plain.page, request.path, _parameters(request))
        body = text.encode("utf-8", "backslashreplace")
        return web.Response(body=body, status=status, content_type="text/html", charset="utf-8")

    async def _asset(self, request: web.Request) -> web.Response:
        asset = self._assets.get(request.match_info["name"])
        if asset is None:
            return web.Response(status=404, text="no such file\n")
        return web.Response(body=asset[0], content_type=asset[1], charset="utf-8")

    async def _index(self, _: web.Request) -> web.Response:
        body, content_type = self._assets["index.html"]
        return web.Response(body=body, content_type=content_type, charset="utf-8")


async def _answer(call: Callable[[], Mapping[str, Any]]) -> web.Response:
    """The result of the call, computed in a thread."""
    status, body = await asyncio.to_thread(_compute, call)
    return web.Response(body=body, status=status, content_type="application/json")


def _compute(call: Callable[[], Mapping[str, Any]]) -> tuple[int, bytes]:
    """The result of the call as JSON, or its error, with the status."""
    try:
        return 200, encode(call())
    except (RollError, sqlite3.Error, OSError) as error:
        return _status(error), encode({"error": one_line(str(error))})
    except Exception as error:  # noqa: BLE001 - the other pages stay usable, and the reason is shown
        return 500, encode({"error": one_line(f"a fault of roll watch: {type(error).__name__}: {error}")})


def _status(error: Exception) -> int:
    if isinstance(error, NotFound):
        return 404
    if isinstance(error, ConfigError) and not isinstance(error, JournalDamaged):
        return 400
    return 503


def _error(status: int, text: str) -> web.Response:
    return web.Response(body=encode({"error": text}), status=status, content_type="application/json")


def _parameters(request: web.Request) -> dict[str, list[str]]:
    return {name: request.query.getall(name) for name in request.query}


def _read_assets() -> dict[str, tuple[bytes, str]]:
    """The files of the page: only these are ever served."""
    folder = resources.files("roll.watch") / "assets"
    files = {file.name: file for file in folder.iterdir() if file.is_file()}
    return {
        name: (file.read_bytes(), _TYPES[name.rpartition(".")[2]])
        for name, file in files.items()
        if name.rpartition(".")[2] in _TYPES
    }


def _listen(address: ServerAddress) -> socket.socket:
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((address.host, address.port))
        listener.listen(64)
    except (OSError, OverflowError) as error:
        listener.close()
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigError(
            f"--port {address.port}: cannot listen on {address.host} ({reason}); choose another, or leave --port out"
        ) from None
    return listener
