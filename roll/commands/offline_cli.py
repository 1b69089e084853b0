"""The commands `roll dpo` and `roll distill` with their options. They import their modules when they run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from roll.commands.entry import exit_unless_finished, load_checked
from roll.commands.options import File, Overrides, Overwrite, Resume
from roll.errors import ConfigError

if TYPE_CHECKING:
    from roll.commands.offline import OfflineCommand


def command_of(directory: Path) -> OfflineCommand | None:
    """The command whose run this directory has; None if it is that of `roll train`."""
    if not directory.resolve().name.endswith(("-dpo", "-distill")):
        return None
    from roll.commands import offline
    from roll.commands.distill import DISTILL
    from roll.commands.dpo import DPO

    return next((command for command in (DPO, DISTILL) if offline.owns(command, directory)), None)


def dpo(path: File, overrides: Overrides = None, overwrite: Overwrite = False, resume: Resume = False) -> None:
    """Train a model on preferences: pairs of responses, or single ones with a label."""
    if overwrite and resume:
        raise ConfigError("roll dpo: --overwrite deletes the run that --resume continues; leave one of them out")
    loaded = load_checked(path, overrides)
    from roll.commands.dpo import dpo as run_dpo

    exit_unless_finished(lambda: run_dpo(loaded, overwrite=overwrite, resume=resume, overrides=overrides or ()))


def distill(
    path: File,
    overrides: Overrides = None,
    overwrite: Overwrite = False,
    resume: Resume = False,
    store: Annotated[bool, typer.Option("--store", help="Only write the teacher's logprobs to distill.store.")] = False,
) -> None:
    """Train a student on the distributions of a teacher, live or stored."""
    if overwrite and resume:
        raise ConfigError("roll distill: --overwrite deletes the run that --resume continues; leave one of them out")
    loaded = load_checked(path, overrides)
    from roll.commands import distill as commands

    if store:
        commands.store(loaded, overwrite=overwrite)
    else:
        exit_unless_finished(
            lambda: commands.distill(loaded, overwrite=overwrite, resume=resume, overrides=overrides or ())
        )
