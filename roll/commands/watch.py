"""`roll watch`: a page in the browser that shows a run, or a folder of runs, live and after their end."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def watch(
    directory: Annotated[
        Path,
        typer.Argument(metavar="DIRECTORY", help="Directory of a run, such as runs/demo, or of many, such as runs."),
    ] = Path("runs"),
    port: Annotated[int, typer.Option("--port", help="Port of the page; 0: any free one.", min=0, max=65535)] = 0,
    host: Annotated[str, typer.Option("--host", help="Address to listen on: of this machine only.")] = "127.0.0.1",
    open_browser: Annotated[bool, typer.Option("--open/--no-open", help="Open the page in the browser.")] = True,
) -> None:
    """Show runs in the browser: curves, samples, workers, versions, faults. Only reads; Ctrl-C ends it."""
    from roll.watch.command import serve

    serve(directory, host=host, port=port, open_browser=open_browser, echo=typer.echo)
