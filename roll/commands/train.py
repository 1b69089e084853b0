"""`roll train` and `roll resume`: reinforcement learning, from the configuration to the exported model."""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import AsyncExitStack, closing, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import typer

from roll.allocator import freeze_startup_objects
from roll.checkpoint import Checkpoints, IntactCheckpoint
from roll.checksums import check_model
from roll.commands import sft
from roll.commands.fetching import check_unused, fetch_newest, fetch_run, mirror_url, newest_checkpoint
from roll.commands.lifecycle import Embedded, interrupt_of, report_screening, run_to_end, running
from roll.commands.reward_audit import audit_at_start
from roll.commands.supervise import Supervised
from roll.config.load import LoadedRun, dump, load
from roll.config.schema import Run
from roll.config.turns import turn_warnings
from roll.data.dataset import rows_at_start
from roll.data.templates import Template, hidden_roles
from roll.errors import ConfigError
from roll.explain.run import uncorrected
from roll.journal.database import check_format, check_intact
from roll.journal.events import ControllerRestarted, RolledBack, RunEnded, RunStarted
from roll.journal.store import Journal, Reader
from roll.monitoring.monitor import Monitor
from roll.monitoring.server import MetricsServer
from roll.pipelines.interrupt import Interrupt
from roll.pipelines.mirror import mirroring
from roll.pipelines.model_folder import policy_folder
from roll.preflight import importable, preflight
from roll.rollout.inflight import InflightGroup
from roll.rollout.resume import check_same_run, read_checkpoint, resume_from
from roll.rollout.source import TaskSource, check_environments
from roll.tracking.callbacks import Callbacks, OnStep
from roll.tracking.curve import curve_from
from roll.tracking.directory import RunDirectory
from roll.tracking.log import Terminal, announce
from roll.tracking.sinks import read_lines
from roll.weights.adapters import CONFIG as ADAPTER
from roll.wiring.data import Data, build_data
from roll.wiring.models import Roles, RunPaths, build_roles
from roll.wiring.monitoring import build_metrics_server, live_state
from roll.wiring.run import RunServices, build_checkpointer, build_loop, build_reporter, build_watch
from roll.wiring.saved_optimizers import check_saved_optimizers
from roll.wiring.services import check_sandboxes, record_replacements

REFERENCE = "reference"
"""Folder for the initial weights of a run that needs them as reference."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """A run that has reached its last step, or that an interrupt has ended."""

    directory: Path
    """The run directory."""
    steps: int
    """Steps that the run has trained in all."""
    finished: bool
    """False if an interrupt ended the run before its last step; `resume` continues it."""
    metrics: dict[str, Any]
    """The last line of `metrics.jsonl`."""
    accuracy_before: float | None
    """Held-out accuracy of the first validation; None without validation."""
    accuracy_after: float | None
    """Held-out accuracy of the last validation."""
    checkpoint: Path | None
    """The newest checkpoint."""
    model: Path | None
    """The trained model in Hugging Face format; None before the run is finished."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Start:
    """How a run begins."""

    origin: Path | None = None
    """The file of a fresh run; None: the run is resumed."""
    checkpoint: IntactCheckpoint | None = None
    supervised: Supervised | None = None
    on_step: OnStep | None = None


def train(
    loaded: LoadedRun,
    *,
    overwrite: bool,
    resume: bool = False,
    overrides: Sequence[str] = (),
    embedded: Embedded | None = None,
    supervised: Supervised | None = None,
) -> Result:
    """`roll train`: a fresh run; with `resume`, the run in the directory if it has anything to continue from.

    An `embedded` run is part of a program that continues after an interrupt. A `supervised` one may be a restart.
    """
    run = loaded.run
    check_sandboxes(loaded)
    path = Path(run.directory) / run.name
    if not overwrite and not resume:
        check_unused(run)
    with closing(RunDirectory.create(path, overwrite=overwrite or resume)) as directory:
        if resume and _resumable(run, directory):
            return _resume(directory, overrides, run, embedded=embedded, supervised=supervised)
        start = _Start(origin=loaded.path.absolute(), supervised=supervised)
        return _run(run, directory, start, embedded=embedded)


