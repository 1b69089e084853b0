"""The HTTP server: authentication, limits and routing to sessions. It runs on the event loop of the run.

| call | waits for | woken by |
|---|---|---|
| `start`, `stop` | the socket | the system |
| a request | the response of its session; if the client disconnects, sampling is aborted | the router |
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import secrets
import time
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from roll.errors import ConfigError
from roll.journal.store import Journal
from roll.proxy.completions import ChatExchange, Exchange, encode, error_body, model_entry
from roll.proxy.limits import RateLimiter, RefusalLog
from roll.proxy.messages import ApiError
from roll.proxy.requests import ChatRequest, RequestRules, decode_body
from roll.proxy.responses import ResponseExchange
from roll.proxy.session import Session
from roll.rollout.episode.runner import Attempt, EpisodeRunner

if TYPE_CHECKING:
    from aiohttp import web

    from roll.types import Ints

SESSION_HEADER = "X-Roll-Session"
DISCONNECTED = 499
"""Status that is recorded, never sent, when a client disconnects."""
_SHUTDOWN_S = 1.0
_LOOPBACK = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxySettings:
    """Address and limits of the server."""

    models: tuple[str, ...]
    """Accepted model names; agents get the first."""
    host: str = "127.0.0.1"
    port: int = 0
    """0: any free port."""
    max_bytes: int = 8 * 2**20
    """Per request."""
    requests_per_s: float = 50.0
    """Per session."""
    max_inflight: int = 4096
    """Concurrent requests, over all sessions."""
    max_connections: int = 4096
    """Open connections; at most half of the descriptors of the process."""
    idle_s: float = 60.0
    """Longest time without a complete request header, on a new connection and between requests."""
    body_s: float = 60.0
    """Longest time for the body of a request."""
    ignored: frozenset[str] = frozenset()
    """Parameters of requests that are dropped, whatever their value."""
    strict: bool = True
    """Whether requests for a different sampling than the run's are rejected."""


class ProxyService(Protocol):
    """A service that stops with the proxy."""

    async def stop(self) -> None: ...


