"""An event loop on virtual time: when nothing is left to do, the clock jumps to the next timer."""

from __future__ import annotations

import asyncio
import selectors
import time
from collections.abc import Callable, Coroutine, Generator
from contextlib import contextmanager
from typing import Any, TypeVar

from roll.errors import RunStopped

T = TypeVar("T")


class VirtualLoop(asyncio.SelectorEventLoop):
    """Event loop whose time follows its timers, so that nothing really waits.

    With `charge_cpu`, the CPU time of each loop iteration counts as well: the controller is one thread, and while it
    computes it serves no one else. `elsewhere` excludes work that another machine does in reality; `spend` adds work
    that is not computed here but would keep the controller busy.
    """

    def __init__(self, *, charge_cpu: bool = False, last_chance_s: float = 5.0) -> None:
        self._now = 0.0
        self._debt_s = 0.0
        self._began = time.thread_time()
        self.charge_cpu = charge_cpu
        self.busy_s = 0.0
        """Virtual seconds in which the controller was busy."""
        self.last_chance_s = last_chance_s
        """Real seconds to wait for a thread to wake a loop without timers."""
        super().__init__(_Jump(self))

    def run_in_executor(self, executor: Any, func: Callable[..., T], *args: Any) -> asyncio.Future[T]:
        """Call the function here: a thread would take real time, in which the virtual clock advances by any amount."""
        future: asyncio.Future[T] = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:  # noqa: BLE001 - the caller raises any error
            future.set_exception(error)
        return future

    def time(self) -> float:
        """Virtual seconds since the loop was created."""
        return self._now

    def spend(self, seconds: float) -> None:
        """Keep the controller busy for some virtual seconds."""
        self._debt_s += seconds

    @contextmanager
    def elsewhere(self) -> Generator[None]:
        """Exclude the CPU time of this block from the controller's time."""
        if not self.charge_cpu:
            yield
            return
        began = time.thread_time()
        yield
        self._debt_s -= time.thread_time() - began

    def settle(self) -> None:
        """Advance the clock by the time that the controller was busy since `begin`."""
        if self.charge_cpu:
            self._debt_s += time.thread_time() - self._began
        if self._debt_s > 0:
            self._now += self._debt_s
            self.busy_s += self._debt_s
        self._debt_s = 0.0

    def begin(self) -> None:
        """Mark the start of the controller's work in this iteration."""
        if self.charge_cpu:
            self._began = time.thread_time()

    def jump(self, when: float) -> None:
        """Advance the clock to a time."""
        self._now = max(self._now, when)


class _Jump(selectors.DefaultSelector):
    """Selector that polls files without waiting; where the loop would wait, its clock advances."""

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
                raise RunStopped("simulation: deadlock, all tasks wait and no timer is left; see the waiting tasks")
        if not ready:
            self._loop.jump(due)
        self._loop.begin()
        return ready


def run_virtual(main: Coroutine[Any, Any, T], loop: VirtualLoop) -> T:
    """Run `main` on this loop, close the loop, and return the result."""
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        return runner.run(main)
