"""What `roll dpo`, `roll distill` and `roll reward` share: starting, continuing and ending a run on fixed examples."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import typer

from roll.checkpoint import IntactCheckpoint
from roll.commands.fetching import check_unused, mirror_url, newest_checkpoint
from roll.commands.lifecycle import interrupt_of, report_screening, run_to_end, running
from roll.commands.train import has_ended
from roll.config.load import LoadedRun, dump, load
from roll.config.schema import Run
from roll.errors import ConfigError
from roll.journal.database import check_format, check_intact
from roll.journal.events import RolledBack, RunEnded, RunStarted
from roll.journal.store import Journal, Reader
from roll.monitoring.server import MetricsServer
from roll.pipelines.checkpointer import Checkpointer
from roll.pipelines.interrupt import Interrupt
from roll.pipelines.mirror import mirroring
from roll.pipelines.offline import FixedLoop, OfflineLoop
from roll.preflight import importable, preflight
from roll.rollout.resume import ResumeState, check_same_run, read_checkpoint
from roll.rollout.source import check_environments
from roll.tracking.directory import RunDirectory
from roll.tracking.log import Terminal, announce
from roll.tracking.phases import PhaseWatch
from roll.tracking.sinks import read_lines
from roll.wiring.data import Data, build_data
from roll.wiring.examples import ExampleSets
from roll.wiring.models import Roles, RunPaths, build_roles
from roll.wiring.monitoring import build_metrics_server
from roll.wiring.offline import resume_state
from roll.wiring.run import RunServices, build_checkpointer, build_reporter, build_watch
from roll.wiring.saved_optimizers import check_saved_optimizers
from roll.wiring.services import check_sandboxes

OnSaved: TypeAlias = Callable[[int, Path], None]
"""Gets the step and the folder of a checkpoint that is complete."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OfflineParts:
    """The engines and the data of one run on fixed examples."""

    run: Run
    directory: RunDirectory
    resumed: bool
    roles: Roles
    tasks: Data
    examples: Any
    """What `OfflineCommand.read` has returned."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OfflineProcess:
    """One process of a run: what it starts from, and what controls it."""

    file: Run
    """The user's configuration."""
    directory: RunDirectory
    origin: Path | None
    """Path of the file of a fresh run; None: a resumed one."""
    checkpoint: IntactCheckpoint | None
    interrupt: Interrupt
    server: MetricsServer
    terminal: Terminal

    async def open_journal(self, stack: AsyncExitStack, run: Run) -> tuple[Journal, Sequence[OnSaved]]:
        """The journal, and callbacks that copy finished checkpoints."""
        stack.enter_context(self.interrupt)
        journal = stack.enter_context(closing(Journal(self.directory.journal)))
        self.server.monitor.attach(journal)
        return journal, await stack.enter_async_context(mirroring(self.directory.path, mirror_url(run)))

    async def restore(self, checkpointer: Checkpointer) -> ResumeState | None:
        """The state of the checkpoint, whose weights are loaded; None in a fresh run."""
        saved = None if self.origin is not None else await checkpointer.restore(self.checkpoint)
        return None if saved is None else resume_state(saved, checkpointer.journal)

    def services(
        self, stack: AsyncExitStack, run: Run, checkpointer: Checkpointer, watch: PhaseWatch, state: ResumeState | None
    ) -> RunServices:
        """Reports and the user's interrupt."""
        sinks = (self.server.monitor.steps, self.terminal.origin)
        reporter = build_reporter(run, self.directory, state, steps=run.steps, sinks=sinks)
        stack.enter_context(closing(reporter))
        stack.enter_context(self.terminal.showing(reporter.show))
        return RunServices(checkpointer.journal, checkpointer, reporter, self.interrupt, watch)

    async def run_loop(self, run: Run, loop: FixedLoop, services: RunServices, state: ResumeState | None) -> int:
        """Train to the end or to an interrupt, and export the model of a finished run; the number of steps."""
        loop.meter.on_phase = services.watch.enter
        services.watch.details["checkpoint"] = services.checkpointer.describe_wait
        step = None if state is None else state.step
        _record_start(self.file, services.journal, step)
        finished = await loop.run(step or 0)
        await _end(run, loop, finished)
        return finished


