"""A wait that says so when it lasts: who waits, for how long, and for what."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

EVERY_S = 60.0
"""Between two notices. A wait that is over sooner is nobody's concern."""


async def told(wait: Coroutine[Any, Any, T], tell: Callable[[float], None], every_s: float = EVERY_S) -> T:
    """What the wait brings; until it does, `tell` hears every so often for how many seconds it has lasted."""
    loop = asyncio.get_running_loop()
    waiting, began = asyncio.ensure_future(wait), loop.time()
    try:
        while not (await asyncio.wait([waiting], timeout=every_s))[0]:
            tell(loop.time() - began)
        return waiting.result()
    finally:
        waiting.cancel()
