"""Numbered messages both ways over one socket, pickled; those of one turn of the event loop travel together."""

from __future__ import annotations

import asyncio
import pickle
import struct
from collections.abc import Callable
from typing import Any, cast

_HEADER = struct.Struct("<QQ")
"""The number of a message, and how many bytes it has."""


class Wire(asyncio.Protocol):
    """One end. `heard` is told of every message, `lost` once the other end is gone.

    A message that cannot be read is told as the error that it made, and harms no other.
    """

    def __init__(self, heard: Callable[[int, Any], None], lost: Callable[[], None]) -> None:
        self._heard, self._lost = heard, lost
        self._transport: asyncio.Transport | None = None
        self._in, self._out = bytearray(), list[bytes]()

    def send(self, number: int, body: bytes) -> None:
        """Put a message on its way; one that comes after the end goes nowhere."""
        if not self._out:
            asyncio.get_running_loop().call_soon(self._flush)
        self._out += (_HEADER.pack(number, len(body)), body)

    def close(self) -> None:
        """Hang up; `lost` is told."""
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._lost()

    def data_received(self, data: bytes) -> None:
        self._in += data
        start = 0
        while len(self._in) - start >= _HEADER.size:
            number, size = _HEADER.unpack_from(self._in, start)
            end = start + _HEADER.size + size
            if len(self._in) < end:
                break
            self._heard(number, _read(bytes(self._in[start + _HEADER.size : end])))
            start = end
        del self._in[:start]

    def _flush(self) -> None:
        pieces, self._out = self._out, []
        if self._transport is not None:
            self._transport.write(b"".join(pieces))


class Unreadable(Exception):
    """What came cannot be made an object of on this side."""


def _read(body: bytes) -> Any:
    try:
        return pickle.loads(body)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is about this message alone
        return Unreadable(f"what came from the other process cannot be read ({type(error).__name__}: {error})")
