"""What each command of the command line does, from configuration to the last word on the terminal."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncGenerator, Coroutine, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, closing
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import typer

from roll.allocator import startup_set_aside
from roll.checkpoint import Checkpoints
from roll.config.load import Loaded, dump, load
from roll.config.schema import Run
from roll.data.screening import Screened
from roll.data.templates import Template
from roll.errors import ConfigError
from roll.explain.run import uncorrected
from roll.journal.events import Published, RolledBack, RunEnded, RunStarted
from roll.journal.store import Journal, Reader
from roll.pipelines.checkpointer import folder_of
from roll.pipelines.interrupt import Interrupt
from roll.pipelines.sft import WarmStart
from roll.preflight import importable, preflight
from roll.proxy.server import Proxy
from roll.rollout.environments import Environments
from roll.rollout.inflight import Held
from roll.rollout.resume import standing
from roll.rollout.reward_pool import Scorer
from roll.rollout.source import check_environments
from roll.rollout.validation import summarise
from roll.tracking.curve import curve_from
from roll.tracking.directory import RunDirectory
from roll.tracking.progress import bar
from roll.tracking.sinks import read_lines
from roll.types import Trajectory
from roll.weights.adapters import CONFIG as ADAPTER
from roll.wiring.data import build_data, build_held_out
from roll.wiring.environments import build_environments
from roll.wiring.models import Home, Roles, build_roles
from roll.wiring.proxy import build_players, build_proxy
from roll.wiring.rewards import build_scorer, check_sandboxes
from roll.wiring.run import (
    Books,
    build_demonstrator,
    build_keeper,
    build_loop,
    build_publisher,
    build_reporter,
    build_validator,
)

INTERRUPTED = 130
"""The exit code that shells know for Ctrl-C."""
WARM_START = "-sft"
"""What the directory of a warm start is called after the name of the run."""
REFERENCE = "reference"
"""Where a run keeps the weights it began with, if something is measured against them."""


def train(loaded: Loaded, *, overwrite: bool) -> None:
    """`roll train`: a fresh run."""
    run = loaded.run
    check_sandboxes(loaded)
    _warn(run)
    with closing(RunDirectory.create(Path(run.directory) / run.name, overwrite=overwrite)) as directory:
        _see_through(_train(run, directory, origin=loaded.path.absolute()), directory)


def resume(path: Path, overrides: Sequence[str]) -> None:
    """`roll resume`: go on from the newest checkpoint of a run."""
    with closing(RunDirectory.open(path)) as directory:
        if directory.origin.is_file():
            importable(Path(directory.origin.read_text(encoding="utf-8")))
        loaded = load(directory.config, overrides)
        warm = path.resolve().name == f"{loaded.run.name}{WARM_START}"
        if warm and Checkpoints(path / "checkpoints", keep=1).latest() is None:
            raise ConfigError(
                f"{path}: a warm start, which has no checkpoints; begin it again with `roll sft ... --overwrite`"
            )
        loaded = _from_checkpoint(loaded, path)
        preflight(loaded)
        if _finished(loaded.run, directory):
            _say(f"{path}: all {loaded.run.steps} steps are done already; for more of them, add steps=")
            return
        check_sandboxes(loaded)
        _warn(loaded.run)
        _see_through(_train(loaded.run, directory, origin=None), directory)


def warm_start(loaded: Loaded, *, overwrite: bool) -> None:
    """`roll sft`: supervised training; the model is left in `<run directory>-sft/model`."""
    run = loaded.run
    if run.policies:
        raise ConfigError(f"{loaded.place('policies')}: policies: a warm start trains one model; leave them out of it")
    check_sandboxes(loaded, training=False)
    path = Path(run.directory) / f"{run.name}{WARM_START}"
    with closing(RunDirectory.create(path, overwrite=overwrite, resumable=False)) as directory:
        _see_through(_warm_start(run, directory, origin=loaded.path.absolute()), directory)


def evaluate(loaded: Loaded, *, output: Path | None) -> None:
    """`roll eval`: the validation tasks, attempted once each with the model as it is."""
    if not loaded.run.validation.tasks:
        raise ConfigError(f"{loaded.path}: nothing to evaluate; add validation.tasks")
    check_sandboxes(loaded, training=False)
    asyncio.run(_evaluate(loaded.run, output))


async def _train(run: Run, directory: RunDirectory, *, origin: Path | None) -> None:
    """A fresh run of the file `origin`, or with None one that goes on."""
    resumed = origin is None
    num_updates = run.steps * run.algorithm.epochs * run.algorithm.minibatches
    home = Home(directory=directory.path, resumed=resumed)
    roles = build_roles(run, run.actor_train.optimizer, num_updates, home=home)
    data = build_data(run, run.tasks, roles.template, roles.executor)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(_running(roles, data.scorer, data.envs, data.proxy))
        await check_environments(data.envs, (*data.sources, *data.held_out), tools=roles.template.tool_form is not None)
        if origin is not None:
            directory.begin(dump(run), origin)
        _tell(data.screened, directory)
        interrupt = stack.enter_context(Interrupt())
        journal = stack.enter_context(closing(Journal(directory.journal)))
        if data.proxy is not None:
            stack.enter_context(data.proxy.writing(journal))
        keeper = build_keeper(run, directory, roles, journal)
        if not resumed and roles.models.reference is not None and run.reference.path is None:
            await keeper.export(REFERENCE)  # the weights it starts from, which a resumed run no longer has
        before, memory = await keeper.restore() if resumed else (None, None)
        start = 0 if before is None else int(before["step"])
        reporter = stack.enter_context(closing(build_reporter(run, directory, start if resumed else None)))
        loop = build_loop(run, roles, data, Books(journal, keeper, reporter, interrupt), memory)
        digest = hashlib.sha256(dump(run).encode()).hexdigest()
        journal.record(RunStarted(config_digest=digest, resumed_from=start if resumed else None))
        held: list[Held] = []
        if before is not None:
            found = standing(before, data.mixture, journal)
            held, loop.scheduler.returned, loop.publisher.step_of = found.held, found.returned, found.step_of
            journal.record(RolledBack(to_step=start, why="resumed"))
            loop.publisher.version = max((entry.event.version for entry in journal.events(Published)), default=-1)
            _say(_carried(held))
        with startup_set_aside():
            finished = await loop.run(start, held)
        if finished == run.steps:
            await keeper.export()
        journal.record(RunEnded(step=finished, why="finished" if finished == run.steps else "interrupted"))
    _conclude(run, directory, finished)


async def _warm_start(run: Run, directory: RunDirectory, *, origin: Path) -> None:
    home = Home(directory=directory.path)
    roles = build_roles(run, run.sft.optimizer, run.sft.steps, supervised=True, home=home)
    data = build_data(run, run.sft.tasks or run.tasks, roles.template, roles.executor)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(_running(roles, data.scorer, data.envs, data.proxy))
        await check_environments(data.envs, (*data.sources, *data.held_out), tools=roles.template.tool_form is not None)
        directory.begin(dump(run), origin)
        _tell(data.screened, directory)
        interrupt = stack.enter_context(Interrupt())
        journal = stack.enter_context(closing(Journal(directory.journal)))
        reporter = stack.enter_context(closing(build_reporter(run, directory, None, steps=run.sft.steps)))
        warm = WarmStart(
            steps=run.sft.steps,
            batch_size=run.sft.batch_size,
            validate_every=run.sft.validate_every,
            stop_at=run.sft.stop_at,
            context=run.rollout.context,
            mixture=data.mixture,
            sources={source.name: source for source in data.sources},
            demonstrator=build_demonstrator(run, roles.template),
            template=roles.template,
            trainers=roles.trainers,
            publisher=build_publisher(roles, journal),
            router=roles.router,
            validator=build_validator(run, roles, data.held_out),
            report=reporter,
            stopping=lambda: interrupt.requested,
        )
        steps = await warm.run()
        path = await build_keeper(run, directory, roles, journal).export()
    found = [line["sft/accuracy"] for line in read_lines(directory.metrics) if "sft/accuracy" in line]
    reached = f" at held-out accuracy {found[-1]:.3f}" if found else ""
    _say(f"warm start: {steps} steps{reached}; the model is in {path}")
    if interrupt.requested:
        raise typer.Exit(INTERRUPTED)


async def _evaluate(run: Run, output: Path | None) -> None:
    roles = build_roles(run, run.actor_train.optimizer, run.steps, supervised=True)
    scorer, envs, proxy = build_scorer(run.rewards), build_environments(run, roles.executor), build_proxy(run)
    held_out, screened = build_held_out(run, roles.template, scorer.score, envs.make, build_players(run, proxy))
    for account in screened:
        _say(str(account))
    validator = build_validator(run, roles, held_out)
    async with _running(roles, scorer, envs, proxy):
        await check_environments(envs, held_out, tools=roles.template.tool_form is not None)
        routing = asyncio.create_task(roles.pool.run())
        await roles.pool.release(0)
        with bar(validator.num_tasks, "evaluation") as advance:
            evaluating = asyncio.ensure_future(validator.run(advance))
            await asyncio.wait([routing, evaluating], return_when=asyncio.FIRST_COMPLETED)
            if routing.done():
                evaluating.cancel()
                await routing  # raises what ended it
            found = await evaluating
        routing.cancel()
    for name, value in summarise(found).items():
        _say(f"{name.removeprefix('validation/')}: {value:.4f}")
    if output is not None:
        rows = [_row(name, trajectory, roles.template) for name, each in found.items() for trajectory in each]
        output.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
        _say(f"{len(rows)} attempts: {output}")


@asynccontextmanager
async def _running(roles: Roles, scorer: Scorer, envs: Environments, proxy: Proxy | None) -> AsyncGenerator[None]:
    """Models, rewards, environments and the proxy, up inside this block and gone after it, however it ends."""
    await roles.start()
    try:
        await scorer.start()
        await envs.start()
        if proxy is not None:
            await proxy.start()
        yield
    finally:
        if proxy is not None:
            await proxy.stop()
        await envs.stop()
        await scorer.stop()
        await roles.stop()


def _see_through(work: Coroutine[Any, Any, None], directory: RunDirectory) -> None:
    """Run it to its end; a second Ctrl-C ends it at once, and is told how to go on."""
    try:
        asyncio.run(work)
    except KeyboardInterrupt:
        last = Checkpoints(directory.path / "checkpoints", keep=1).latest()
        how = (
            f"go on from {last.name} with `roll resume {directory.path}`"
            if last
            else "it has no checkpoint to go on from"
        )
        typer.echo(f"interrupted at once; {how}", err=True)
        raise typer.Exit(INTERRUPTED) from None


def _finished(run: Run, directory: RunDirectory) -> bool:
    """Whether there is nothing left to do, the export included."""
    if not directory.journal.is_file():
        return False
    with closing(Reader(directory.journal)) as reader:
        ended = [entry.event for entry in reader.events(RunEnded)]
    return bool(ended) and ended[-1].why == "finished" and ended[-1].step >= run.steps


def _from_checkpoint(loaded: Loaded, path: Path) -> Loaded:
    """The run with its newest checkpoint as the model, and the reference it began with: its origin may be gone."""
    newest = Checkpoints(path / "checkpoints", keep=1).latest()
    if newest is None:
        return loaded
    adapted = (newest / ADAPTER).is_file()
    if adapted != (loaded.run.actor_train.lora is not None):
        had, what = ("adapters", "add it again") if adapted else ("the whole model", "leave it out")
        raise ConfigError(f"actor_train.lora: {newest} was saved by a run that trains {had}; {what}")
    if adapted:  # which stand beside the model that the run began with
        return loaded
    kept = [policy.model_copy(update={"path": str(folder_of(newest, policy.name))}) for policy in loaded.run.policies]
    begun = kept[0].path if kept else str(newest)
    changed: dict[str, Any] = {"model": loaded.run.model.model_copy(update={"path": begun, "shape": None})}
    changed["policies"] = tuple(kept)
    if (path / REFERENCE).is_dir():
        changed["reference"] = loaded.run.reference.model_copy(update={"path": str(path / REFERENCE)})
    return replace(loaded, run=loaded.run.model_copy(update=changed))


def _carried(held: Sequence[Held]) -> str:
    """What a resumed run finds of the groups that were under way."""
    past = [each for group in held for each in group.past.values()]
    tokens = sum(len(said.so_far.ids) for each in past for said in each.turns)
    whole = sum(each.whole is not None for each in past)
    return f"goes on with {len(held)} groups under way: {whole} whole attempts, {tokens} tokens of others"


def _conclude(run: Run, directory: RunDirectory, finished: int) -> None:
    """The last words of a run: where things are, and what it was good for."""
    directory.curve.write_text(curve_from(directory.metrics), encoding="utf-8")
    if finished < run.steps:
        _say(f"interrupted after step {finished} of {run.steps}; go on with `roll resume {directory.path}`")
        raise typer.Exit(INTERRUPTED)
    _say(f"model: {directory.path / 'model'}")
    _say(f"learning curve: {directory.curve}")
    found = [line for line in read_lines(directory.metrics) if line.get("validation/accuracy") is not None]
    if found:
        first, last = found[0]["validation/accuracy"], found[-1]["validation/accuracy"]
        _say(f"held-out accuracy: {first:.3f} -> {last:.3f}")


def _tell(screened: Sequence[Screened], directory: RunDirectory) -> None:
    """How many tasks there are and what was left out, on the terminal and beside the run."""
    for account in screened:
        _say(str(account))
    lines = [json.dumps(asdict(account), ensure_ascii=False) + "\n" for account in screened]
    (directory.path / "screening.jsonl").write_text("".join(lines), encoding="utf-8")


def _warn(run: Run) -> None:
    """Say what a run may well founder on."""
    if told := uncorrected(run):
        _say(f"warning: rollout.max_staleness is {run.rollout.max_staleness:g}, and the correction is {told}")


def _say(line: str) -> None:
    typer.echo(line)


def _row(source: str, trajectory: Trajectory, template: Template) -> dict[str, Any]:
    """One attempt, for a file that people read."""
    return {
        "source": source,
        "id": trajectory.task.id,
        "status": str(trajectory.status),
        "reason": trajectory.reason,
        "reward": trajectory.reward if trajectory.status.valid else None,
        "metrics": trajectory.metrics,
        "replies": [template.decode(turn.sampled) for turn in trajectory.turns],
    }
