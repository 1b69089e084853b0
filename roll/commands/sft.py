"""`roll sft`: supervised fine-tuning on the answers of a run's tasks, as a warm start."""

from __future__ import annotations

from contextlib import AsyncExitStack, closing
from functools import partial
from pathlib import Path

from roll.commands.lifecycle import interrupt_of, report_screening, run_to_end, running
from roll.config.load import LoadedRun, dump
from roll.config.schema import Run
from roll.data.answer_rows import AnswerEncoder
from roll.data.templates import Template
from roll.errors import ConfigError
from roll.journal.store import Journal
from roll.monitoring.server import MetricsServer
from roll.pipelines.interrupt import Interrupt
from roll.pipelines.sft import SftLoop
from roll.rollout.source import check_environments
from roll.tracking.directory import RunDirectory
from roll.tracking.log import Terminal, announce
from roll.tracking.sinks import read_lines
from roll.wiring.data import build_data
from roll.wiring.models import RunPaths, build_roles
from roll.wiring.monitoring import build_metrics_server
from roll.wiring.run import (
    build_checkpointer,
    build_demonstrator,
    build_publisher,
    build_reporter,
    build_validator,
    build_watch,
)
from roll.wiring.services import check_sandboxes

SUFFIX = "-sft"
"""Appended to the name of the run to name the directory of its SFT run."""


def sft(loaded: LoadedRun, *, overwrite: bool) -> bool:
    """Train on answers; the model is written to `<run directory>-sft/model`. False if an interrupt ended it early."""
    run = loaded.run
    if run.policies:
        raise ConfigError(f"{loaded.where('policies')}: policies: SFT trains one model; remove them")
    check_sandboxes(loaded, training=False)
    path = Path(run.directory) / f"{run.name}{SUFFIX}"
    with closing(RunDirectory.create(path, overwrite=overwrite, resumable=False)) as directory:
        interrupt = interrupt_of(run, directory)
        with closing(build_metrics_server(run, directory.path.name, run.sft.steps)) as server:
            work = partial(_sft, run, directory, loaded.path.absolute(), interrupt, server)
            run_to_end(work, directory, interrupt, run)
    return not interrupt.requested


async def _sft(
    run: Run,
    directory: RunDirectory,
    origin: Path,
    interrupt: Interrupt,
    server: MetricsServer,
    terminal: Terminal,
) -> None:
    monitor = server.start()
    paths = RunPaths(directory=directory.path)
    roles = build_roles(run, run.sft.optimizer, run.sft.steps, supervised=True, paths=paths)
    tasks = run.sft.tasks or run.tasks
    data = build_data(run, tasks, roles.template, roles.executor, draws_per_step=run.sft.batch_size)
    async with AsyncExitStack() as stack:
        watch = monitor.watch = stack.enter_context(build_watch(run, roles, data))
        watch.enter("start")
        await stack.enter_async_context(running(roles, data.rewards, data.envs, data.proxy))
        await check_environments(data.envs, (*data.sources, *data.held_out), tools=roles.template.tool_form is not None)
        directory.begin(dump(run), origin)
        report_screening(data.screened, directory)
        stack.enter_context(interrupt)
        journal = stack.enter_context(closing(Journal(directory.journal)))
        monitor.attach(journal)
        sinks = (monitor.steps, terminal.origin)
        reporter = stack.enter_context(closing(build_reporter(run, directory, steps=run.sft.steps, sinks=sinks)))
        stack.enter_context(terminal.showing(reporter.show))
        loop = SftLoop(
            steps=run.sft.steps,
            batch_size=run.sft.batch_size,
            validate_every=run.sft.validate_every,
            stop_at=run.sft.stop_at_accuracy,
            encoder=_encoder(run, roles.template),
            mixture=data.mixture,
            sources={source.name: source for source in data.sources},
            demonstrator=build_demonstrator(run, roles.template),
            trainers=roles.first.trainers,
            publisher=build_publisher(roles.first, journal),
            router=roles.first.router,
            validator=build_validator(run, roles, data.held_out),
            report=reporter,
            stopping=lambda: interrupt.requested,
            on_phase=watch.enter,
        )
        steps = await loop.run()
        path = await build_checkpointer(run, directory, roles, journal).export()
    _announce_result(directory, steps, path)
    if interrupt.requested:
        announce(f"interrupted after step {steps} of {run.sft.steps}; repeat it with `roll sft ... --overwrite`")


def _encoder(run: Run, template: Template) -> AnswerEncoder:
    every_turn = run.sft.target == "all"
    return AnswerEncoder(template=template, max_seq_len=run.rollout.max_seq_len, every_turn=every_turn, purpose="SFT")


def _announce_result(directory: RunDirectory, steps: int, model: Path) -> None:
    lines = read_lines(directory.metrics)
    accuracies = [line["sft/accuracy"] for line in lines if "sft/accuracy" in line]
    num_turns, num_tokens = (sum(line[f"sft/{name}"] for line in lines) for name in ("turns", "tokens"))
    reached = f", held-out accuracy {accuracies[-1]:.3f}" if accuracies else ""
    trained = f"{steps} steps on {num_turns:,.0f} turns with {num_tokens:,.0f} tokens"
    announce(f"SFT: {trained}{reached}; the model is in {model}")
