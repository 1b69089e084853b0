"""An environment with the fault that a task's metadata names. Imports little: processes load it."""

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from roll.envs.base import StepResult
from roll.types import Message, Spec, Task

FAULTY = Spec(f"{__name__}:Faulty")
CONTEXT, MAX_TURNS = 48, 4
GOOD = StepResult(messages=(Message("user", "5"),), reward=1.0, metrics={"success": 1.0})
DONE = replace(GOOD, done=True)
GARBAGE: dict[str, Any] = {
    "none": None,
    "dict": {"messages": [], "done": True},
    "nan": replace(GOOD, reward=float("nan")),
    "huge": replace(GOOD, reward=1e30),
    "word": replace(GOOD, reward="much"),
    "text": replace(GOOD, messages="5"),
    "number": replace(GOOD, messages=(Message("user", 5),)),
    "half": replace(GOOD, messages=(Message("user", "\ud800"),)),
    "metric": replace(GOOD, metrics={"success": float("inf")}),
    "metrics": replace(GOOD, metrics=[1.0]),
    "state": replace(GOOD, state=5),
    "silent": replace(GOOD, messages=()),
}
OPENINGS: dict[str, Any] = {"opens_with_text": "5", "opens_with_nothing": (), "opens_with_none": None}


class Faulty:
    """Ends well after two turns where nothing is wrong, and where what is wrong has happened often enough."""

    def __init__(self, task: Task) -> None:
        self.fault, self.turn = task.metadata["fault"], 0
        self.times, self.witness = task.metadata.get("times"), task.metadata.get("witness")
        if self.fault == "cannot_be_made":
            raise ValueError("no world today")

    async def start(self) -> Any:
        if self.fault == "start_raises":
            raise OSError("no ice")
        if self.fault == "start_hangs":
            await asyncio.Event().wait()
        if self.fault == "opens_too_long":
            return (Message("user", "5" * (CONTEXT + 1)),)
        return OPENINGS.get(self.fault, (Message("user", "5?"),))

    async def step(self, response: str) -> Any:
        assert isinstance(response, str)
        self.turn += 1
        if self.times is not None and not self.fires():
            self.fault = ""
        if self.fault in GARBAGE:
            return GARBAGE[self.fault]
        found = BEHAVIOURS.get(self.fault, lambda: None)()
        if found is not None:
            return await found
        if self.fault == "ends_at_once":
            return DONE
        if self.fault == "talks_too_long":
            return replace(GOOD, messages=(Message("user", "5" * (CONTEXT + 1)),))
        return GOOD if self.fault == "never_ends" or self.turn < 2 else DONE

    def fires(self) -> bool:
        """Whether it is still to happen; if so, there is a witness."""
        path = Path(self.witness)
        seen = len(list(path.glob(f"{self.fault}-*")))
        if seen < self.times:
            (path / f"{self.fault}-{seen}").touch()
        return seen < self.times

    async def close(self) -> None:
        if self.fault == "close_raises":
            raise OSError("the door is stuck")
        if self.fault == "close_hangs":
            await asyncio.Event().wait()


async def _raised() -> None:
    raise ValueError("the world ended")


async def _left() -> None:
    raise SystemExit("good bye")


async def _cancelled() -> None:
    raise asyncio.CancelledError


async def _hung() -> None:
    await asyncio.Event().wait()


async def _hung_for_good() -> None:
    while True:
        with contextlib.suppress(asyncio.CancelledError):  # it has better things to do
            await asyncio.sleep(1000)


async def _stuck() -> None:
    while True:
        time.sleep(1)


async def _died() -> None:
    os._exit(3)


async def _killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(10)


BEHAVIOURS: dict[str, Callable[[], Any]] = {
    "raises": _raised,
    "leaves": _left,
    "cancels_itself": _cancelled,
    "hangs": _hung,
    "hangs_for_good": _hung_for_good,
    "sticks": _stuck,
    "dies": _died,
    "is_killed": _killed,
}
