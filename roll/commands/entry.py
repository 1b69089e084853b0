"""The first and the last step of commands that run a file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from roll.config.load import LoadedRun


def load_checked(path: Path, overrides: list[str] | None, *, files: bool = True) -> LoadedRun:
    """The run in `path`, checked as far as possible before its start."""
    from roll.config.load import load
    from roll.preflight import preflight

    loaded = load(path, overrides or [])
    preflight(loaded, files=files)
    return loaded


def exit_unless_finished(work: Callable[[], bool]) -> None:
    """Call `work`, which returns whether it is finished; exit with the code of an interrupt if it is not."""
    try:
        finished = work()
    except KeyboardInterrupt:
        finished = False
    if not finished:
        from roll.pipelines.interrupt import INTERRUPTED

        raise typer.Exit(INTERRUPTED)
