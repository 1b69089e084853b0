"""`roll dpo`: preference optimisation on pairs of responses or on labelled ones."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from contextlib import AsyncExitStack, closing
from dataclasses import asdict
from functools import partial
from pathlib import Path

import typer

from roll.checkpoint import IntactCheckpoint
from roll.commands.fetching import check_unused, mirror_url, newest_checkpoint
from roll.commands.lifecycle import interrupt_of, report_screening, run_to_end, running
from roll.commands.train import REFERENCE, from_checkpoint, has_ended
from roll.config.load import LoadedRun, dump, load
from roll.config.schema import Run
from roll.errors import ConfigError
from roll.journal.database import check_format, check_intact
from roll.journal.events import RolledBack, RunEnded, RunStarted
from roll.journal.store import Journal, Reader
from roll.monitoring.server import MetricsServer
from roll.pipelines.dpo import DpoLoop
from roll.pipelines.interrupt import Interrupt
from roll.pipelines.mirror import mirroring
from roll.preflight import importable, preflight
from roll.rollout.resume import check_same_run, read_checkpoint
from roll.rollout.source import check_environments
from roll.tracking.directory import RunDirectory
from roll.tracking.log import Terminal, announce
from roll.tracking.sinks import read_lines
from roll.wiring.data import build_data
from roll.wiring.models import RunPaths, build_roles
from roll.wiring.monitoring import build_metrics_server
from roll.wiring.preferences import (
    SUFFIX,
    PreferenceData,
    build_dpo_loop,
    build_preferences,
    build_scorers,
    preference_run,
    resume_state,
)
from roll.wiring.run import RunServices, build_checkpointer, build_reporter, build_watch
from roll.wiring.saved_optimizers import check_saved_optimizers
from roll.wiring.services import check_sandboxes


def dpo(loaded: LoadedRun, *, overwrite: bool, resume: bool = False, overrides: Sequence[str] = ()) -> bool:
    """Train on preferences; the model is written to `<run directory>-dpo/model`. False if an interrupt ended it early.

    With `resume`, the run in the directory continues if it has a checkpoint.
    """
    run = preference_run(loaded.run)
    check_sandboxes(loaded, training=False)
    path = Path(run.directory) / run.name
    if not overwrite and not resume:
        check_unused(run)
    with closing(RunDirectory.create(path, overwrite=overwrite or resume)) as directory:
        if resume and directory.config.is_file() and (newest := newest_checkpoint(run, path)) is not None:
            return _continue(directory, overrides, newest, loaded.run)
        return _run(loaded.run, directory, loaded.path.absolute(), None)


def is_dpo(path: Path) -> bool:
    """Whether this is the directory of a preference optimisation, and not of a run whose name ends like one."""
    config, name = path / "config.yaml", path.resolve().name
    if not name.endswith(SUFFIX) or not config.is_file():
        return False
    return load(config, resumed=True).run.name == name.removesuffix(SUFFIX)


def resume(path: Path, overrides: Sequence[str], *, plain: bool = True) -> bool:
    """Continue the run in a directory from its newest checkpoint; `plain`: without other options."""
    if not plain:
        raise ConfigError(f"{path}: preference optimisation takes neither --from nor --supervise; leave them out")
    with closing(RunDirectory.open(path)) as directory:
        run = preference_run(load(directory.config, overrides, resumed=True).run)
        if (newest := newest_checkpoint(run, path)) is None:
            raise ConfigError(f"{path}: no checkpoint to resume from; start again with `roll dpo ... --overwrite`")
        return _continue(directory, overrides, newest, None)


def _continue(directory: RunDirectory, overrides: Sequence[str], newest: IntactCheckpoint, file: Run | None) -> bool:
    """Continue with the configuration in the directory; refuses if `file`, the user's configuration, differs."""
    path = directory.path
    check_format(directory.journal)
    check_intact(directory.journal)
    importable(Path(directory.origin.read_text(encoding="utf-8")))
    loaded = load(directory.config, overrides, resumed=True)
    if changed := [key for key in Run.model_fields if file and getattr(file, key) != getattr(loaded.run, key)]:
        raise ConfigError(
            f"{path}: was started with other values of {', '.join(changed)}; change the file back, "
            f"give the new values on the command line (key=value), or change name="
        )
    steps = preference_run(loaded.run).steps
    if has_ended(directory, steps):
        typer.echo(f"{path}: all {steps} steps are done already; to train more, add dpo.steps=")
        return True
    with closing(Reader(directory.journal)) as journal:
        check_same_run(read_checkpoint(newest.path), journal)
    loaded = from_checkpoint(loaded, path, newest.path)
    preflight(loaded)
    check_saved_optimizers(preference_run(loaded.run), newest.path)
    check_sandboxes(loaded, training=False)
    return _run(loaded.run, directory, None, newest)


