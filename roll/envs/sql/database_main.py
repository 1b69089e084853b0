"""The server process of `roll.envs.sql.database_process`: forks processes with one database at a time.

| request | answers |
|---|---|
| `[image]` | none; opens a database in place of the last one |
| `[statement, max_rows, number]` | `[result]`, or `[message, fault]`; then `[contents]` |

Both sides frame messages with their length.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import socket
import sys
from typing import Any

import msgspec

from roll.envs.sql.database import Database, DatabaseImage
from roll.sandbox.forkserver_main import serve
from roll.tools.base import ToolFailed, ToolFault

_MEMORY_BYTES = 2**30
_LENGTH = 8


def main() -> None:
    """Serve forks; each answers the requests on its socket until that closes."""
    _, (descriptor,) = serve(socket.socket(fileno=int(sys.argv[1])))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as score:
        score.write("1000")
    owner, database = socket.socket(fileno=descriptor), None
    while request := receive(owner):
        if len(request) == 1:
            if database is not None:
                database.close()
            database = Database(msgspec.convert(request[0], DatabaseImage))
        else:
            assert database is not None
            send(owner, _answer(database, *request))
            send(owner, [database.contents()])
    os._exit(0)


def _answer(database: Database, statement: str, max_rows: int, number: int) -> list[str]:
    try:
        return [database.run(statement, max_rows=max_rows, number=number)]
    except ToolFailed as failure:
        return [str(failure), failure.fault]
    except MemoryError:
        return ["out of memory", ToolFault.FAILED]


def send(to: socket.socket, message: Any) -> None:
    """Send a message of JSON values; `OSError` if the other side has ended."""
    data = json.dumps(message).encode()  # in ASCII, as a statement may have lone surrogates
    to.sendall(len(data).to_bytes(_LENGTH, "big") + data)


def receive(source: socket.socket) -> Any:
    """The next message; None if the other side has ended."""
    header = _receive_exactly(source, _LENGTH)
    data = _receive_exactly(source, int.from_bytes(header, "big")) if header else b""
    return json.loads(data) if data else None


def _receive_exactly(source: socket.socket, length: int) -> bytes:
    data = bytearray()
    while len(data) < length:
        chunk = source.recv(length - len(data))
        if not chunk:
            return b""
        data += chunk
    return bytes(data)
