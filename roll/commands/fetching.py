"""Gets checkpoints of a run back from the store they were copied to."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import typer

from roll.checkpoint import Checkpoints, IntactCheckpoint
from roll.config.schema import Run
from roll.errors import ConfigError
from roll.pipelines.store import CHECKPOINT, RUN, CheckpointStore, reading
from roll.tracking.directory import JOURNAL

_TEMPORARY = ".fetched"


def mirror_url(run: Run) -> str | None:
    """The folder of this run in its store."""
    return None if run.checkpoint.mirror is None else f"{run.checkpoint.mirror.rstrip('/')}/{run.name}"


def check_unused(run: Run) -> None:
    """Refuse to start a run whose store has checkpoints of an earlier one."""
    if (url := mirror_url(run)) is not None:
        store = CheckpointStore(url)
        with reading(url):
            steps = store.steps()
        if steps:
            raise ConfigError(
                f"{url}: has checkpoints of a run already; continue it with `roll resume DIRECTORY --from {url}`, "
                "add --overwrite, or change name="
            )


def fetch_run(url: str, path: Path) -> None:
    """Create the run directory `path` from the newest intact checkpoint of a store."""
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise ConfigError(f"{path}: exists already; give a new directory for --from, or leave --from out")
    created = not path.exists()
    path.mkdir(parents=True, exist_ok=True)
    try:
        if fetch_newest(url, path) is None:
            raise ConfigError(
                f"{url}: has no complete checkpoint; give the URL of a run, such as s3://bucket/runs/demo"
            )
    except BaseException:
        if created:
            shutil.rmtree(path)
        raise


def newest_checkpoint(run: Run, directory: Path) -> IntactCheckpoint | None:
    """The newest intact checkpoint of a run; taken from its store if it is missing or damaged here."""
    checkpoints = Checkpoints(directory / "checkpoints", keep=run.checkpoint.keep)
    checkpoints.recover()
    newest, fault = None, None
    try:
        newest = checkpoints.newest_intact()
    except ConfigError as error:
        fault = error
    url = mirror_url(run)
    if url is not None and (newest is None or newest.damaged or not (directory / JOURNAL).is_file()):
        local = -1 if newest is None else int(newest.path.name.removeprefix("step-"))
        try:
            fetched = fetch_newest(url, directory, newer_than=local)
        except ConfigError as error:
            typer.echo(str(error), err=True)
            fetched = None
        if fetched is not None and (intact := checkpoints.newest_intact()) is not None:
            return replace(intact, notes=tuple(dict.fromkeys((*(newest.notes if newest else ()), *intact.notes))))
    if fault is not None:
        raise fault
    return newest


def fetch_newest(url: str, directory: Path, *, newer_than: int = -1) -> Path | None:
    """Copy the newest intact checkpoint above a step from a store; files of the run are added where it has none.

    None if the store has no such checkpoint. A damaged checkpoint of the same step in the directory is renamed.
    """
    store, temporary = CheckpointStore(url), directory / _TEMPORARY
    with reading(url):
        steps = [step for step in reversed(store.steps()) if step > newer_than]
    for step in steps:
        shutil.rmtree(temporary, ignore_errors=True)
        typer.echo(f"getting step-{step} from {url}")
        try:
            with reading(url):
                store.download(step, temporary)
        except ConfigError as error:
            typer.echo(f"{error}; trying an older one", err=True)
            continue
        return _install(temporary, directory, step)
    return None


def _install(temporary: Path, directory: Path, step: int) -> Path:
    checkpoints = Checkpoints(directory / "checkpoints", keep=1)
    checkpoints.directory.mkdir(exist_ok=True)
    final = checkpoints.directory / f"step-{step}"
    if final.exists():
        checkpoints.set_aside(final)
    for path in (temporary / RUN).iterdir():
        if not (directory / path.name).exists():
            path.rename(directory / path.name)
    (temporary / CHECKPOINT).rename(final)
    shutil.rmtree(temporary)
    return final
