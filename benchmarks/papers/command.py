"""`roll bench paper`: list the experiments, or run one and write its picture, numbers and table."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import typer

from benchmarks.papers.figure import Experiment, Figure, Report, write
from benchmarks.papers.page import rewrite
from benchmarks.result import Result
from roll.registry import Table

DOCS = Path(__file__).parents[2] / "docs"
EXPERIMENTS = {
    "gpus": Experiment(
        run="benchmarks.papers.scaling:over_gpus",
        about="asynchronous against synchronous training over the number of GPUs",
    ),
    "batch_size": Experiment(
        run="benchmarks.papers.scaling:over_batch_sizes",
        about="asynchronous against synchronous training over rollout batch sizes, for long and short responses",
    ),
    "ratio": Experiment(
        run="benchmarks.papers.scaling:over_ratios",
        about="step time over the split of 40 GPUs between generation and training",
    ),
    "queue": Experiment(
        run="benchmarks.papers.queueing:queue",
        about="queue scheduling with filtered and redundant prompts, against rollout in batches",
    ),
    "replication": Experiment(
        run="benchmarks.papers.queueing:replication",
        about="prompt replication: siblings as separate requests, against one request per prompt",
    ),
    "environments": Experiment(
        run="benchmarks.papers.environments:asynchrony",
        about="environment-level asynchrony over mean and spread of Gaussian latencies",
    ),
    "redundancy": Experiment(
        run="benchmarks.papers.environments:redundancy",
        about="redundant environment rollout over additional groups and siblings, with slow environments",
    ),
    "algorithms": Experiment(
        run="benchmarks.papers.algorithms:stability",
        about="off-policy algorithms under asynchrony: a small model that really trains (minutes)",
    ),
}
_RUNS: Table[Callable[[Report], Figure]] = Table(
    "experiment of the papers", 1, others_give=False, **{name: each.run for name, each in EXPERIMENTS.items()}
)


def main(name: str | None, docs: Path = DOCS) -> None:
    """Run the experiment `name` and write its files; None lists all."""
    if name is None:
        width = max(len(each) for each in EXPERIMENTS)
        for each, experiment in EXPERIMENTS.items():
            typer.echo(f"{each:<{width}}  {experiment.about}")
        return
    record(docs, name, measure(name))


def record(docs: Path, name: str, figure: Figure) -> None:
    """Write picture, numbers and table of an experiment, and say which claims it shows."""
    write(docs / "papers", name, figure)
    rewrite(docs / "papers.md", name, figure)
    for claim in figure.claims:
        typer.echo(f"{'shown' if claim.shown else 'not shown'}: {claim.text}")
    typer.echo(f"written: {docs / 'papers' / name}.svg, {name}.json, and its table in {docs / 'papers.md'}")


def measure(name: str) -> Figure:
    """Run one experiment; prints a line for each run."""
    return _RUNS[name](typer.echo)


def run() -> Result:
    """Claims of the papers that the experiments show, against all claims; writes nothing."""
    figures = {name: measure(name) for name in EXPERIMENTS}
    claims = [claim for figure in figures.values() for claim in figure.claims]
    return Result(
        name="paper",
        unit="claims shown",
        higher_is_better=True,
        ours=sum(claim.shown for claim in claims),
        bound=len(claims),
        details={"not_shown": [claim.text for claim in claims if not claim.shown]},
    )
