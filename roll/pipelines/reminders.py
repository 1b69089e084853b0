"""A wait that says so when it lasts: who waits, for how long, and for what."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")

EVERY_S = 60.0
"""Between two notices. A wait that is over sooner is nobody's concern."""


async def told(wait: Awaitable[T], tell: Callable[[float], None], every_s: float = EVERY_S) -> T:
    """What the wait brings; until it does, `tell` hears every so often for how many seconds it has lasted.

    Nothing else runs between the end of the wait and whatever follows on it.
    """
    loop = asyncio.get_running_loop()
    began = loop.time()

    def remind() -> None:
        nonlocal timer
        timer = loop.call_later(every_s, remind)
        tell(loop.time() - began)

    timer = loop.call_later(every_s, remind)
    try:
        return await wait
    finally:
        timer.cancel()
