"""`roll timeline`: the trace of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from roll.commands.options import Directory


def timeline(
    directory: Directory,
    output: Annotated[Path, typer.Option("--output", help="Output file; .svg draws a picture.")] = Path("trace.json"),
    steps: Annotated[str | None, typer.Option("--steps", help="Only these training steps, such as 10:12.")] = None,
) -> None:
    """Write a run as a trace for ui.perfetto.dev or chrome://tracing."""
    from roll.report.timeline import write

    typer.echo(f"{write(directory, output, steps)} attempts: {output}")
