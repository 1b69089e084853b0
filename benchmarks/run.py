"""`roll bench`: list the benchmarks, run one, or run all that need no GPU and rewrite their page."""

from __future__ import annotations

from pathlib import Path

import typer

from benchmarks import page
from benchmarks.catalogue import BENCHMARKS, CATALOGUE
from benchmarks.papers import command
from roll.errors import ConfigError

ALL, PAPER = "all", "paper"
PAGE = Path("docs/benchmarks.md")


def main(name: str | None, experiment: str | None = None) -> None:
    """Run the benchmark `name` and print one JSON object as the last line; None lists all, "all" runs all.

    "paper" runs one `experiment` of the papers, or lists them.
    """
    if name == PAPER:
        command.main(experiment)
    elif experiment is not None:
        raise ConfigError(f"roll bench: only {PAPER} has experiments (got {name} {experiment}); leave out {experiment}")
    elif name is None:
        _list()
    elif name == ALL:
        _run_all(PAGE)
    else:
        typer.echo(BENCHMARKS[name]().to_json())


def _list() -> None:
    width = max(len(name) for name in CATALOGUE)
    for name, benchmark in CATALOGUE.items():
        typer.echo(f"{name:<{width}}  {benchmark.about} ({'needs a GPU' if benchmark.needs_gpu else 'no GPU needed'})")
    typer.echo(f"{ALL:<{width}}  every benchmark that needs no GPU; rewrites {PAGE}")


def _run_all(path: Path) -> None:
    page.read(path)  # an error in the page is reported before minutes of work
    results = [BENCHMARKS[name]() for name, benchmark in CATALOGUE.items() if not benchmark.needs_gpu]
    page.rewrite(path, results)
    for result in results:
        typer.echo(result.to_json())
