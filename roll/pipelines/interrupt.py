"""SIGINT or SIGTERM once: finish the step, write a checkpoint, exit. Twice: abandon the step, still resumable.

| call | waits for | woken by |
|---|---|---|
| first signal (`step`) | the end of the step | 80 % of `grace_s`, which acts like a second signal |
| second signal | the ends of tasks, workers and services | `EXIT_S` later `exit_now` ends the process |

Python handles signals in the main thread only; elsewhere, entering an `Interrupt` has no effect.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from functools import partial
from threading import Timer, current_thread, main_thread
from types import FrameType
from typing import Any, Literal

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
"""Cluster schedulers send SIGTERM before they kill."""
_GRACE_PART = 0.8
"""Fraction of the grace time for the step in hand; the rest is for the end of the process."""
EXIT_S = 10.0
"""Most seconds from the abandonment of a step to the end of the process."""
INTERRUPTED = 130
"""The exit code that shells use for Ctrl-C."""


class Interrupt:
    """While entered, the first signal sets `requested` and the second raises `KeyboardInterrupt`.

    With `mode` now, the first one raises. `exit_now` runs if the process still exists `EXIT_S` seconds after that: code
    that blocks a thread would keep it alive. None: the process belongs to others and is never ended.
    """

    def __init__(
        self,
        *,
        mode: Literal["step", "now"] = "step",
        grace_s: float | None = None,
        exit_now: Callable[[], object] | None = lambda: os._exit(INTERRUPTED),
    ) -> None:
        self.requested = False
        self.exit_now = exit_now
        self._mode, self._grace_s = mode, grace_s
        self._abandoned = False
        self._deadline: Timer | None = None
        self._before: list[Any] = []

    def __enter__(self) -> Interrupt:
        if current_thread() is main_thread():
            self._before = [signal.signal(number, self._on_signal) for number in _SIGNALS]
        return self

    def __exit__(self, *_: object) -> None:
        if current_thread() is not main_thread():
            return
        if self._deadline is not None:
            self._deadline.cancel()
        for number, before in zip(_SIGNALS, self._before, strict=True):
            signal.signal(number, before)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._abandoned:
            return  # the process is ending already
        if self.requested or self._mode == "now":
            self._abandoned = True
            if self.exit_now is not None:
                _start_timer(EXIT_S, self.exit_now)
            raise KeyboardInterrupt
        self.requested = True
        limit = ""
        if self._grace_s is not None:
            limit = f" (at the latest in {_GRACE_PART * self._grace_s:g} s)"
            repeat = partial(os.kill, os.getpid(), signal.SIGTERM)
            self._deadline = _start_timer(_GRACE_PART * self._grace_s, repeat)
        again = "press Ctrl-C again" if number == signal.SIGINT else "send the signal again"
        sys.stderr.write(f"finishing this step, then exiting{limit}; {again} to exit at once\n")


def _start_timer(seconds: float, call: Callable[[], object]) -> Timer:
    timer = Timer(seconds, call)
    timer.daemon = True
    timer.start()
    return timer
