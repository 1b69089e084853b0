"""Arguments and options that several commands of `roll` share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

File = Annotated[Path, typer.Argument(metavar="RUN.YAML", help="Configuration file of the run.")]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(metavar="KEY.SUB=VALUE", help="Overrides a key of the file, such as rollout.group_size=4."),
]
Directory = Annotated[Path, typer.Argument(metavar="DIRECTORY", help="Directory of a run, such as runs/demo.")]
ClusterOption = Annotated[
    str | None,
    typer.Option("--cluster", metavar="2x8xH200", help="Plan for NODESxDEVICESxKIND instead of this machine."),
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Delete the earlier run of the same name.")]
Resume = Annotated[
    bool, typer.Option("--resume", help="Continue the run from its newest checkpoint; without one, start it.")
]
Supervise = Annotated[
    bool, typer.Option("--supervise", help="Start the run again from its newest checkpoint if it crashes or hangs.")
]
Restarts = Annotated[
    int, typer.Option("--restarts", min=0, help="With --supervise: most restarts in a row without a new checkpoint.")
]
HangTimeout = Annotated[
    float, typer.Option("--hang-timeout", min=5, help="With --supervise: seconds without heartbeat that are a hang.")
]
RESTARTS, HANG_TIMEOUT_S = 10, 600.0
"""Defaults of these options."""
Source = Annotated[
    str | None, typer.Option("--from", metavar="URL", help="Create DIRECTORY from a copy of checkpoint.mirror.")
]


class RunCommand(TyperCommand):
    """A command with overrides; its error about an unknown option says how to write a key of the file."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        words = list(args)
        try:
            return super().parse_args(ctx, args)
        except Exception as error:
            if type(error).__name__ == "NoSuchOption":  # its module depends on the version of typer
                _add_override(error, words)
            raise


def _add_override(error: Any, arguments: list[str]) -> None:
    """Add to an error about the option `--steps` that `steps=5` is the way to write it, if there is such a key."""
    from roll.config.knobs import knobs

    name = error.option_name.lstrip("-").replace("-", "_")
    keys = [knob.key for knob in knobs() if f".{knob.key}".endswith(f".{name}") and ".N." not in knob.key]
    if name not in keys and len(keys) != 1:
        return
    values = " ".join(arguments).partition(error.option_name)[2].replace("=", " ").split()
    value = values[0] if values and not values[0].startswith("--") else "..."
    error.message += f"; write {name if name in keys else keys[0]}={value}"
    error.possibilities = None
