"""`roll plan`: the best use of a cluster for a run, and the check of its predictions."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from roll.commands.options import Overrides
from roll.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    from roll.plan.plan import PlanRequest
    from roll.plan.search import Goal


def plan(  # noqa: PLR0913 - one parameter per option
    path: Annotated[
        Path | None, typer.Argument(metavar="[RUN.YAML]", help="Configuration file of the run.", show_default=False)
    ] = None,
    overrides: Overrides = None,
    cluster: Annotated[
        str | None, typer.Option("--cluster", metavar="8x8xH200", help="The devices: NODESxDEVICESxKIND.")
    ] = None,
    source: Annotated[
        Path | None, typer.Option("--from", metavar="DIRECTORY", help="A recorded run of this model.")
    ] = None,
    recorded_on: Annotated[
        str | None, typer.Option("--recorded-on", metavar="1x8xH200", help="Its devices, if they are others.")
    ] = None,
    budget: Annotated[
        int | None, typer.Option("--budget", metavar="GPUS", help="Most devices, which are GPU hours per hour.")
    ] = None,
    goal: Annotated[str, typer.Option("--goal", help="fastest, or cheapest in GPU hours per step.")] = "fastest",
    max_staleness: Annotated[float, typer.Option("--max-staleness", help="Most steps of staleness.")] = 2.0,
    lengths: Annotated[
        str | None, typer.Option("--lengths", metavar="MEDIAN:SIGMA", help="Tokens per response, log-normal.")
    ] = None,
    output: Annotated[Path | None, typer.Option("--output", help="Write the best as a run file.")] = None,
    check: Annotated[
        Path | None, typer.Option("--check", metavar="DIRECTORY", help="Compare a run with its prediction.")
    ] = None,
) -> None:
    """Find the best placement and schedule for a run on a cluster, by simulation; or check a run's prediction."""
    if check is not None:
        if path is not None:
            raise ConfigError("roll plan: --check reads a run that has ended, not a file; leave one of them out")
        _check(check, source)
        return
    if path is None or cluster is None:
        raise ConfigError("roll plan: needs a run file and --cluster, such as --cluster 8x8xH200; or --check runs/x")
    from roll.plan.plan import PlanRequest

    request = PlanRequest(
        path=path,
        overrides=overrides or (),
        cluster=cluster,
        source=source,
        recorded_on=recorded_on,
        budget=budget,
        goal=_goal(goal),
        max_staleness=max_staleness,
        lengths=lengths,
    )
    _search(request, output)


def _check(directory: Path, source: Path | None) -> None:
    from roll.plan.check import check_run_plan, format_check

    typer.echo(format_check(check_run_plan(directory, source)))


def _goal(text: str) -> Goal:
    from roll.plan.search import GOALS

    chosen: Goal | None = next((each for each in GOALS if each == text), None)
    if chosen is None:
        raise ConfigError(f"--goal: no goal named {text!r}{did_you_mean(text, GOALS)}; give fastest or cheapest")
    return chosen


def _search(request: PlanRequest, output: Path | None) -> None:
    """Search, print the plan, and write it."""
    from roll.plan.plan import check_output, format_plan, make_plan, write_plan
    from roll.tracking.progress import bar

    if request.budget is not None and request.budget < 1:
        raise ConfigError(f"--budget: at least one device is needed (got {request.budget}); give more")
    if output is not None:
        check_output(output)
    with bar(40, "simulated candidates") as advance:
        result = make_plan(request, advance)
    typer.echo(format_plan(result))
    if output is not None:
        write_plan(result, output)
        typer.echo(f"\nplan: {output}")
