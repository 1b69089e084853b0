"""`roll verify`: the invariants of a run, checked from its files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def verify(
    directory: Annotated[Path, typer.Argument(metavar="DIRECTORY", help="Directory of a run, such as runs/demo.")],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY.SUB=VALUE", help="Overrides that the run was resumed with."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object instead of a table.")] = False,
) -> None:
    """Check a finished, running or broken run: nothing trained twice, nothing lost. Exit code 1: violations."""
    import msgspec

    from roll.report.verify import format_verification
    from roll.report.verify import verify as verify_run

    verification = verify_run(directory, overrides or [])
    typer.echo(msgspec.json.encode(verification).decode() if as_json else format_verification(verification))
    if verification.violations:
        raise typer.Exit(1)