class FixedCommand(Protocol):
    """A command that trains on fixed examples."""

    name: str
    """The command, and the end of the run directory's name."""
    section: str
    """Its section in the file."""
    title: str
    """What it does, for messages."""

    def prepare(self, run: Run) -> Run:
        """The run whose engines it needs."""
        ...

    def from_checkpoint(self, loaded: LoadedRun, path: Path, newest: Path) -> LoadedRun:
        """The file with a checkpoint as its model; gets the directories of run and checkpoint."""
        ...

    async def train(self, process: OfflineProcess) -> int:
        """Train to the end or to an interrupt; the number of finished steps."""
        ...

    def describe_result(self, directory: RunDirectory) -> list[str]:
        """Parts of the last line of the output."""
        ...


class OfflineCommand(Protocol):
    """What distinguishes commands that train a policy, whose engines are those of `roll train`."""

    def prepare(self, run: Run) -> Run:
        """The run whose engines it needs."""
        ...

    def read(self, run: Run, roles: Roles, tasks: Data) -> Any:
        """The examples; raises `ConfigError` for faulty ones."""
        ...

    async def score(self, parts: OfflineParts, checkpointer: Checkpointer) -> Any:
        """What is computed before the first step; the engines run, with their initial weights."""
        ...

    def build_loop(
        self, parts: OfflineParts, scores: Any, services: RunServices, resume: ResumeState | None
    ) -> OfflineLoop:
        """The loop with all its parts, fresh or continued."""
        ...


def start(
    command: FixedCommand, loaded: LoadedRun, *, overwrite: bool, resume: bool = False, overrides: Sequence[str] = ()
) -> bool:
    """Train; the model is written to the run directory. False if an interrupt ended the run early.

    With `resume`, the run in the directory continues if it has a checkpoint.
    """
    run = command.prepare(loaded.run)
    check_sandboxes(loaded, training=False)
    path = Path(run.directory) / run.name
    if not overwrite and not resume:
        check_unused(run)
    with closing(RunDirectory.create(path, overwrite=overwrite or resume)) as directory:
        if resume and directory.config.is_file() and (newest := newest_checkpoint(run, path)) is not None:
            return _continue(command, directory, overrides, newest, loaded.run)
        return _run(command, loaded.run, directory, loaded.path.absolute(), None)


def owns(command: FixedCommand, path: Path) -> bool:
    """Whether this is the directory of such a run, and not of one whose name ends like one."""
    config, name, suffix = path / "config.yaml", path.resolve().name, f"-{command.name}"
    if not name.endswith(suffix) or not config.is_file():
        return False
    return load(config, resumed=True).run.name == name.removesuffix(suffix)


def continue_directory(command: FixedCommand, path: Path, overrides: Sequence[str], *, plain: bool = True) -> bool:
    """Continue the run in a directory from its newest checkpoint; `plain`: without other options."""
    if not plain:
        raise ConfigError(f"{path}: {command.title} takes neither --from nor --supervise; leave them out")
    with closing(RunDirectory.open(path)) as directory:
        run = command.prepare(load(directory.config, overrides, resumed=True).run)
        if (newest := newest_checkpoint(run, path)) is None:
            again = f"roll {command.name} ... --overwrite"
            raise ConfigError(f"{path}: no checkpoint to resume from; start again with `{again}`")
        return _continue(command, directory, overrides, newest, None)


def _continue(
    command: FixedCommand,
    directory: RunDirectory,
    overrides: Sequence[str],
    newest: IntactCheckpoint,
    file: Run | None,
) -> bool:
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
    steps = command.prepare(loaded.run).steps
    if has_ended(directory, steps):
        typer.echo(f"{path}: all {steps} steps are done already; to train more, add {command.section}.steps=")
        return True
    with closing(Reader(directory.journal)) as journal:
        check_same_run(read_checkpoint(newest.path), journal)
    loaded = command.from_checkpoint(loaded, path, newest.path)
    preflight(loaded)
    check_saved_optimizers(command.prepare(loaded.run), newest.path)
    check_sandboxes(loaded, training=False)
    return _run(command, loaded.run, directory, None, newest)


