"""The HTTP server for `/metrics`, `/healthz` and `/readyz`, in a thread with an event loop of its own.

| call | waits for | woken by |
|---|---|---|
| `start` | nothing | |
| `close` | the end of the thread, at most a few seconds | the thread |
| a request | the requests before it | the thread |

Responses to `/metrics` are shared for half a second: however many clients ask, the run is read twice per second.
"""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from roll.errors import ConfigError, one_line
from roll.monitoring.monitor import Monitor, ProbeAnswer
from roll.monitoring.samples import Scrape
from roll.tracking.log import announce

if TYPE_CHECKING:
    from aiohttp import web
    from prometheus_client.metrics_core import Metric

_MAX_CONNECTIONS = 64
_IDLE_S = 30.0
_POLL_S = 1.0
_SHARED_S = 0.5
_SHUTDOWN_S, _CLOSE_S = 0.5, 5.0


class MetricsServer:
    """Serves one monitor on a socket that listens already; without one it serves nothing."""

    def __init__(self, monitor: Monitor, listener: socket.socket | None, *, exposed: bool = False) -> None:
        self.monitor, self._listener, self._exposed = monitor, listener, exposed
        self._thread = threading.Thread(target=self._run, name="metrics", daemon=True)
        self._stopping, self._running = asyncio.Event(), threading.Event()
        self._shared: tuple[float, Scrape] | None = None
        """The newest scrape, and when it was made."""

    @property
    def url(self) -> str:
        """Address of the server, for clients on this machine."""
        assert self._listener is not None
        address: tuple[str, int] = self._listener.getsockname()[:2]
        host, port = address
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
        return f"http://{f'[{host}]' if ':' in host else host}:{port}"

    def start(self) -> Monitor:
        """Serve from now on, and print where; returns the monitor."""
        if self._listener is None:
            return self.monitor
        announce(f"metrics: {self.url}/metrics, with /healthz and /readyz")
        if self._exposed:
            announce("metrics: other machines can read the run's name, model, domains, rewards and memory")
        self._thread.start()
        self._running.wait()
        return self.monitor

    def close(self) -> None:
        """Stop serving; a request in progress may be cut off."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stopping.set)
            self._thread.join(_CLOSE_S)
        if self._listener is not None:
            self._listener.close()

    def _run(self) -> None:
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        from roll.proxy.connections import BoundedServer

        assert self._listener is not None
        self._loop = asyncio.get_running_loop()
        self._running.set()
        server = BoundedServer(self._handle, max_connections=_MAX_CONNECTIONS, idle_s=_IDLE_S)
        tasks = [asyncio.create_task(server.accept(self._listener)), asyncio.create_task(self._poll())]
        await self._stopping.wait()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        server.pre_shutdown()
        await server.shutdown(_SHUTDOWN_S)

    async def _poll(self) -> None:
        while True:
            self.monitor.poll()
            await asyncio.sleep(_POLL_S)

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        from aiohttp import web

        if request.method not in ("GET", "HEAD"):
            return web.Response(status=405, text="only GET\n", headers={"Allow": "GET, HEAD"})
        try:
            match request.path:
                case "/metrics":
                    body, content_type = self._metrics(request.headers.get("Accept", ""))
                    return web.Response(body=body, headers={"Content-Type": content_type})
                case "/healthz":
                    return _respond(self.monitor.health())
                case "/readyz":
                    return _respond(self.monitor.readiness())
                case _:
                    return web.Response(status=404, text="not here; there are /metrics, /healthz and /readyz\n")
        except Exception as error:  # noqa: BLE001 - a fault of the monitor must not end the run, or fill its log
            return web.Response(status=500, text=f"{one_line(f'{type(error).__name__}: {error}')}\n")

    def _metrics(self, accept: str) -> tuple[bytes, str]:
        """The metrics in the form that a client accepts, and its content type."""
        from prometheus_client import CollectorRegistry
        from prometheus_client.exposition import choose_encoder

        encode, content_type = choose_encoder(accept)
        now = time.monotonic()
        if self._shared is None or now - self._shared[0] >= _SHARED_S:
            self._shared = now, self.monitor.scrape()
        registry = CollectorRegistry()
        registry.register(ScrapeCollector(self._shared[1]))
        return encode(registry), content_type


class ScrapeCollector:
    """`Collector` of `prometheus_client`: the families of one scrape."""

    def __init__(self, scrape: Scrape) -> None:
        self._scrape = scrape

    def collect(self) -> Iterator[Metric]:
        return self._scrape.families()


def _respond(verdict: ProbeAnswer) -> web.Response:
    from aiohttp import web

    return web.Response(status=200 if verdict.ok else 503, text=f"{verdict.line}\n")


def bind(host: str, port: int) -> socket.socket:
    """A listening socket; raises `ConfigError` if the address is not available."""
    from roll.proxy.connections import listen

    try:
        return listen(host, port)
    except OSError as error:
        what = f"cannot listen there ({str(error.strerror).partition(' (')[0]})"
        raise ConfigError(f"metrics: {host}:{port}: {what}; choose another metrics.port, or 0 for any") from None
