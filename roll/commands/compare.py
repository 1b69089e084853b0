"""`roll compare`: one run before and after training, or several runs side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from roll.errors import ConfigError


def compare(
    directories: Annotated[
        list[Path], typer.Argument(metavar="DIRECTORY...", help="Directories of runs, such as runs/a runs/b.")
    ],
    tasks: Annotated[int, typer.Option("--tasks", help="Number of tasks to show responses of.", min=0)] = 3,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object instead of tables.")] = False,
    html: Annotated[Path | None, typer.Option("--html", help="Write a self-contained page to this file.")] = None,
) -> None:
    """Compare runs: curves, final numbers, config keys that differ, responses before and after training."""
    from roll.report.attempts import to_line, write_file
    from roll.report.compare import compare_runs
    from roll.report.compare_page import comparison_page, format_comparison

    if html is not None and as_json:
        raise ConfigError("roll compare: --json and --html are two formats; leave one of them out")
    comparison = compare_runs(directories, tasks)
    if html is not None:
        write_file(html, comparison_page(comparison), option="--html")
        typer.echo(f"comparison: {html}")
    elif as_json:
        typer.echo(to_line(comparison.to_json()), nl=False)
    else:
        typer.echo(format_comparison(comparison))
