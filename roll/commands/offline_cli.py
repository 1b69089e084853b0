"""The commands `roll dpo`, `distill` and `reward` with their options. They import their modules when they run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from roll.commands.entry import exit_unless_finished, load_checked
from roll.commands.options import File, Overrides, Overwrite, Resume
from roll.errors import ConfigError

if TYPE_CHECKING:
    from roll.commands.offline import FixedCommand
    from roll.config.load import LoadedRun


def command_of(directory: Path) -> FixedCommand | None:
    """The command whose run this directory has; None if it is that of `roll train`."""
    if not directory.resolve().name.endswith(("-dpo", "-distill", "-reward")):
        return None
    from roll.commands import offline
    from roll.commands.distill import DISTILL
    from roll.commands.dpo import DPO
    from roll.commands.reward import REWARD

    commands: tuple[FixedCommand, ...] = (DPO, DISTILL, REWARD)
    return next((command for command in commands if offline.owns(command, directory)), None)


def dpo(path: File, overrides: Overrides = None, overwrite: Overwrite = False, resume: Resume = False) -> None:
    """Train a model on preferences: pairs of responses, or single ones with a label."""
    loaded = _load("dpo", path, overrides, both=overwrite and resume)
    from roll.commands.dpo import dpo as run_dpo

    exit_unless_finished(lambda: run_dpo(loaded, overwrite=overwrite, resume=resume, overrides=overrides or ()))


def reward(path: File, overrides: Overrides = None, overwrite: Overwrite = False, resume: Resume = False) -> None:
    """Train a reward model: on pairs of responses, ratings, labels, or labels of steps."""
    loaded = _load("reward", path, overrides, both=overwrite and resume)
    from roll.commands.reward import reward as run_reward

    exit_unless_finished(lambda: run_reward(loaded, overwrite=overwrite, resume=resume, overrides=overrides or ()))


def distill(
    path: File,
    overrides: Overrides = None,
    overwrite: Overwrite = False,
    resume: Resume = False,
    store: Annotated[bool, typer.Option("--store", help="Only write the teacher's logprobs to distill.store.")] = False,
) -> None:
    """Train a student on the distributions of a teacher, live or stored."""
    loaded = _load("distill", path, overrides, both=overwrite and resume)
    from roll.commands import distill as commands

    if store:
        commands.store(loaded, overwrite=overwrite)
    else:
        exit_unless_finished(
            lambda: commands.distill(loaded, overwrite=overwrite, resume=resume, overrides=overrides or ())
        )


def _load(name: str, path: Path, overrides: list[str] | None, *, both: bool) -> LoadedRun:
    """The checked file; `both` options exclude each other."""
    if both:
        raise ConfigError(f"roll {name}: --overwrite deletes the run that --resume continues; leave one of them out")
    return load_checked(path, overrides)
