"""`roll sft`: supervised fine-tuning on the answers of a run's tasks, as a warm start."""

from __future__ import annotations

from contextlib import AsyncExitStack, closing
from pathlib import Path

import typer

from roll.commands.lifecycle import INTERRUPTED, report_screening, run_to_end, running
from roll.config.load import LoadedRun, dump
from roll.config.schema import Run
from roll.errors import ConfigError
from roll.journal.store import Journal
from roll.pipelines.interrupt import Interrupt
from roll.pipelines.sft import SftLoop
from roll.rollout.source import check_environments
from roll.tracking.directory import RunDirectory
from roll.tracking.sinks import read_lines
from roll.wiring.data import build_data
from roll.wiring.models import RunPaths, build_roles
from roll.wiring.run import (
    build_checkpointer,
    build_demonstrator,
    build_publisher,
    build_reporter,
    build_validator,
)
from roll.wiring.services import check_sandboxes

SUFFIX = "-sft"
"""Appended to the name of the run to name the directory of its SFT run."""


def sft(loaded: LoadedRun, *, overwrite: bool) -> None:
    """Train on answers; the model is written to `<run directory>-sft/model`."""
    run = loaded.run
    if run.policies:
        raise ConfigError(f"{loaded.where('policies')}: policies: SFT trains one model; remove them")
    check_sandboxes(loaded, training=False)
    path = Path(run.directory) / f"{run.name}{SUFFIX}"
    with closing(RunDirectory.create(path, overwrite=overwrite, resumable=False)) as directory:
        run_to_end(_sft(run, directory, origin=loaded.path.absolute()), directory)


async def _sft(run: Run, directory: RunDirectory, *, origin: Path) -> None:
    paths = RunPaths(directory=directory.path)
    roles = build_roles(run, run.sft.optimizer, run.sft.steps, supervised=True, paths=paths)
    data = build_data(run, run.sft.tasks or run.tasks, roles.template, roles.executor)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(running(roles, data.rewards, data.envs, data.proxy))
        await check_environments(data.envs, (*data.sources, *data.held_out), tools=roles.template.tool_form is not None)
        directory.begin(dump(run), origin)
        report_screening(data.screened, directory)
        interrupt = stack.enter_context(Interrupt())
        journal = stack.enter_context(closing(Journal(directory.journal)))
        reporter = stack.enter_context(closing(build_reporter(run, directory, steps=run.sft.steps)))
        loop = SftLoop(
            steps=run.sft.steps,
            batch_size=run.sft.batch_size,
            validate_every=run.sft.validate_every,
            stop_at=run.sft.stop_at_accuracy,
            max_seq_len=run.rollout.max_seq_len,
            mixture=data.mixture,
            sources={source.name: source for source in data.sources},
            demonstrator=build_demonstrator(run, roles.template),
            template=roles.template,
            trainers=roles.first.trainers,
            publisher=build_publisher(roles.first, journal),
            router=roles.first.router,
            validator=build_validator(run, roles, data.held_out),
            report=reporter,
            stopping=lambda: interrupt.requested,
        )
        steps = await loop.run()
        path = await build_checkpointer(run, directory, roles, journal).export()
    accuracies = [line["sft/accuracy"] for line in read_lines(directory.metrics) if "sft/accuracy" in line]
    reached = f" at held-out accuracy {accuracies[-1]:.3f}" if accuracies else ""
    typer.echo(f"SFT: {steps} steps{reached}; the model is in {path}")
    if interrupt.requested:
        raise typer.Exit(INTERRUPTED)
