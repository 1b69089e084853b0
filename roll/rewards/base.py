"""The border to reward code: any function of a task and a reply becomes a finite score, or a failure with a name."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from numbers import Real
from typing import Any

from roll.errors import RewardFailed, blame
from roll.registry import REWARDS
from roll.types import Call, Score, Task


async def call(reward: Call, task: Task, reply: str) -> Score:
    """What the named reward thinks of `reply`; raises `RewardFailed` when it raises or returns no finite number.

    The function may be `async`. It runs in the caller's thread, so a breakpoint inside it works.
    """
    place = f"reward {reward.name!r} on task {task.id!r}"
    function: Callable[..., Any] = REWARDS[reward.name]
    with blame(RewardFailed, place):
        found = function(task, reply, **reward.arguments)
        if inspect.isawaitable(found):
            found = await found
    return _finite(found, place)


def _finite(found: Any, place: str) -> Score:
    if isinstance(found, Real):
        found = Score(float(found))
    if not isinstance(found, Score):
        raise RewardFailed(f"{place}: not a number (got {found!r}); return a float or a Score")
    for name, value in (("value", found.value), *found.parts.items()):
        if not math.isfinite(value):
            raise RewardFailed(f"{place}: {name} is not finite (got {value}); return a finite number or raise")
    return found
