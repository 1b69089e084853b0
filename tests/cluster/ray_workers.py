"""Workers for the Ray tests; imported in Ray processes too, so without torch."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

from roll.errors import ConfigError, RewardFailed

if TYPE_CHECKING:
    import numpy as np
    import torch

    from roll.types import Batch


class Worker:
    def __init__(self, rank: int, *, bonus: int = 0) -> None:
        self.rank, self.bonus = rank, bonus
        self.woken, self.cancelled = asyncio.Event(), False
        sys.stdout.write(f"worker {rank} is here\n")

    async def add(self, number: int, *, twice: bool = False) -> int:
        return (self.rank + self.bonus + number) * (2 if twice else 1)

    async def pid(self) -> int:
        return os.getpid()

    async def wait(self) -> str:
        try:
            await self.woken.wait()
        except asyncio.CancelledError:
            self.cancelled = True
            raise
        return "woken"

    async def wake(self) -> None:
        self.woken.set()

    async def was_cancelled(self) -> bool:
        return self.cancelled

    async def fail(self, message: str) -> None:
        raise RewardFailed(message)

    async def stumble(self) -> float:
        return 1 / 0

    async def odd(self) -> object:
        return threading.Lock()

    async def die(self) -> None:
        sys.stdout.write("these are my last words\n")
        os.kill(os.getpid(), signal.SIGKILL)

    async def doubled(self, batch: Batch) -> dict[str, torch.Tensor]:
        """Writes into what it was given, then gives it back."""
        return {"ids": batch.ids.mul_(2), "rewards": batch.rewards.mul_(2), "trained": batch.trained}

    async def total(self, rows: np.ndarray[Any, Any]) -> int:
        """Writes into what it was given, after it has looked."""
        found = int(rows.sum())
        rows[:] = 0
        return found

    async def surroundings(self) -> tuple[str, str | None, str]:
        return os.getcwd(), os.environ.get("OMP_NUM_THREADS"), sys.path[0]

    async def gpus(self) -> str | None:
        return os.environ.get("CUDA_VISIBLE_DEVICES")


class Picky:
    """Only the first can be made, and the second says why it cannot once the first is there."""

    def __init__(self, rank: int, *, log: str) -> None:
        if rank:
            while not os.path.exists(log):
                time.sleep(0.01)
            raise ValueError("worker 1 lacks something\nof which there is more to say")


class Refused:
    def __init__(self, rank: int) -> None:
        raise ConfigError(f"worker {rank}: the file is wrong; change it")


class Starting:
    """Says that it is about to start, and never has."""

    def __init__(self, rank: int, *, folder: str) -> None:
        with open(f"{folder}/{os.getpid()}.pid", "w"):
            pass
        time.sleep(60)
