"""A local HTTP server that sends prepared answers and records requests."""

import contextlib
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Said:
    """One answer; `raw` replaces everything else and is sent verbatim."""

    status: int = 200
    body: Any = None
    headers: dict[str, str] = field(default_factory=dict)
    raw: bytes | None = None
    after_s: float = 0.0
    """Waits for the test to end, at most so long, before it answers."""


def words(text: str) -> Said:
    return Said(body={"choices": [{"message": {"role": "assistant", "content": text}}]})


@dataclass
class Served:
    url: str
    answers: list[Said]
    """Given in turn; the last one again and again."""
    asked: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    ended: threading.Event = field(default_factory=threading.Event)
    in_flight: int = 0
    busiest: int = 0
    """Most requests in flight at once."""


@contextlib.contextmanager
def server(*answers: Said) -> Iterator[Served]:
    found = Served(url="", answers=list(answers))

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            size = int(self.headers["Content-Length"])
            found.asked.append(json.loads(self.rfile.read(size)))
            found.headers.append({name.lower(): value for name, value in self.headers.items()})
            found.paths.append(self.path)
            said = found.answers.pop(0) if len(found.answers) > 1 else found.answers[0]
            found.in_flight += 1
            found.busiest = max(found.busiest, found.in_flight)
            found.ended.wait(said.after_s)
            found.in_flight -= 1
            if said.raw is not None:
                self.wfile.write(said.raw)
                return
            body = said.body if isinstance(said.body, bytes) else json.dumps(said.body).encode()
            self.send_response(said.status)
            for name, value in {"Content-Length": str(len(body)), **said.headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Say nothing."""

    class Service(ThreadingHTTPServer):
        def handle_error(self, request: Any, client_address: Any) -> None:
            """Say nothing of clients that left before they were answered."""

    service = Service(("127.0.0.1", 0), Handler)
    service.daemon_threads = True
    thread = threading.Thread(target=service.serve_forever, args=(0.01,))
    thread.start()
    found.url = f"http://127.0.0.1:{service.server_address[1]}"
    try:
        yield found
    finally:
        found.ended.set()
        service.shutdown()
        thread.join()
        service.server_close()


def nobody() -> str:
    """A URL of this machine where nothing listens."""
    with server(Said()) as gone:
        return gone.url
