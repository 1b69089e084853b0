"""The other end of `ProcessCluster`: makes one worker and does what it is asked, one call after the other.

Calls run in the main thread, so code that needs signals or a thread of its own works. When whoever started it is gone,
so is this process.
"""

from __future__ import annotations

import asyncio
import ctypes
import importlib
import inspect
import pickle
import signal
import socket
import sys
from typing import Any

_HEADER = 8
_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Serve the socket whose number is the first argument until it is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the controller's to hear
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    with socket.socket(fileno=int(sys.argv[1])) as wire, asyncio.Runner() as runner:
        worker: Any = None
        while (message := _read(wire)) is not None:
            try:
                if worker is None:
                    sys.path[:], call, rank = message
                    worker, found = _made(call, rank), None
                else:
                    found = runner.run(_answered(worker, *message))
                _write(wire, (True, found))
            except Exception as error:  # noqa: BLE001 - whatever it is, the controller raises it
                _write(wire, (False, error))


def _made(call: Any, rank: int) -> Any:
    module, _, attribute = call.name.partition(":")
    return getattr(importlib.import_module(module), attribute)(rank, **call.arguments)


async def _answered(worker: Any, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    found = getattr(worker, method)(*args, **kwargs)
    return await found if inspect.isawaitable(found) else found


def _read(wire: socket.socket) -> Any:
    """The next message; None once the other side is gone."""
    header = _exactly(wire, _HEADER)
    if header is None:
        return None
    body = _exactly(wire, int.from_bytes(header, "little"))
    return None if body is None else pickle.loads(body)


def _exactly(wire: socket.socket, size: int) -> bytes | None:
    chunks: list[bytes] = []
    while size:
        chunk = wire.recv(min(size, 1 << 20))
        if not chunk:
            return None
        chunks.append(chunk)
        size -= len(chunk)
    return b"".join(chunks)


def _write(wire: socket.socket, message: tuple[bool, Any]) -> None:
    try:
        body = pickle.dumps(message)
    except Exception as error:  # noqa: BLE001 - an answer or an error that cannot travel: say what it was
        what = type(message[1]).__name__
        body = pickle.dumps((False, TypeError(f"{what} cannot be sent to another process ({error}): {message[1]!r}")))
    wire.sendall(len(body).to_bytes(_HEADER, "little") + body)
