"""The server: who may ask, how much, and which session it is. One handler, one event loop, that of the run.

| call | waits for | woken by |
|---|---|---|
| `start`, `stop` | the socket | the system |
| a request | its session's reply; a client that goes away is heard of, and its sampling aborted | the router |
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import secrets
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from roll.errors import ConfigError
from roll.journal.store import Journal
from roll.proxy.completions import Stream, encode, model, refusal, whole
from roll.proxy.limits import Rate, Refusals
from roll.proxy.requests import Asked, Refused, read_request
from roll.proxy.session import Session
from roll.rollout.episode.runner import Attempt, EpisodeRunner

if TYPE_CHECKING:
    from aiohttp import web

SESSION_HEADER = "X-Roll-Session"
GONE = 499
"""The status under which it is written down that a client went away; nobody is told it."""
_LINGER_S = 1.0
"""How long what a refused client still sends is thrown away, so that it reads why before the connection closes."""
_ANYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Where the server is, and how much it takes."""

    models: tuple[str, ...]
    """The names that the policy goes by; the first is its own."""
    host: str = "127.0.0.1"
    port: int = 0
    """0: whichever is free."""
    max_bytes: int = 8 * 2**20
    """Of one request."""
    requests_per_s: float = 50.0
    """Of one session."""
    max_under_way: int = 4096
    """Requests, of all sessions together."""
    strict: bool = True
    """Whether requests to be sampled otherwise than the run does are refused."""


class Companion(Protocol):
    """Something that lives as long as a proxy."""

    async def stop(self) -> None: ...