def resume(
    path: Path,
    overrides: Sequence[str],
    *,
    source: str | None = None,
    embedded: Embedded | None = None,
    supervised: Supervised | None = None,
) -> Result:
    """`roll resume`: continue a run from its newest checkpoint, or from that of the store `source`."""
    if source is not None:
        fetch_run(source, path)
    with closing(RunDirectory.open(path)) as directory:
        return _resume(directory, overrides, embedded=embedded, supervised=supervised)


def _resume(
    directory: RunDirectory,
    overrides: Sequence[str],
    file: Run | None = None,
    *,
    embedded: Embedded | None,
    supervised: Supervised | None,
) -> Result:
    """Continue with the configuration in the directory; refuses if `file`, the user's configuration, differs."""
    path = directory.path
    check_format(directory.journal)
    if directory.origin.is_file():
        importable(Path(directory.origin.read_text(encoding="utf-8")))
    loaded = load(directory.config, overrides, resumed=True)
    if changed := [key for key in Run.model_fields if file and getattr(file, key) != getattr(loaded.run, key)]:
        raise ConfigError(
            f"{path}: was started with other values of {', '.join(changed)}; change the file back, "
            f"give the new values on the command line (key=value), or change name="
        )
    of_sft = path.resolve().name == f"{loaded.run.name}{sft.SUFFIX}"
    checkpoints = Checkpoints(path / "checkpoints", keep=1)
    if of_sft and checkpoints.latest() is None:
        raise ConfigError(f"{path}: an SFT run, which has no checkpoints; repeat it with `roll sft ... --overwrite`")
    if has_ended(directory, loaded.run.steps):
        preflight(from_checkpoint(loaded, path, checkpoints.latest()))
        typer.echo(f"{path}: all {loaded.run.steps} steps are done already; to train more, add steps=")
        return _read_result(loaded.run, directory, loaded.run.steps)
    if directory.journal.is_file():
        check_intact(directory.journal)
    newest = newest_checkpoint(loaded.run, path)
    if newest is not None and directory.journal.is_file():
        with closing(Reader(directory.journal)) as journal:
            check_same_run(read_checkpoint(newest.path), journal)
    loaded = from_checkpoint(loaded, path, newest and newest.path)
    preflight(loaded)
    if newest is not None:
        check_saved_optimizers(loaded.run, newest.path)
    check_sandboxes(loaded)
    return _run(loaded.run, directory, _Start(checkpoint=newest, supervised=supervised), embedded=embedded)


def _resumable(run: Run, directory: RunDirectory) -> bool:
    """Whether a fresh run would delete a checkpoint or a trained model. Looks into the store of the run as well."""
    checkpoints = Checkpoints(directory.path / "checkpoints", keep=1)
    checkpoints.recover()
    if checkpoints.latest() is not None or (directory.path / "model").exists():
        return True
    if (url := mirror_url(run)) is not None and fetch_newest(url, directory.path) is not None:
        return True
    if directory.config.exists():
        typer.echo(f"{directory.path}: has no checkpoint yet; starts again from step 0")
    return False


def _run(run: Run, directory: RunDirectory, start: _Start, *, embedded: Embedded | None) -> Result:
    """Train to the end or to an interrupt."""
    interrupt = interrupt_of(run, directory, embedded=embedded)
    start = replace(start, on_step=embedded and embedded.on_step)
    with closing(build_metrics_server(run, directory.path.name, run.steps)) as server:
        work, supervised = partial(_train, run, directory, start, interrupt, server), start.supervised
        if supervised is None:
            return run_to_end(work, directory, interrupt, run)
        return run_to_end(lambda terminal: supervised.run(work(terminal)), directory, interrupt, run)


