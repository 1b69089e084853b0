"""`roll audit`: tries references and known cheats on the rewards of a run before it is trained."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

audits = typer.Typer(help="Audit the parts of a run before training.", no_args_is_help=True)


def rewards(
    path: Annotated[Path, typer.Argument(metavar="RUN.YAML", help="Configuration file of the run.")],
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="KEY.SUB=VALUE", help="Overrides a key of the file.")
    ] = None,
    rows: Annotated[int, typer.Option("--rows", help="Tasks per source, evenly spaced.", min=1)] = 50,
    all_rows: Annotated[bool, typer.Option("--all-rows", help="All tasks of every source.")] = False,
    costly: Annotated[bool, typer.Option("--all", help="Also rewards that call a model or a service.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON list instead of tables.")] = False,
) -> None:
    """Try references and known cheats on every reward of a run; exits with code 1 if there are findings."""
    from roll.commands.reward_audit import audit_run, format_audits, to_json
    from roll.config.load import load
    from roll.preflight import preflight
    from roll.wiring.services import check_sandboxes

    loaded = load(path, overrides or [])
    preflight(loaded, models=False)
    check_sandboxes(loaded)
    outcomes = audit_run(loaded.run, num=None if all_rows else rows, costly=costly)
    typer.echo(to_json(outcomes) if as_json else format_audits(outcomes))
    if any(outcome.findings for outcome in outcomes):
        raise typer.Exit(1)