class Proxy:
    """An OpenAI-compatible server whose every session is one attempt."""

    def __init__(self, settings: Settings, token: str | None = None) -> None:
        """`token` is the run's; None makes one that nobody else knows."""
        self.settings = settings
        self.refusals = Refusals(time.monotonic)
        self._token = (token or secrets.token_urlsafe(32)).encode()
        self._sessions: dict[str, Session] = {}
        self._rates: dict[str, Rate] = {}
        self._num_opened = self._num_asked = self._num_under_way = self._num_streams = 0
        self._created, self._port = int(time.time()), 0
        self.companions: list[Companion] = []
        """Are stopped with it."""
        self._runner: Any = None

    @property
    def url(self) -> str:
        """What an agent on this machine is given as its base URL."""
        host = _ANYWHERE.get(self.settings.host, self.settings.host)
        return f"http://{f'[{host}]' if ':' in host else host}:{self._port}/v1"

    async def start(self) -> None:
        """Listen; raises `ConfigError` where that cannot be."""
        try:
            from aiohttp import web
        except ImportError:
            raise ConfigError("proxy: aiohttp is not installed; run: pip install 'roll[proxy]'") from None
        server = web.Server(self._handle, handler_cancellation=True, access_log=None, lingering_time=_LINGER_S)
        self._runner = web.ServerRunner(server, shutdown_timeout=1.0)
        await self._runner.setup()
        site = web.TCPSite(self._runner, self.settings.host, self.settings.port, backlog=1024)
        try:
            await site.start()
        except OSError as error:
            await self._runner.cleanup()
            place = f"proxy: {self.settings.host}:{self.settings.port}"
            raise ConfigError(f"{place}: cannot listen there ({error.strerror}); choose another port") from None
        self._port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        for session in list(self._sessions.values()):
            self.close(session)
        for companion in self.companions:
            await companion.stop()
        if self._runner is not None:
            await self._runner.cleanup()

    @contextmanager
    def writing(self, journal: Journal) -> Generator[None]:
        """Have refusals recorded there, inside this block."""
        self.refusals.record = journal.record
        try:
            yield
        finally:
            self.refusals.flush()
            self.refusals.record = None

    def open(self, runner: EpisodeRunner, attempt: Attempt) -> Session:
        """A session for one attempt, to be closed after it."""
        self._num_opened += 1
        session = Session(f"s{self._num_opened}", runner, attempt, strict=self.settings.strict)
        self._sessions[session.id] = session
        self._rates[session.id] = Rate(self.settings.requests_per_s, time.monotonic())
        return session

    def close(self, session: Session) -> None:
        """Its requests find nobody from here on."""
        session.close()
        self._sessions.pop(session.id, None)
        self._rates.pop(session.id, None)

    def key_of(self, session: Session) -> str:
        """What an agent is given as its API key: it opens this session and no other."""
        return f"{session.id}.{self._signed(session.id)}"

    def drain_counts(self) -> dict[str, float]:
        """What was asked and refused since the last call, as metrics."""
        found = {"proxy/requests": float(self._num_asked), "proxy/refused": float(self.refusals.num)}
        self._num_asked = self.refusals.num = 0
        return found

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """The border: whatever a client does becomes an answer and, where it is refused, a record."""
        from aiohttp import web

        session: Session | None = None
        try:
            session = self._session(request)
            return await self._route(request, session)
        except Refused as error:
            refused = error
        except (asyncio.CancelledError, ConnectionError):
            if session is not None and not session.closed:
                self.refusals.note(session.name, GONE, "the client went away; what was sampled for it is aborted")
            raise
        except Exception as error:  # noqa: BLE001 - the border: a client that finds a bug of ours ends no run
            refused = Refused(500, f"no reply came ({type(error).__name__}: {error}); ask something else")
        self.refusals.note("" if session is None else session.name, refused.status, refused.why)
        headers = {} if refused.retry_s is None else {"Retry-After": f"{max(1, round(refused.retry_s))}"}
        response = web.Response(
            body=refusal(refused), status=refused.status, content_type="application/json", headers=headers
        )
        if refused.status == 413:
            response.force_close()
        return response

    def _session(self, request: web.BaseRequest) -> Session | None:
        """Whose request it is; None where it names no session. Raises `Refused` without the run's token."""
        scheme, _, key = request.headers.get("Authorization", "").partition(" ")
        id, _, signature = key.strip().partition(".")
        if scheme.lower() == "bearer" and _same(signature, self._signed(id)):
            pass
        elif scheme.lower() == "bearer" and _same(key.strip(), self._token.decode()):
            id = request.headers.get(SESSION_HEADER, "")
        else:
            raise Refused(
                401, "the token is not that of this run; give OPENAI_API_KEY as the run set it", code="invalid_api_key"
            )
        if not id:
            return None
        if id not in self._sessions:
            shown = id[:80].encode("ascii", "backslashreplace").decode()
            raise Refused(404, f"no session {shown!r}; it has ended, or never was", code="session_not_found")
        return self._sessions[id]

    async def _route(self, request: web.BaseRequest, session: Session | None) -> web.StreamResponse:
        from aiohttp import web

        match request.method, request.path:
            case "POST", "/v1/chat/completions":
                return await self._complete(request, session)
            case "GET", "/v1/models":
                entries = [model(name, self._created) for name in self.settings.models]
                body = encode({"object": "list", "data": entries})
                return web.Response(body=body, content_type="application/json")
            case "GET", path if path.removeprefix("/v1/models/") in self.settings.models:
                body = encode(model(path.removeprefix("/v1/models/"), self._created))
                return web.Response(body=body, content_type="application/json")
            case method, path:
                shown = f"{method[:10]} {path[:80]}"
                raise Refused(404, f"nothing answers to {shown}; POST /v1/chat/completions, or GET /v1/models")

    async def _complete(self, request: web.BaseRequest, session: Session | None) -> web.StreamResponse:
        from aiohttp import web

        if session is None:
            raise Refused(
                404, f"no session is named; send {SESSION_HEADER}, or a session's own key", code="session_not_found"
            )
        self._admit(session)
        body = await self._body(request)
        self._num_under_way += 1
        try:
            asked = read_request(body)
            if asked.model not in self.settings.models:
                known = ", ".join(self.settings.models)
                raise Refused(
                    404, f"no model {asked.model[:80]!r}; ask for {known}, or name it in proxy.models of the run",
                    param="model", code="model_not_found",
                )  # fmt: skip
            self._num_asked += 1
            if asked.stream:
                return await self._stream(request, session, asked)
            answer = await session.ask(asked)
        finally:
            self._num_under_way -= 1
        return web.Response(body=whole(answer, asked, session.template), content_type="application/json")

    def _admit(self, session: Session) -> None:
        if self._num_under_way >= self.settings.max_under_way:
            raise Refused(429, f"{self._num_under_way} requests are under way; ask again later", retry_s=1.0)
        wait_s = self._rates[session.id].wait_s(time.monotonic())
        if wait_s:
            most = f"{self.settings.requests_per_s:g} requests a second (proxy.requests_per_s)"
            raise Refused(429, f"a session may send {most}; ask again in {wait_s:.2g} s", retry_s=wait_s)

    async def _body(self, request: web.BaseRequest) -> bytearray:
        """All of it, unless it is too long: then it is not read on."""
        most, body = self.settings.max_bytes, bytearray()
        size = request.content_length or 0
        while size <= most and not request.content.at_eof():
            body += await request.content.readany()
            size = max(size, len(body))
        if size > most:
            raise Refused(
                413, f"the request has more than {most} bytes (proxy.max_body_mb); send less", code="too_large"
            )
        return body

    async def _stream(self, request: web.BaseRequest, session: Session, asked: Asked) -> web.StreamResponse:
        from aiohttp import web

        pieces: asyncio.Queue[Any] = asyncio.Queue()
        answering = asyncio.ensure_future(session.ask(asked, pieces.put_nowait))
        answering.add_done_callback(lambda _: pieces.put_nowait(None))
        self._num_streams += 1
        stream = Stream(f"{session.id}-stream-{self._num_streams}", asked, session.template)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})

        async def send(event: bytes) -> None:
            if not response.prepared:
                await response.prepare(request)
                event = stream.opening() + event
            await response.write(event)

        try:
            while (ids := await pieces.get()) is not None:
                if event := stream.add(ids):
                    await send(event)
            try:
                answer = answering.result()
            except Refused as error:
                if not response.prepared:
                    raise
                self.refusals.note(session.name, error.status, error.why)
                await send(stream.failure(error))
            else:
                await send(b"".join(stream.end(answer)))
            return response
        finally:
            answering.cancel()

    def _signed(self, id: str) -> str:
        return hmac.new(self._token, id.encode("utf-8", "replace"), hashlib.sha256).hexdigest()


def _same(given: str, known: str) -> bool:
    """In a time that does not tell how much of it is right."""
    return hmac.compare_digest(given.encode("utf-8", "replace"), known.encode())
