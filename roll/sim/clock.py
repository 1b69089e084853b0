"""An event loop whose clock is virtual: when nothing is left to do, time jumps to the next timer."""

from __future__ import annotations

import asyncio
import selectors
import time
from collections.abc import Coroutine, Generator
from contextlib import contextmanager
from typing import Any, TypeVar

from roll.errors import RunStopped

T = TypeVar("T")


class VirtualLoop(asyncio.SelectorEventLoop):
    """Time is what its timers say, and nothing is ever waited for.

    With `charge_cpu`, the CPU time of each turn of the loop counts as well: the controller is one thread, and while it
    computes it serves nobody. `elsewhere` leaves out what in reality another machine does, `spend` adds what is not
    computed here but would keep the controller busy.
    """

    def __init__(self, *, charge_cpu: bool = False, last_chance_s: float = 5.0) -> None:
        self._now = 0.0
        self._debt_s = 0.0
        self._began = time.thread_time()
        self.charge_cpu = charge_cpu
        self.busy_s = 0.0
        """Virtual seconds in which the controller was busy."""
        self.last_chance_s = last_chance_s
        """Real seconds in which a thread may still wake a loop that has no timer."""
        super().__init__(_Jump(self))

    def time(self) -> float:
        """Virtual seconds since the loop was made."""
        return self._now

    def spend(self, seconds: float) -> None:
        """Keep the controller busy for so long."""
        self._debt_s += seconds

    @contextmanager
    def elsewhere(self) -> Generator[None]:
        """What this block computes is not the controller's work."""
        if not self.charge_cpu:
            yield
            return
        began = time.thread_time()
        yield
        self._debt_s -= time.thread_time() - began

    def settle(self) -> None:
        """Let the time pass that the controller was busy since `begin`."""
        if self.charge_cpu:
            self._debt_s += time.thread_time() - self._began
        if self._debt_s > 0:
            self._now += self._debt_s
            self.busy_s += self._debt_s
        self._debt_s = 0.0

    def begin(self) -> None:
        """The controller's work of this turn begins now."""
        if self.charge_cpu:
            self._began = time.thread_time()

    def jump(self, when: float) -> None:
        """Nothing happens until then."""
        self._now = max(self._now, when)


class _Jump(selectors.DefaultSelector):
    """Looks at files without waiting; where the loop would wait, its clock moves on instead."""

    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        due = self._loop.time() + (timeout or 0.0)
        self._loop.settle()
        ready = super().select(0)
        if not ready and timeout is None:
            ready = super().select(self._loop.last_chance_s)
            if not ready:
                raise RunStopped("simulation: everything waits for something that will never come; see who waits")
        if not ready:
            self._loop.jump(due)
        self._loop.begin()
        return ready


def run_virtual(main: Coroutine[Any, Any, T], loop: VirtualLoop) -> T:
    """What `main` returns, on this loop, which is closed afterwards."""
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        return runner.run(main)
