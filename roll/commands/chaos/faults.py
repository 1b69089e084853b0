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


def inject(target: Target, fault: str, *, name: str, folder: Path, slow_s: float) -> bool:
    """Whether the process has met the fault; False if it ended before, or did not get to the place of the fault.

    `name` is the text of an exception, and `folder` the one in which processes of the run look for planted faults.
    """
    process = target.process
    if target.kind == TRANSFER:
        planted = {EXCEPTION: name, SLOW: STOP}.get(fault, fault)
        place = "send" if target.sends else "receive"
        return _meets(process, folder, place, planted) and (fault != SLOW or _slow_down(process, slow_s))
    if fault == SLOW:
        return _slow_down(process, slow_s)
    if fault != EXCEPTION:
        return send_signal(process, _SIGNALS[fault])
    if target.kind == AGENT:
        return send_signal(process, signal.SIGINT)  # Python raises `KeyboardInterrupt`
    return _meets(process, folder, _PLACES.get(target.kind, "call"), name)


def _meets(process: TrackedProcess, folder: Path, place: str, planted: str) -> bool:
    path, deadline = plant(folder, process.pid, place, planted), time.monotonic() + _MET_S
    while path.exists():
        if not process.alive or time.monotonic() > deadline:
            path.unlink(missing_ok=True)
            return False
        time.sleep(_TICK_S)
    return True


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
