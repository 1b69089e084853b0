"""`roll list`: the names that a file can use."""

from __future__ import annotations

from typing import Annotated

import typer


def names(
    kind: Annotated[str | None, typer.Argument(metavar="KIND", help="Such as rewards (default: all kinds).")] = None,
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="Print the arguments of this one, such as math.")
    ] = None,
) -> None:
    """List the recipes, rewards, environments, datasets and algorithm parts that a file can name."""
    from roll.explain.listing import list_arguments, list_names

    for line in list_names(kind) if kind is None or name is None else list_arguments(kind, name):
        typer.echo(line)