def _run(run: Run, directory: RunDirectory, origin: Path | None, checkpoint: IntactCheckpoint | None) -> bool:
    """Train to the end or to an interrupt; whether it was the end."""
    interrupt, steps = interrupt_of(run, directory), preference_run(run).steps
    with closing(build_metrics_server(run, directory.path.name, steps)) as server:
        work = partial(_dpo, run, directory, origin, checkpoint, interrupt, server)
        finished = run_to_end(work, directory, interrupt, run)
    if finished < steps:
        announce(f"interrupted after step {finished} of {steps}; resume with `roll resume {directory.path}`")
    else:
        _announce_result(directory, finished)
    return finished >= steps


async def _dpo(  # noqa: PLR0913 - bound by `partial`
    file: Run,
    directory: RunDirectory,
    origin: Path | None,
    checkpoint: IntactCheckpoint | None,
    interrupt: Interrupt,
    server: MetricsServer,
    terminal: Terminal,
) -> int:
    """A fresh run with the path of its file as `origin`, or a resumed one."""
    monitor, run = server.start(), preference_run(file)
    paths = RunPaths(directory=directory.path, resumed=origin is None)
    roles = build_roles(run, run.actor_train.optimizer, run.steps, paths=paths)
    data = build_data(run, run.tasks, roles.template, roles.executor)
    preferences = build_preferences(run, roles.template)
    async with AsyncExitStack() as stack:
        watch = monitor.watch = stack.enter_context(build_watch(run, roles, data))
        watch.enter("start")
        await stack.enter_async_context(running(roles, data.rewards, data.envs, data.proxy))
        await check_environments(data.envs, data.held_out, tools=roles.template.tool_form is not None)
        if origin is not None:
            directory.begin(dump(file), origin)
        report_screening(data.screened, directory)
        _report_dropped(preferences, directory)
        stack.enter_context(interrupt)
        journal = stack.enter_context(closing(Journal(directory.journal)))
        monitor.attach(journal)
        copy = await stack.enter_async_context(mirroring(directory.path, mirror_url(run)))
        checkpointer = build_checkpointer(run, directory, roles, journal, *copy)
        if origin is not None and roles.first.models.reference is not None and run.reference.path is None:
            await checkpointer.export(REFERENCE)  # a resumed run no longer has its initial weights
        watch.enter("score")
        scorers = await build_scorers(run, roles, preferences, directory.path, resumed=origin is None)
        saved = None if origin is not None else await checkpointer.restore(checkpoint)
        state = None if saved is None else resume_state(saved, journal)
        step = 0 if state is None else state.step
        sinks = (monitor.steps, terminal.origin)
        reporter = stack.enter_context(closing(build_reporter(run, directory, state, steps=run.steps, sinks=sinks)))
        stack.enter_context(terminal.showing(reporter.show))
        services = RunServices(journal, checkpointer, reporter, interrupt, watch)
        loop = build_dpo_loop(run, roles, (data, preferences), scorers, services, state)
        _record_start(file, journal, None if state is None else step)
        finished = await loop.run(step)
        await _end(run, loop, finished)
    return finished


def _record_start(file: Run, journal: Journal, resumed_from: int | None) -> None:
    digest = hashlib.sha256(dump(file).encode()).hexdigest()
    journal.record(RunStarted(config_digest=digest, resumed_from=resumed_from))
    if resumed_from is not None:
        journal.record(RolledBack(to_step=resumed_from, reason="resumed"))


async def _end(run: Run, loop: DpoLoop, finished: int) -> None:
    """Export the model of a finished run, and record its end."""
    if finished == run.steps:
        await loop.checkpointer.export()
    loop.journal.record(RunEnded(step=finished, reason="finished" if finished == run.steps else "interrupted"))


def _report_dropped(data: PreferenceData, directory: RunDirectory) -> None:
    """Print how many rows are used, and list the others in the run directory."""
    lines = [json.dumps(asdict(row), ensure_ascii=False) + "\n" for row in data.dropped]
    (directory.path / "dropped.jsonl").write_text("".join(lines), encoding="utf-8", errors="backslashreplace")
    held_out = f", {len(data.held_out)} held out" if data.held_out else ""
    listed = f"; {len(lines)} of {data.num_read} rows dropped, listed in dropped.jsonl" if lines else ""
    announce(f"preferences: {len(data.examples)} examples{held_out}{listed}")


def _announce_result(directory: RunDirectory, steps: int) -> None:
    lines = read_lines(directory.metrics)
    parts = [f"{steps} steps"]
    names = {"preference/held_out_accuracy": "held-out preferences", "validation/accuracy": "held-out tasks"}
    for name, label in names.items():
        if values := [line[name] for line in lines if line.get(name) is not None]:
            parts.append(f"{label} {values[0]:.3f} -> {values[-1]:.3f}")
    announce(f"DPO: {', '.join(parts)}; the model is in {directory.path / 'model'}")
