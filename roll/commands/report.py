"""`roll report`: the ledger of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def report(
    directory: Annotated[Path, typer.Argument(metavar="DIRECTORY", help="Directory of a run, such as runs/demo.")],
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object instead of tables.")] = False,
) -> None:
    """Account for every second, token, attempt and group of a run."""
    import msgspec

    from roll.report.journals import with_readable
    from roll.report.ledger import read_ledger
    from roll.report.report import format_report

    ledger = with_readable(directory, read_ledger)
    typer.echo(msgspec.json.encode(ledger).decode() if as_json else format_report(ledger, directory))
