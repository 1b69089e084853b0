"""The faults that are injected into a process, from outside or at a place in its code."""

from __future__ import annotations

import signal
import threading
import time
from pathlib import Path

from roll.cluster.process_tree import TrackedProcess, send_signal
from roll.commands.chaos.workers import AGENT, CONTROLLER, TRANSFER, Target
from roll.planted import plant

KILL, STOP, EXCEPTION, SLOW = FAULTS = ("KILL", "STOP", "exception", "slow")
_SIGNALS = {KILL: signal.SIGKILL, STOP: signal.SIGSTOP}
_PLACES = {CONTROLLER: "record", "reward": "score", "environment": "step"}
"""Where an exception is raised; in other kinds at the next call of the worker."""
_STOPPED_S, _RUNNING_S = 0.09, 0.01
"""A slowed process is stopped and runs in turns of these lengths: ten times slower."""
_MET_S, _TICK_S = 30.0, 0.01
"""Seconds that a process has to get to the place of its fault."""


def inject(target: Target, fault: str, *, name: str, folder: Path, slow_s: float) -> float | None:
    """The time just before the fault; None if the process ended before, or did not get to the place of the fault.

    `name` is the text of an exception, and `folder` the one in which processes of the run look for planted faults.
    """
    process, now = target.process, time.time()
    if target.kind == TRANSFER:
        planted = {EXCEPTION: name, SLOW: STOP}.get(fault, fault)
        met = _meet(process, folder, "send" if target.sends else "receive", planted)
        return met if met is not None and (fault != SLOW or _slow_down(process, slow_s)) else None
    if fault == SLOW:
        return now if _slow_down(process, slow_s) else None
    if fault != EXCEPTION:
        return now if send_signal(process, _SIGNALS[fault]) else None
    if target.kind == AGENT:
        return now if send_signal(process, signal.SIGINT) else None  # Python raises `KeyboardInterrupt`
    return _meet(process, folder, _PLACES.get(target.kind, "call"), name)


def _meet(process: TrackedProcess, folder: Path, place: str, planted: str) -> float | None:
    """The last time at which a planted fault was not met yet; None if it is not met at all."""
    before, deadline = time.time(), time.monotonic() + _MET_S
    path = plant(folder, process.pid, place, planted)
    while True:
        now = time.time()
        if not path.exists():
            return before
        if not process.alive or time.monotonic() > deadline:
            path.unlink(missing_ok=True)
            return None
        before = now
        time.sleep(_TICK_S)


def _slow_down(process: TrackedProcess, slow_s: float) -> bool:
    """Stop and continue the process in turns, from another thread, which leaves it running."""

    def take_turns() -> None:
        deadline = time.monotonic() + slow_s
        while time.monotonic() < deadline and send_signal(process, signal.SIGSTOP):
            time.sleep(_STOPPED_S)
            if not send_signal(process, signal.SIGCONT):
                break
            time.sleep(_RUNNING_S)
        send_signal(process, signal.SIGCONT)

    if not process.alive:
        return False
    threading.Thread(target=take_turns, daemon=True).start()
    return True