class Proxy:
    """An OpenAI-compatible server with one session per attempt."""

    def __init__(self, settings: ProxySettings, token: str | None = None) -> None:
        """`token` is the secret of the run; None: a random one."""
        self.settings = settings
        self.refusals = RefusalLog(time.monotonic)
        self._token = (token or secrets.token_urlsafe(32)).encode()
        self._sessions: dict[str, Session] = {}
        self._rates: dict[str, RateLimiter] = {}
        self._num_opened = self._num_requests = self._num_inflight = self._num_streams = 0
        self._num_ignored, self._unnoticed = 0, set(settings.ignored)
        self.notice: Callable[[str], None] = print
        """Callback for user-facing notices."""
        self._created, self._port = int(time.time()), 0
        self.services: list[ProxyService] = []
        """Stopped with the proxy."""
        self._stop_server: Callable[[], Awaitable[None]] | None = None

    @property
    def url(self) -> str:
        """Base URL for agents on this machine."""
        host = _LOOPBACK.get(self.settings.host, self.settings.host)
        return f"http://{f'[{host}]' if ':' in host else host}:{self._port}/v1"

    async def start(self) -> None:
        """Listen; raises `ConfigError` if the address is not available."""
        from roll.proxy.connections import BoundedServer, listen  # here: a run without agents starts faster

        settings = self.settings
        try:
            listener = listen(settings.host, settings.port)
        except OSError as error:
            where = f"proxy: {settings.host}:{settings.port}"
            raise ConfigError(f"{where}: cannot listen there ({error.strerror}); choose another port") from None
        self._port = listener.getsockname()[1]
        server = BoundedServer(self._handle, max_connections=settings.max_connections, idle_s=settings.idle_s)
        accepting = asyncio.create_task(server.accept(listener))

        async def stop() -> None:
            accepting.cancel()
            await asyncio.gather(accepting, return_exceptions=True)
            listener.close()
            server.pre_shutdown()
            await server.shutdown(_SHUTDOWN_S)

        self._stop_server = stop

    async def stop(self) -> None:
        for session in list(self._sessions.values()):
            self.close(session)
        for service in self.services:
            await service.stop()
        if self._stop_server is not None:
            await self._stop_server()

    @contextmanager
    def record_refusals(self, journal: Journal) -> Generator[None]:
        """Record refusals in the journal, inside this block."""
        self.refusals.record = journal.record
        try:
            yield
        finally:
            self.refusals.flush()
            self.refusals.record = None

    def open(self, runner: EpisodeRunner, attempt: Attempt) -> Session:
        """A session for one attempt; the caller closes it."""
        self._num_opened += 1
        session = Session(f"s{self._num_opened}", runner, attempt)
        self._sessions[session.id] = session
        self._rates[session.id] = RateLimiter(self.settings.requests_per_s, time.monotonic())
        return session

    def close(self, session: Session) -> None:
        """End a session; later requests to it get an error."""
        session.close()
        self._sessions.pop(session.id, None)
        self._rates.pop(session.id, None)

    def key_of(self, session: Session) -> str:
        """The API key that gives access to this session only."""
        return f"{session.id}.{self._sign(session.id)}"

    def drain_counts(self) -> dict[str, float]:
        """Counts of requests and refusals since the last call, as metrics."""
        counts = {"proxy/requests": float(self._num_requests), "proxy/refused": float(self.refusals.num)}
        if self.settings.ignored:
            counts["proxy/ignored"] = float(self._num_ignored)
        self._num_requests = self.refusals.num = self._num_ignored = 0
        return counts

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Handle one request; every error becomes a response and a recorded refusal."""
        from aiohttp import web

        session: Session | None = None
        try:
            session = self._session(request)
            return await self._route(request, session)
        except ApiError as error:
            api_error = error
        except (asyncio.CancelledError, ConnectionError):
            if session is not None and not session.closed:
                self.refusals.add(session.name, DISCONNECTED, "the client disconnected; its sampling is aborted")
            raise
        except Exception as error:  # noqa: BLE001 - a bug that a client triggers must not end the run
            api_error = ApiError(500, f"no response ({type(error).__name__}: {error}); send another request")
        self.refusals.add("" if session is None else session.name, api_error.status, api_error.message)
        headers = {} if api_error.retry_s is None else {"Retry-After": f"{max(1, round(api_error.retry_s))}"}
        response = web.Response(
            body=error_body(api_error), status=api_error.status, content_type="application/json", headers=headers
        )
        if api_error.status in (408, 413):
            response.force_close()
        return response

    def _session(self, request: web.BaseRequest) -> Session | None:
        """The session of a request, or None if it names none. Raises `ApiError` if the token is wrong."""
        scheme, _, key = request.headers.get("Authorization", "").partition(" ")
        id, _, signature = key.strip().partition(".")
        if scheme.lower() == "bearer" and _equal(signature, self._sign(id)):
            pass
        elif scheme.lower() == "bearer" and _equal(key.strip(), self._token.decode()):
            id = request.headers.get(SESSION_HEADER, "")
        else:
            raise ApiError(
                401, "the token is not that of this run; send OPENAI_API_KEY as the run set it", code="invalid_api_key"
            )
        if not id:
            return None
        if id not in self._sessions:
            shown = id[:80].encode("ascii", "backslashreplace").decode()
            raise ApiError(404, f"no session {shown!r}; it has ended, or never existed", code="session_not_found")
        return self._sessions[id]

    async def _route(self, request: web.BaseRequest, session: Session | None) -> web.StreamResponse:
        from aiohttp import web

        match request.method, request.path:
            case "POST", "/v1/chat/completions":
                return await self._complete(request, session)
            case "POST", "/v1/responses":
                return await self._complete(request, session, responses=True)
            case "GET", "/v1/models":
                entries = [model_entry(name, self._created) for name in self.settings.models]
                body = encode({"object": "list", "data": entries})
                return web.Response(body=body, content_type="application/json")
            case "GET", path if path.removeprefix("/v1/models/") in self.settings.models:
                body = encode(model_entry(path.removeprefix("/v1/models/"), self._created))
                return web.Response(body=body, content_type="application/json")
            case method, path:
                shown = f"{method[:10]} {path[:80]}"
                raise ApiError(
                    404, f"unknown endpoint {shown}; POST /v1/chat/completions or /v1/responses, or GET /v1/models"
                )

    async def _complete(
        self, request: web.BaseRequest, session: Session | None, *, responses: bool = False
    ) -> web.StreamResponse:
        """Sample the response to a request; with `responses`, one of the Responses API."""
        from aiohttp import web

        if session is None:
            raise ApiError(
                404,
                f"the request names no session; send {SESSION_HEADER}, or the key of a session",
                code="session_not_found",
            )
        self._admit(session)
        body = await self._body(request)
        self._num_inflight += 1
        try:
            exchange = self._read(session, decode_body(body), responses=responses)
            self._count_ignored(exchange.request)
            self._num_requests += 1
            if exchange.request.stream:
                return await self._stream(request, session, exchange)
            completions = await session.complete(exchange.request)
        finally:
            self._num_inflight -= 1
        return web.Response(body=exchange.body(completions), content_type="application/json")

    def _read(self, session: Session, fields: dict[str, Any], *, responses: bool) -> Exchange:
        settings = self.settings
        rules = RequestRules(
            models=settings.models,
            ignored=settings.ignored,
            sampling=session.limits.sampling if settings.strict else None,
        )
        if responses:
            return ResponseExchange(fields, rules, session.template, session.history)
        return ChatExchange(fields, rules, session.template)

    def _count_ignored(self, request: ChatRequest) -> None:
        self._num_ignored += len(request.ignored)
        for name in self._unnoticed.intersection(request.ignored):
            self._unnoticed.remove(name)
            self.notice(f"proxy: requests have the parameter {name!r}, which the run ignores (proxy.ignore)")

    def _admit(self, session: Session) -> None:
        if self._num_inflight >= self.settings.max_inflight:
            raise ApiError(429, f"{self._num_inflight} requests are in flight; retry later", retry_s=1.0)
        wait_s = self._rates[session.id].wait_s(time.monotonic())
        if wait_s:
            limit = f"{self.settings.requests_per_s:g} requests per second (proxy.requests_per_s)"
            raise ApiError(429, f"a session may send {limit}; retry in {wait_s:.2g} s", retry_s=wait_s)

    async def _body(self, request: web.BaseRequest) -> bytearray:
        """The body of a request; reading stops where it exceeds the limit, or takes too long."""
        limit, body = self.settings.max_bytes, bytearray()
        size = request.content_length or 0
        try:
            async with asyncio.timeout(self.settings.body_s):
                while size <= limit and not request.content.at_eof():
                    body += await request.content.readany()
                    size = max(size, len(body))
        except TimeoutError:
            late = f"the body is incomplete after {self.settings.body_s:g} s (proxy.body_timeout_s); send it faster"
            raise ApiError(408, late, code="timeout") from None
        if size > limit:
            raise ApiError(
                413, f"the request has more than {limit} bytes (proxy.max_body_mb); send less", code="too_large"
            )
        return body

    async def _stream(self, request: web.BaseRequest, session: Session, exchange: Exchange) -> web.StreamResponse:
        from aiohttp import web

        parts: asyncio.Queue[tuple[int, Ints] | None] = asyncio.Queue()
        sampling = asyncio.ensure_future(
            session.complete(exchange.request, lambda choice, ids: parts.put_nowait((choice, ids)))
        )
        sampling.add_done_callback(lambda _: parts.put_nowait(None))
        self._num_streams += 1
        stream = exchange.stream(f"{session.id}-stream-{self._num_streams}")
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})

        async def send(event: bytes) -> None:
            if not response.prepared:
                await response.prepare(request)
            await response.write(event)

        try:
            while (part := await parts.get()) is not None:
                if event := stream.add(*part):
                    await send(event)
            try:
                completions = sampling.result()
            except ApiError as error:
                if not response.prepared:
                    raise
                self.refusals.add(session.name, error.status, error.message)
                await send(stream.failure(error))
            else:
                await send(stream.end(completions))
            return response
        finally:
            sampling.cancel()

    def _sign(self, id: str) -> str:
        return hmac.new(self._token, id.encode("utf-8", "replace"), hashlib.sha256).hexdigest()


def _equal(text: str, secret: str) -> bool:
    """Compare in constant time."""
    return hmac.compare_digest(text.encode("utf-8", "replace"), secret.encode())