async def _train(
    run: Run,
    directory: RunDirectory,
    start: _Start,
    interrupt: Interrupt,
    server: MetricsServer,
    terminal: Terminal,
) -> Result:
    """A fresh run, or a resumed one."""
    monitor = server.start()
    origin, resumed, terminal.quiet = start.origin, start.origin is None, start.on_step is not None
    callbacks = Callbacks((section.spec for section in run.callbacks), start.on_step)
    kept = start.supervised and replace(start.supervised.kept, take_up=start.checkpoint is not None)
    paths = RunPaths(directory=directory.path, resumed=resumed, kept=kept)
    roles = build_roles(run, run.actor_train.optimizer, run.num_actor_updates, paths=paths)
    data = build_data(run, run.tasks, roles.template, roles.executor)
    _warn(run, _hidden_roles(run, roles.template, data.sources))
    async with AsyncExitStack() as stack:
        watch = monitor.watch = stack.enter_context(build_watch(run, roles, data))
        watch.enter("start")
        await stack.enter_async_context(running(roles, data.rewards, data.envs, data.proxy))
        await check_environments(data.envs, (*data.sources, *data.held_out), tools=roles.template.tool_form is not None)
        if origin is not None:
            directory.begin(dump(run), origin)
            await audit_at_start(run, data.sources, data.rewards)
        report_screening(data.screened, directory)
        stack.enter_context(interrupt)
        journal = stack.enter_context(_recording(directory, data, monitor))
        copy = await stack.enter_async_context(mirroring(directory.path, mirror_url(run)))
        checkpointer = build_checkpointer(run, directory, roles, journal, callbacks.checkpoint_saved, *copy)
        if not resumed and roles.first.models.reference is not None and run.reference.path is None:
            await checkpointer.export(REFERENCE)  # a resumed run no longer has its initial weights
        saved = await checkpointer.restore(start.checkpoint) if resumed else None
        state = saved and resume_from(saved, data.mixture, journal, exact=run.deterministic)
        step, groups = (0, ()) if state is None else (state.step, state.groups)
        sinks = (monitor.steps, terminal.origin)
        reporter = stack.enter_context(closing(build_reporter(run, directory, state, callbacks=callbacks, sinks=sinks)))
        stack.enter_context(terminal.showing(reporter.show))
        loop = build_loop(run, roles, data, RunServices(journal, checkpointer, reporter, interrupt, watch), state)
        monitor.live = live_state(loop.buffer, loop.routers)
        _record_start(run, journal, step if resumed else None, groups, start.supervised, roles)
        with freeze_startup_objects():
            finished = await loop.run(step, groups)
        if finished == run.steps:
            watch.enter("export")
            await checkpointer.export()
        watch.enter("")
        journal.record(RunEnded(step=finished, reason="finished" if finished == run.steps else "interrupted"))
    return _conclude(run, directory, finished)


def _record_start(
    run: Run,
    journal: Journal,
    resumed_from: int | None,
    groups: Sequence[InflightGroup],
    supervised: Supervised | None,
    roles: Roles,
) -> None:
    """Record and announce what this process continues."""
    digest = hashlib.sha256(dump(run).encode()).hexdigest()
    journal.record(RunStarted(config_digest=digest, resumed_from=resumed_from))
    if supervised is not None:
        if (restart := supervised.restart) is not None:
            seconds = time.monotonic() - restart.since
            event = ControllerRestarted(
                number=restart.number,
                cause=restart.cause,
                seconds=round(seconds, 3),
                taken_up=roles.taken_up,
                started=roles.started,
            )
            journal.record(event)
            journal.flush(durable=True)
            took = f"took {seconds:.1f} s, with {len(event.taken_up)} workers taken up and {len(event.started)} started"
            announce(f"restart {restart.number} of the controller {took}: {restart.cause}")
        supervised.mark_started()
    if resumed_from is not None:
        journal.record(RolledBack(to_step=resumed_from, reason="resumed"))
        announce(_describe_inflight(groups))


@contextmanager
def _recording(directory: RunDirectory, data: Data, monitor: Monitor) -> Generator[Journal]:
    """The journal, with requests that the proxy refuses, and reward and environment workers that are replaced."""
    with closing(Journal(directory.journal)) as journal:
        monitor.attach(journal)
        refusals = nullcontext() if data.proxy is None else data.proxy.record_refusals(journal)
        with refusals, record_replacements(journal, data.rewards, data.envs):
            yield journal


