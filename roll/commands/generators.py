"""`roll generators`: changes the number of generators of a running job."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from roll.commands.options import Directory
from roll.errors import ConfigError


def generators(
    directory: Directory,
    number: Annotated[
        int | None, typer.Argument(metavar="NUMBER", help="Generators that are wanted from now on.", min=1)
    ] = None,
    remove: Annotated[
        list[int] | None, typer.Option("--remove", metavar="RANK", help="This generator leaves; repeatable.", min=0)
    ] = None,
) -> None:
    """Add generators to a running job or remove some; without NUMBER and --remove, list what joined and left."""
    from roll.config.load import load
    from roll.tracking.directory import check_run
    from roll.tracking.wanted import WantedGenerators

    check_run(directory)
    infer = load(directory / "config.yaml", (), resumed=True).run.actor_infer
    if infer.max_workers is None:
        raise ConfigError(f"{directory}: its number of generators is constant; start it with actor_infer.max_workers")
    if number is None and not remove:
        for line in list_changes(directory):
            typer.echo(line)
        return
    if number is not None and remove:
        raise ConfigError("roll generators: NUMBER and --remove are two requests; give one of them")
    fewest = infer.min_workers or 1
    if number is not None and not fewest <= number <= infer.max_workers:
        raise ConfigError(
            f"NUMBER: is between {fewest} and {infer.max_workers} in this run (got {number}); "
            "actor_infer.min_workers and max_workers are the bounds"
        )
    WantedGenerators(number=number, remove=tuple(remove or ())).write(directory)
    request = f"{number} generators are wanted" if number is not None else f"leave: {', '.join(map(str, remove or ()))}"
    typer.echo(f"{directory}: {request}; a running job follows within seconds, and says so in controller.log")


def list_changes(directory: Path) -> list[str]:
    """One line for each generator that joined, left or was refused, in order."""
    from roll.journal.events import GeneratorJoined, GeneratorLeft, GeneratorRefused
    from roll.report.journals import open_journal

    lines: list[str] = []
    with open_journal(directory) as reader:
        kinds = (GeneratorJoined, GeneratorLeft, GeneratorRefused)
        for entry in sorted((entry for kind in kinds for entry in reader.events(kind)), key=lambda entry: entry.id):
            match entry.event:
                case GeneratorJoined(generator=rank, node=node, version=version, seconds=seconds):
                    lines.append(
                        f"generator {rank} joined on {node or 'an unknown node'} with version {version} "
                        f"after {seconds:.1f} s"
                    )
                case GeneratorLeft(generator=rank, reason=reason, num_requests=num, num_tokens=tokens):
                    lines.append(f"generator {rank} left, {num} requests with {tokens} tokens went on: {reason}")
                case GeneratorRefused(generator=rank, node=node, reason=reason):
                    lines.append(f"generator {rank} was refused on {node or 'an unknown node'}: {reason}")
    return lines or ["no generator has joined or left"]
