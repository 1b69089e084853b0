"""Wall time of whole processes that run `roll check` and `import roll`."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import typer

from benchmarks.result import Result
from roll.errors import ConfigError

REPEATS = 5
BOUND_S = 1.0
_EXAMPLE = Path("examples/arithmetic.yaml")


def run() -> Result:
    """Seconds of `roll check`: the median of five processes, against one second."""
    if not _EXAMPLE.is_file():
        raise ConfigError(f"{_EXAMPLE}: no such file; run this benchmark from the root of a clone")
    check_s = _median_s("roll check", [sys.executable, "-m", "roll.cli", "check", str(_EXAMPLE)])
    import_s = _median_s("import roll", [sys.executable, "-c", "import roll"])
    bare_s = _median_s("python alone", [sys.executable, "-c", "pass"])
    return Result(
        name="startup",
        unit="s",
        higher_is_better=False,
        ours=check_s,
        bound=BOUND_S,
        details={"import_roll_s": round(import_s, 3), "python_alone_s": round(bare_s, 3)},
    )


def _median_s(label: str, command: Sequence[str]) -> float:
    median = statistics.median(_seconds(command) for _ in range(REPEATS))
    typer.echo(f"{label}: {median:.3f} s")
    return median


def _seconds(command: Sequence[str]) -> float:
    began = time.perf_counter()
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - began
