"""Faults at a named place in the code of a process, where `roll chaos` has planted them.

Only processes with the environment variable ROLL_CHAOS look for them: it is a folder with one file per fault.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

VARIABLE = "ROLL_CHAOS"
_FOLDER = os.environ.get(VARIABLE)
_SIGNALS = {"KILL": signal.SIGKILL, "STOP": signal.SIGSTOP}


def plant(folder: Path, pid: int, place: str, fault: str) -> Path:
    """Plant a fault: KILL, STOP, or the text of an exception. Its file is gone once the process has met it."""
    path, written = folder / f"{pid} {place}", folder / f".{pid} {place}"
    written.write_text(fault, encoding="utf-8")
    written.rename(path)
    return path


def fail_if_planted(*places: str) -> None:
    """Raise an exception, or kill or stop this process, if that is planted at one of these places."""
    if _FOLDER is not None:
        for place in places:
            _meet(Path(_FOLDER) / f"{os.getpid()} {place}")


def _meet(path: Path) -> None:
    try:
        fault = path.read_text(encoding="utf-8")
        path.unlink()
    except OSError:
        return
    if fault in _SIGNALS:
        os.kill(os.getpid(), _SIGNALS[fault])
    else:
        raise RuntimeError(fault)