def has_ended(directory: RunDirectory, steps: int) -> bool:
    """Whether a run of this many steps has ended, including its export."""
    if not directory.journal.is_file():
        return False
    with closing(Reader(directory.journal)) as reader:
        ended = [entry.event for entry in reader.events(RunEnded)]
    return bool(ended) and ended[-1].reason == "finished" and ended[-1].step >= steps


def from_checkpoint(loaded: LoadedRun, path: Path, newest: Path | None) -> LoadedRun:
    """The run with its newest checkpoint as model and its saved initial weights as reference.

    The model that it started from may no longer exist.
    """
    if newest is None:
        return loaded
    adapted = (newest / ADAPTER).is_file()
    if adapted != (loaded.run.actor_train.lora is not None):
        trained, remedy = ("adapters", "add it again") if adapted else ("the whole model", "leave it out")
        raise ConfigError(f"actor_train.lora: {newest} was saved by a run that trains {trained}; {remedy}")
    if adapted:  # the checkpoint holds adapters alone, on top of the initial model
        return loaded
    policies = tuple(
        policy.model_copy(update={"path": str(policy_folder(newest, policy.name))}) for policy in loaded.run.policies
    )
    model = policies[0].path if policies else str(newest)
    changed: dict[str, Any] = {
        "model": loaded.run.model.model_copy(update={"path": model, "shape": None}),
        "policies": policies,
    }
    if (path / REFERENCE).is_dir():
        check_model(path / REFERENCE, "reference")
        changed["reference"] = loaded.run.reference.model_copy(update={"path": str(path / REFERENCE)})
    return replace(loaded, run=loaded.run.model_copy(update=changed))


def _describe_inflight(groups: Sequence[InflightGroup]) -> str:
    attempts = [attempt for group in groups for attempt in group.attempts.values()]
    num_tokens = sum(len(turn.so_far.ids) for attempt in attempts for turn in attempt.turns)
    num_complete = sum(attempt.trajectory is not None for attempt in attempts)
    return (
        f"resumes {len(groups)} groups in flight: {num_complete} complete attempts, {num_tokens} tokens of partial ones"
    )


def _read_result(run: Run, directory: RunDirectory, steps: int) -> Result:
    lines = read_lines(directory.metrics)
    accuracies = [line["validation/accuracy"] for line in lines if line.get("validation/accuracy") is not None]
    model = directory.path / "model"
    return Result(
        directory=directory.path,
        steps=steps,
        finished=steps >= run.steps,
        metrics=lines[-1] if lines else {},
        accuracy_before=accuracies[0] if accuracies else None,
        accuracy_after=accuracies[-1] if accuracies else None,
        checkpoint=Checkpoints(directory.path / "checkpoints", keep=1).latest(),
        model=model if model.is_dir() else None,
    )


def _conclude(run: Run, directory: RunDirectory, steps: int) -> Result:
    """Write the learning curve, and print where the results are or how to continue."""
    result = _read_result(run, directory, steps)
    directory.curve.write_text(curve_from(directory.metrics), encoding="utf-8")
    if not result.finished:
        announce(f"interrupted after step {steps} of {run.steps}; resume with `roll resume {directory.path}`")
        return result
    announce(f"model: {directory.path / 'model'}")
    announce(f"learning curve: {directory.curve}")
    if result.accuracy_before is not None:
        announce(f"held-out accuracy: {result.accuracy_before:.3f} -> {result.accuracy_after:.3f}")
    return result


def _hidden_roles(run: Run, template: Template, sources: Sequence[TaskSource]) -> Iterator[str]:
    """Warnings about sources of which a base model does not see the roles."""
    if run.model.path is not None and run.model.template == "auto":
        yield from filter(None, (hidden_roles(template, rows_at_start(source.tasks)) for source in sources))


def _warn(run: Run, more: Iterable[str] = ()) -> None:
    """Warn about settings that often break training, and about `more`."""
    for line in (*turn_warnings(run), *more):
        announce(line, logging.WARNING)
    if correction := uncorrected(run):
        staleness = f"rollout.max_staleness is {run.rollout.max_staleness:g}"
        announce(f"warning: {staleness}, and the correction is {correction}", logging.WARNING)
