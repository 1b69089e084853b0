"""What `roll explain` says about a run, from a separate process: user code in it cannot harm the server."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from roll.errors import one_line

_TIMEOUT_S = 120.0
_MAX_CHARS = 200_000


class Explanations:
    """Explanations by configuration, each computed once, one at a time."""

    def __init__(self) -> None:
        self._results: dict[tuple[Path, int], dict[str, Any]] = {}
        self._lock, self._one = threading.Lock(), threading.Lock()

    def request(self, config: Path) -> dict[str, Any]:
        """The state of the explanation; the first request starts it."""
        try:
            key = config, config.stat().st_mtime_ns
        except OSError as error:
            return _result(error=f"config.yaml: cannot be read ({error.strerror}); the run has not begun")
        with self._lock:
            if key in self._results:
                return self._results[key]
            self._results[key] = {"state": "computing", "text": None, "error": None}
            threading.Thread(target=self._compute, args=(key,), name="explain", daemon=True).start()
            return self._results[key]

    def _compute(self, key: tuple[Path, int]) -> None:
        with self._one:
            result = explain(key[0])
        with self._lock:
            self._results[key] = result


def explain(config: Path) -> dict[str, Any]:
    """The text of `roll explain` for a file, or the reason why there is none."""
    command = [sys.executable, "-m", "roll", "explain", str(config.absolute())]
    environment = {**os.environ, "COLUMNS": "120", "NO_COLOR": "1"}
    try:
        done = subprocess.run(
            command, capture_output=True, timeout=_TIMEOUT_S, env=environment, stdin=subprocess.DEVNULL, check=False
        )
    except subprocess.TimeoutExpired:
        return _result(error=f"roll explain: no answer for {_TIMEOUT_S:g} s; run it in a terminal")
    except OSError as error:
        return _result(error=f"roll explain: not started ({error.strerror}); run it in a terminal")
    text = done.stdout.decode("utf-8", "replace")[:_MAX_CHARS]
    if done.returncode == 0:
        return _result(text=text)
    lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
    # a refusal has one line per fault; a bug has a traceback, whose last line names it
    shown = lines[:1] if done.returncode == 2 else lines[-1:]
    return _result(error=one_line(shown[0]) if shown else f"roll explain: exit code {done.returncode}")


def _result(*, text: str | None = None, error: str | None = None) -> dict[str, Any]:
    return {"state": "done", "text": text, "error": error}
