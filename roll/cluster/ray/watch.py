"""Whether a machine answers."""

from __future__ import annotations

import asyncio


async def until_unreachable(address: str, *, every_s: float, misses: int) -> None:
    """Returns once nothing has listened at `host:port` so many times in a row."""
    missed = 0
    while missed < misses:
        await asyncio.sleep(every_s)
        missed = 0 if await listens(address, every_s) else missed + 1


async def listens(address: str, limit_s: float) -> bool:
    """Whether a connection to `host:port` can be made."""
    host, _, port = address.rpartition(":")
    try:
        async with asyncio.timeout(limit_s):
            _, writer = await asyncio.open_connection(host.strip("[]"), int(port))
    except (OSError, TimeoutError, ValueError, OverflowError):
        return False
    writer.transport.abort()
    return True
