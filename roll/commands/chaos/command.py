"""`roll chaos`: train while processes of the run are killed or stopped at random times; then verify the run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from roll.errors import ConfigError


def chaos(  # noqa: PLR0913 - one parameter per option
    path: Annotated[Path, typer.Argument(metavar="RUN.YAML", help="Configuration file of the run.")],
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="KEY.SUB=VALUE", help="Overrides a key of the file.")
    ] = None,
    kill: Annotated[str, typer.Option("--kill", help="Kinds of processes, such as generator,reward.")] = "generator",
    every: Annotated[float, typer.Option("--every", help="Mean seconds between two faults.", min=0.1)] = 60.0,
    signal_name: Annotated[str, typer.Option("--signal", help="KILL, STOP, or both: KILL,STOP.")] = "KILL",
    seed: Annotated[int, typer.Option("--seed", help="Seed of times, kinds and workers.")] = 0,
    faults: Annotated[
        int | None, typer.Option("--faults", help="End the run after the recovery from this many faults.", min=1)
    ] = None,
    limit: Annotated[float, typer.Option("--limit", help="Seconds after which the run is ended.", min=1)] = 3600.0,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Delete the earlier run of the same name.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object instead of the summary.")] = False,
) -> None:
    """Train while processes of the run are killed or stopped at random times; then verify the run."""
    import msgspec

    from roll.commands.chaos.outcome import ChaosPlan, format_chaos
    from roll.commands.chaos.run import SIGNALS, run_chaos
    from roll.commands.chaos.workers import KINDS

    plan = ChaosPlan(
        kinds=_names("--kill", kill, KINDS),
        every_s=every,
        signals=_names("--signal", signal_name, tuple(SIGNALS)),
        seed=seed,
        num_faults=faults,
        limit_s=limit,
    )
    report = run_chaos(path, overrides or [], plan, overwrite=overwrite)
    typer.echo(msgspec.json.encode(asdict(report)).decode() if as_json else format_chaos(report))
    if report.violations:
        raise typer.Exit(1)


def _names(option: str, text: str, known: Sequence[str]) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    for name in names or ("",):
        if name not in known:
            raise ConfigError(f"{option}: unknown value {name!r}; give one or more of {', '.join(known)}")
    return names
