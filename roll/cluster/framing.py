"""Numbered, pickled messages in both directions over one socket; messages of one event loop turn are sent together."""

from __future__ import annotations

import asyncio
import pickle
import struct
from collections.abc import Callable
from typing import Any, cast

_HEADER = struct.Struct("<QQ")
"""Number of a message, and its length in bytes."""
_BUFFER = 64 * 1024
"""Bytes of the receive buffer; a larger message gets a buffer of its size."""


class MessageStream(asyncio.BufferedProtocol):
    """One end. Calls `on_message` for every message, and `on_close` once the other end is gone.

    For a message that cannot be unpickled `on_message` gets an `UnreadableMessage`; others are not affected.
    """

    def __init__(self, on_message: Callable[[int, Any], None], on_close: Callable[[], None]) -> None:
        self._on_message, self._on_close = on_message, on_close
        self._transport: asyncio.Transport | None = None
        self._received, self._num_received = bytearray(_BUFFER), 0
        self._unsent: list[bytes] = []

    def send(self, number: int, body: bytes, *, now: bool = False) -> None:
        """Send a message with those of this event loop turn, or `now`; after the close it is dropped."""
        if not (now or self._unsent):
            asyncio.get_running_loop().call_soon(self._flush)
        self._unsent += (_HEADER.pack(number, len(body)), body)
        if now:
            self._flush()

    def close(self) -> None:
        """Close the connection; calls `on_close`."""
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._on_close()

    def get_buffer(self, sizehint: int) -> memoryview:
        return memoryview(self._received)[self._num_received :]

    def buffer_updated(self, nbytes: int) -> None:
        total, start, needed = self._num_received + nbytes, 0, 0
        with memoryview(self._received) as received:
            while total - start >= _HEADER.size:
                number, size = _HEADER.unpack_from(received, start)
                end = start + _HEADER.size + size
                if end > total:
                    needed = end - start
                    break
                with received[start + _HEADER.size : end] as body:
                    message = _unpickle(body)
                self._on_message(number, message)
                start = end
        self._keep(start, total, max(needed, _BUFFER))

    def _keep(self, start: int, end: int, room: int) -> None:
        """Move the incomplete message to the front of a buffer with room for all of it."""
        self._num_received = end - start
        if start or len(self._received) != room:
            rest = self._received[start:end]
            if len(self._received) != room:
                self._received = bytearray(room)  # not resized: the transport still holds a view of the old one
            self._received[: len(rest)] = rest

    def _flush(self) -> None:
        pieces, self._unsent = self._unsent, []
        if self._transport is None or not pieces:
            return
        if max(map(len, pieces)) <= _BUFFER:
            self._transport.write(b"".join(pieces))
        else:
            for piece in pieces:
                self._transport.write(memoryview(piece))  # not joined: that would copy large messages


class UnreadableMessage(Exception):
    """A message could not be unpickled on this side."""


def _unpickle(body: memoryview) -> Any:
    try:
        return pickle.loads(body)
    except Exception as error:  # noqa: BLE001 - any error concerns this message alone
        return UnreadableMessage(f"a message of the other process cannot be read ({type(error).__name__}: {error})")
