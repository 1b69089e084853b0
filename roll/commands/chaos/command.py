"""`roll chaos`: train while processes of the run are killed, stopped, slowed or raise exceptions; then verify it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from roll.commands.options import HANG_TIMEOUT_S, HangTimeout
from roll.errors import ConfigError


def chaos(  # noqa: PLR0913 - one parameter per option
    path: Annotated[Path, typer.Argument(metavar="RUN.YAML", help="Configuration file of the run.")],
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="KEY.SUB=VALUE", help="Overrides a key of the file.")
    ] = None,
    kill: Annotated[str, typer.Option("--kill", help="Kinds of processes, such as generator,reward.")] = "generator",
    every: Annotated[float, typer.Option("--every", help="Mean seconds between two faults.", min=0.1)] = 60.0,
    fault: Annotated[str, typer.Option("--fault", help="KILL, STOP, exception, slow, or some: KILL,STOP.")] = "KILL",
    seed: Annotated[int, typer.Option("--seed", help="Seed of times, kinds and workers.")] = 0,
    num_faults: Annotated[
        int | None, typer.Option("--faults", help="End the run after the recovery from this many faults.", min=1)
    ] = None,
    limit: Annotated[float, typer.Option("--limit", help="Seconds after which the run is ended.", min=1)] = 3600.0,
    hang_timeout: HangTimeout = HANG_TIMEOUT_S,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Delete the earlier run of the same name.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object instead of the summary.")] = False,
) -> None:
    """Train while processes of the run fail at random times: killed, stopped, slow, by exceptions; then verify it."""
    import msgspec

    from roll.commands.chaos.faults import FAULTS
    from roll.commands.chaos.outcome import ChaosPlan, format_chaos
    from roll.commands.chaos.run import run_chaos
    from roll.commands.chaos.workers import KINDS

    plan = ChaosPlan(
        kinds=_names("--kill", kill, KINDS),
        every_s=every,
        faults=_names("--fault", fault, FAULTS),
        seed=seed,
        num_faults=num_faults,
        limit_s=limit,
        hang_timeout_s=hang_timeout,
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