def _run(
    command: FixedCommand,
    run: Run,
    directory: RunDirectory,
    origin: Path | None,
    checkpoint: IntactCheckpoint | None,
) -> bool:
    """Train to the end or to an interrupt; whether it was the end."""
    interrupt, steps = interrupt_of(run, directory), command.prepare(run).steps

    async def work(terminal: Terminal) -> int:
        process = OfflineProcess(
            file=run,
            directory=directory,
            origin=origin,
            checkpoint=checkpoint,
            interrupt=interrupt,
            server=server,
            terminal=terminal,
        )
        finished = await command.train(process)
        _announce_result(command, directory, finished, steps)
        return finished

    with closing(build_metrics_server(run, directory.path.name, steps)) as server:
        return run_to_end(work, directory, interrupt, run) >= steps


async def train_policy(command: OfflineCommand, run: Run, process: OfflineProcess) -> int:
    """Train a policy; `run` is what the command has prepared. The number of finished steps."""
    directory, monitor = process.directory, process.server.start()
    parts = _build_parts(command, run, directory, resumed=process.origin is None)
    roles, tasks = parts.roles, parts.tasks
    async with AsyncExitStack() as stack:
        watch = monitor.watch = stack.enter_context(build_watch(run, roles, tasks))
        watch.enter("start")
        await stack.enter_async_context(running(roles, tasks.rewards, tasks.envs, tasks.proxy))
        await check_environments(tasks.envs, tasks.held_out, tools=roles.template.tool_form is not None)
        if process.origin is not None:
            directory.begin(dump(process.file), process.origin)
        report_screening(tasks.screened, directory)
        journal, copy = await process.open_journal(stack, run)
        checkpointer = build_checkpointer(run, directory, roles, journal, *copy)
        watch.enter("score")
        scores = await command.score(parts, checkpointer)
        state = await process.restore(checkpointer)
        services = process.services(stack, run, checkpointer, watch, state)
        loop = command.build_loop(parts, scores, services, state)
        return await process.run_loop(run, loop, services, state)


def _build_parts(command: OfflineCommand, run: Run, directory: RunDirectory, *, resumed: bool) -> OfflineParts:
    paths = RunPaths(directory=directory.path, resumed=resumed)
    roles = build_roles(run, run.actor_train.optimizer, run.steps, paths=paths)
    tasks = build_data(run, run.tasks, roles.template, roles.executor)
    examples = command.read(run, roles, tasks)
    return OfflineParts(run=run, directory=directory, resumed=resumed, roles=roles, tasks=tasks, examples=examples)


def _record_start(file: Run, journal: Journal, resumed_from: int | None) -> None:
    digest = hashlib.sha256(dump(file).encode()).hexdigest()
    journal.record(RunStarted(config_digest=digest, resumed_from=resumed_from))
    if resumed_from is not None:
        journal.record(RolledBack(to_step=resumed_from, reason="resumed"))


async def _end(run: Run, loop: FixedLoop, finished: int) -> None:
    """Export the model of a finished run, and record its end."""
    if finished == run.steps:
        await loop.checkpointer.export()
    loop.journal.record(RunEnded(step=finished, reason="finished" if finished == run.steps else "interrupted"))


def _announce_result(command: FixedCommand, directory: RunDirectory, finished: int, steps: int) -> None:
    if finished < steps:
        announce(f"interrupted after step {finished} of {steps}; resume with `roll resume {directory.path}`")
        return
    texts = [f"{finished} steps", *command.describe_result(directory)]
    announce(f"{command.name}: {', '.join(texts)}; the model is in {directory.path / 'model'}")


def report_dropped(data: ExampleSets[Any], directory: RunDirectory) -> None:
    """Print how many rows of preferences are used, and list the others in the run directory."""
    lines = [json.dumps(asdict(row), ensure_ascii=False) + "\n" for row in data.dropped]
    (directory.path / "dropped.jsonl").write_text("".join(lines), encoding="utf-8", errors="backslashreplace")
    held_out = f", {len(data.held_out)} held out" if data.held_out else ""
    listed = f"; {len(lines)} of {data.num_read} rows dropped, listed in dropped.jsonl" if lines else ""
    announce(f"preferences: {len(data.examples)} examples{held_out}{listed}")


def first_and_last(directory: RunDirectory, names: dict[str, str]) -> list[str]:
    """How metrics have changed over the run; `names` are their labels."""
    lines, texts = read_lines(directory.metrics), list[str]()
    for name, label in names.items():
        if values := [line[name] for line in lines if line.get(name) is not None]:
            texts.append(f"{label} {values[0]:.3f} -> {values[-1]:.3f}")
    return texts
