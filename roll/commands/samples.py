"""`roll samples`: shows attempts of a run from its journal, as text, JSON lines or a page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from roll.errors import ConfigError


def samples(  # noqa: PLR0913 - one parameter per option
    directory: Annotated[Path, typer.Argument(metavar="DIRECTORY", help="Directory of a run, such as runs/demo.")],
    step: Annotated[int | None, typer.Option("--step", help="Only trajectories of this training step.")] = None,
    last: Annotated[int, typer.Option("--last", help="Number to show: the newest, or the first by --sort.", min=1)] = 5,
    domain: Annotated[str | None, typer.Option("--domain", help="Only tasks of this source.")] = None,
    attempt: Annotated[
        str | None, typer.Option("--attempt", metavar="GROUP.SIBLING,...", help="Only these attempts, all of them.")
    ] = None,
    status: Annotated[str | None, typer.Option("--status", help="Only this status, such as truncated.")] = None,
    sort: Annotated[
        str | None, typer.Option("--sort", metavar="[-]reward", help="Lowest reward first; -reward: highest first.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per line instead of text.")] = False,
    html: Annotated[Path | None, typer.Option("--html", help="Write a self-contained page to this file.")] = None,
) -> None:
    """Show sampled trajectories with references, rewards, comments, versions and reasons; also of a run in progress."""
    from roll.report.attempts import to_line
    from roll.report.journals import with_readable
    from roll.report.samples import SampleQuery, sample_rows, show, write_page

    query = SampleQuery(step=step, last=last, domain=domain, status=status, sort=sort, attempts=attempt)
    if html is not None and as_json:
        raise ConfigError("roll samples: --json and --html are two formats; leave one of them out")
    if html is not None:
        typer.echo(f"{with_readable(directory, lambda run: write_page(run, query, html))} attempts: {html}")
    elif as_json:
        for row in with_readable(directory, lambda run: list(sample_rows(run, query))):
            typer.echo(to_line(row), nl=False)
    else:
        for text in with_readable(directory, lambda run: list(show(run, query))):
            typer.echo(text)
