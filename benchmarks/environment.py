"""Virtual environments for peers whose packages should not mix with ours. Made once, then kept in the user's cache."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

_REASON_LENGTH = 300


class Unavailable(Exception):
    """The peer cannot be installed here; the message says why."""


def cache_directory() -> Path:
    """Where environments are kept: under `XDG_CACHE_HOME`, else `~/.cache`."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "roll" / "bench"


def interpreter(directory: Path, requirements: Sequence[str]) -> Path:
    """The Python of an environment in `directory` that has `requirements`; made now if it is not there yet."""
    python, marker = directory / "bin" / "python", directory / "requirements.txt"
    wanted = "\n".join(requirements) + "\n"
    if python.exists() and marker.is_file() and marker.read_text(encoding="utf-8") == wanted:
        return python
    _run([sys.executable, "-m", "venv", "--clear", str(directory)])
    _run([str(python), "-m", "pip", "install", "--quiet", *requirements])
    marker.write_text(wanted, encoding="utf-8")  # last: an interrupted installation is begun again
    return python


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode != 0:
        said = [line for line in done.stdout.splitlines() if line.strip()]
        reason = next((line for line in said if line.startswith("ERROR")), said[-1] if said else "no output")
        raise Unavailable(f"`python {' '.join(command[1:4])}` failed: {reason[:_REASON_LENGTH]}")
