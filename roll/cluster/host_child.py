"""The other end of `Host`: makes one worker and does all it is asked at once, each call a task of one event loop.

Whoever started it can ask whether the loop still turns: that is answered between two calls, so a call that never gives
way is noticed from outside. When whoever started it is gone, so is this process.
"""

from __future__ import annotations

import asyncio
import ctypes
import importlib
import inspect
import os
import pickle
import signal
import socket
import sys
from typing import Any

from roll.cluster.framing import Wire

_PR_SET_PDEATHSIG = 1
MAKE, CALL, CANCEL, PING = "make", "call", "cancel", "ping"
"""What is asked for: the first entry of a message."""


def main() -> None:
    """Serve the socket whose number is the first argument until it is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the controller's to hear
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    asyncio.run(_serve(socket.socket(fileno=int(sys.argv[1]))))


async def _serve(wire: socket.socket) -> None:
    child = _Child()
    await asyncio.get_running_loop().create_connection(lambda: child.wire, sock=wire)
    await asyncio.Event().wait()


class _Child:
    """The worker of this process and the calls it is busy with."""

    def __init__(self) -> None:
        self.wire = Wire(self._heard, lambda: os._exit(0))
        self._worker: Any = None
        self._calls: dict[int, asyncio.Task[None]] = {}

    def _heard(self, number: int, message: Any) -> None:
        if isinstance(message, Exception):
            self._answer(number, (False, message))
            return
        kind, *rest = message
        if kind == PING:
            self._answer(number, (True, None))
        elif kind == CANCEL:
            if (call := self._calls.get(rest[0])) is not None:
                call.cancel()
        else:
            work = self._make(*rest) if kind == MAKE else self._do(*rest)
            self._calls[number] = asyncio.get_running_loop().create_task(self._answered(number, work))

    async def _answered(self, number: int, work: Any) -> None:
        try:
            found = (True, await work)
        except asyncio.CancelledError:
            found = (False, asyncio.CancelledError())
        except BaseException as error:  # noqa: BLE001 - whatever it is, the controller raises it
            wrapped = error if isinstance(error, Exception) else RuntimeError(f"{type(error).__name__}: {error}")
            found = (False, wrapped)
        del self._calls[number]
        self._answer(number, found)

    async def _make(self, paths: list[str], call: Any, rank: int) -> None:
        sys.path[:] = paths
        module, _, attribute = call.name.partition(":")
        self._worker = getattr(importlib.import_module(module), attribute)(rank, **call.arguments)

    async def _do(self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        found = getattr(self._worker, method)(*args, **kwargs)
        return await found if inspect.isawaitable(found) else found

    def _answer(self, number: int, answer: tuple[bool, Any]) -> None:
        try:
            body = pickle.dumps(answer)
        except Exception as error:  # noqa: BLE001 - an answer or an error that cannot travel: say what it was
            what = f"{type(answer[1]).__name__} cannot be sent to another process ({error}): {answer[1]!r}"
            body = pickle.dumps((False, TypeError(what)))
        self.wire.send(number, body)
