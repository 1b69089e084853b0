"""Reminders to the user while the loop waits for long."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")

EVERY_S = 60.0
"""Seconds between two reminders; shorter waits are not reported."""


async def await_with_reminders(wait: Awaitable[T], remind: Callable[[float], None], every_s: float = EVERY_S) -> T:
    """Await `wait`; until then call `remind(elapsed_s)` every `every_s` seconds.

    It awaits directly, not in a task, so nothing else runs between the end of the wait and the caller.
    """
    loop = asyncio.get_running_loop()
    began = loop.time()

    def on_timer() -> None:
        nonlocal timer
        timer = loop.call_later(every_s, on_timer)
        remind(loop.time() - began)

    timer = loop.call_later(every_s, on_timer)
    try:
        return await wait
    finally:
        timer.cancel()
