"""Virtual environments for peers, apart from our packages. Created once and cached in the user's cache directory."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

_REASON_LENGTH = 300


class Unavailable(Exception):
    """The peer cannot be installed here; the message has the reason."""


def cache_directory() -> Path:
    """The directory of all environments, under `XDG_CACHE_HOME` or `~/.cache`."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "roll" / "bench"


def interpreter(directory: Path, requirements: Sequence[str]) -> Path:
    """Path of the Python of an environment in `directory` with `requirements`, which is created if missing."""
    python, marker = directory / "bin" / "python", directory / "requirements.txt"
    expected = "\n".join(requirements) + "\n"
    if python.exists() and marker.is_file() and marker.read_text(encoding="utf-8") == expected:
        return python
    _run([sys.executable, "-m", "venv", "--clear", str(directory)])
    _run([str(python), "-m", "pip", "install", "--quiet", *requirements])
    marker.write_text(expected, encoding="utf-8")  # last, so that an interrupted installation is repeated
    return python


def _run(command: Sequence[str]) -> None:
    process = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if process.returncode != 0:
        lines = [line for line in process.stdout.splitlines() if line.strip()]
        reason = next((line for line in lines if line.startswith("ERROR")), lines[-1] if lines else "no output")
        raise Unavailable(f"`python {' '.join(command[1:4])}` failed: {reason[:_REASON_LENGTH]}")
