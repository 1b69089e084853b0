"""`roll distill`: trains a student on the distributions of a teacher, live or stored."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import typer

from roll.commands import offline
from roll.commands.lifecycle import run_async, running
from roll.commands.offline import OfflineParts, OfflineProcess, first_and_last, train_policy
from roll.commands.train import from_checkpoint
from roll.config.load import LoadedRun
from roll.config.schema import Run
from roll.errors import ConfigError
from roll.pipelines.checkpointer import Checkpointer
from roll.pipelines.distill import DistillLoop, TaughtRows
from roll.rollout.resume import ResumeState
from roll.tracking.directory import RunDirectory
from roll.tracking.log import announce
from roll.wiring.data import Data, build_data
from roll.wiring.distillation import (
    DistillRows,
    build_distill_loop,
    build_rows,
    build_taught_rows,
    distill_run,
    encode_rows,
    store_path,
    write_store,
)
from roll.wiring.models import Roles, build_roles
from roll.wiring.run import RunServices


class DistillCommand:
    """The command of distillation."""

    name = section = "distill"
    title = "distillation"

    def prepare(self, run: Run) -> Run:
        return distill_run(run)

    def from_checkpoint(self, loaded: LoadedRun, path: Path, newest: Path) -> LoadedRun:
        return from_checkpoint(loaded, path, newest)

    async def train(self, process: OfflineProcess) -> int:
        return await train_policy(self, self.prepare(process.file), process)

    def read(self, run: Run, roles: Roles, tasks: Data) -> DistillRows:
        return build_rows(run, roles.template, tasks)

    async def score(self, parts: OfflineParts, checkpointer: Checkpointer) -> dict[str, TaughtRows]:
        """Writes a store that does not exist yet."""
        announce(describe_rows(parts.examples))
        return await build_taught_rows(parts.run, parts.roles, parts.examples)

    def build_loop(
        self, parts: OfflineParts, scores: dict[str, TaughtRows], services: RunServices, resume: ResumeState | None
    ) -> DistillLoop:
        return build_distill_loop(parts.run, parts.roles, (parts.tasks, parts.examples), scores, services, resume)

    def describe_result(self, directory: RunDirectory) -> list[str]:
        names = {"distillation/held_out_loss": "held-out loss", "validation/accuracy": "held-out tasks"}
        return first_and_last(directory, names)


DISTILL = DistillCommand()
resume = partial(offline.continue_directory, DISTILL)


def distill(loaded: LoadedRun, *, overwrite: bool, resume: bool = False, overrides: Sequence[str] = ()) -> bool:
    """Train the student; the model is written to `<run directory>-distill/model`. False if an interrupt ended it."""
    return offline.start(DISTILL, loaded, overwrite=overwrite, resume=resume, overrides=overrides)


def store(loaded: LoadedRun, *, overwrite: bool) -> None:
    """Write the teacher's logprobs to `distill.store`, without training."""
    path = store_path(loaded.run)
    if path is None:
        raise ConfigError("distill.store: there is no path to write to; add one, with distill.top_k")
    if path.exists() and not overwrite:
        raise ConfigError(f"distill.store: {path} exists already; add --overwrite, or give another path")
    run_async(_store(distill_run(loaded.run, storing=True)))


async def _store(run: Run) -> None:
    roles = build_roles(run, run.actor_train.optimizer, run.steps)
    tasks = build_data(run, run.tasks, roles.template, roles.executor)
    rows, path = encode_rows(run, roles.template, tasks), store_path(run)
    assert path is not None, "`store` has checked it"
    typer.echo(describe_rows(rows))
    async with running(roles):
        await write_store(run, roles, rows, path)
    typer.echo(f"teacher logprobs: {path}, the {rows.header.top_k} most likely tokens at each place")


def describe_rows(rows: DistillRows) -> str:
    """The number of rows, and of tokens to learn."""
    training, held_out = rows.sets["training"], rows.sets["held_out"]
    tokens = rows.header.tokens["training"]
    return f"distillation: {len(training):,} rows with {tokens:,} tokens to learn, {len(held_out):,} rows held out"
