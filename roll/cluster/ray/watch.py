"""Checks whether a host accepts connections."""

from __future__ import annotations

import asyncio


async def wait_until_unreachable(address: str, *, every_s: float, misses: int) -> None:
    """Return once connecting to `host:port` has failed `misses` times in a row."""
    missed = 0
    while missed < misses:
        await asyncio.sleep(every_s)
        missed = 0 if await accepts_connections(address, every_s) else missed + 1


async def accepts_connections(address: str, timeout_s: float) -> bool:
    """Whether a connection to `host:port` succeeds."""
    host, _, port = address.rpartition(":")
    try:
        async with asyncio.timeout(timeout_s):
            _, writer = await asyncio.open_connection(host.strip("[]"), int(port))
    except (OSError, TimeoutError, ValueError, OverflowError):
        return False
    writer.transport.abort()
    return True
