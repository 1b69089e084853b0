"""The command `roll`. Each command imports what it needs when it runs, so that help and checks stay light."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import roll
from roll.allocator import keep_freed_memory
from roll.errors import ConfigError, RunStopped, WorkerDied

if TYPE_CHECKING:
    from roll.config.load import Loaded
    from roll.config.schema import Run

app = typer.Typer(
    help="Reinforcement learning for large language models.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,  # a bug ends in Python's own traceback
)

File = Annotated[Path, typer.Argument(metavar="RUN.YAML", help="The file that describes the run.")]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(metavar="KEY.SUB=VALUE", help="Laid over the file, such as rollout.group_size=4."),
]
Directory = Annotated[Path, typer.Argument(metavar="DIRECTORY", help="The directory of a run, such as runs/demo.")]
Planned = Annotated[
    str | None,
    typer.Option("--cluster", metavar="2x8xH200", help="Place it on nodes x devices of a kind, not on this machine."),
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Delete what an earlier run of this name has left.")]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; faults that are not bugs end in a line each and an exit code, without a traceback.

    0 is success, 2 a fault of the user's input, 3 a run that had to stop, 130 an interrupt (which typer sees to).
    """
    keep_freed_memory()
    try:
        app(arguments)
    except ConfigError as error:
        _leave(str(error), 2)
    except (RunStopped, WorkerDied) as error:
        _leave(str(error), 3)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise
        where = f" ({error.filename})" if error.filename else ""
        _leave(f"disk is full: {error.strerror}{where}; free some space, then 'roll resume' the run", 3)


@app.callback(invoke_without_command=True)
def _root(version: Annotated[bool, typer.Option("--version", help="Print the version and leave.")] = False) -> None:
    if version:
        typer.echo(f"roll {roll.__version__}")
        raise typer.Exit


@app.command()
def train(path: File, overrides: Overrides = None, overwrite: Overwrite = False) -> None:
    """Train a model by reinforcement, as the file says.

    Ctrl-C once finishes the step, writes a checkpoint and leaves with exit code 130; twice leaves at once.
    """
    loaded = _checked(path, overrides)
    from roll.commands import train as commands

    commands.train(loaded, overwrite=overwrite)


@app.command()
def resume(directory: Directory, overrides: Overrides = None) -> None:
    """Go on with a run from its newest checkpoint. Ctrl-C works as in `roll train`."""
    from roll.commands import train as commands

    commands.resume(directory, overrides or [])


@app.command()
def check(path: File, overrides: Overrides = None, cluster: Planned = None) -> None:
    """Say all that is wrong with a file; starts nothing. With a cluster to be named, data and models may be there."""
    loaded = _checked(path, overrides, files=cluster is None)
    from roll.explain.devices import placement
    from roll.explain.run import headline

    plan = "" if cluster is None else _planned(loaded.run, cluster)
    typer.echo(f"{path}: ok")
    typer.echo(headline(loaded.run))
    typer.echo(f"{placement(loaded.run)}\n{plan}".rstrip())


@app.command("explain")
def describe(path: File, overrides: Overrides = None, cluster: Planned = None) -> None:
    """Say in words what a file means, and which devices it takes: this machine's, or those of a cluster to be named."""
    from roll.config.load import load
    from roll.explain.run import explain
    from roll.preflight import preflight

    loaded = load(path, overrides or [])
    preflight(loaded, files=False)
    plan = _planned(loaded.run, cluster)
    typer.echo(f"{explain(loaded.run)}\n\n{plan}")


@app.command("eval")
def evaluate(
    path: File,
    overrides: Overrides = None,
    output: Annotated[Path | None, typer.Option("--output", help="Write the attempts to this file.")] = None,
) -> None:
    """Measure a model on the validation tasks without training it."""
    loaded = _checked(path, overrides)
    from roll.commands import train as commands

    commands.evaluate(loaded, output=output)


@app.command()
def rollout(
    path: File,
    overrides: Overrides = None,
    tasks: Annotated[str | None, typer.Option("--tasks", help="Which source of the file; none: the first.")] = None,
    num: Annotated[int, typer.Option("--num", help="How many attempts.", min=1)] = 8,
    agent: Annotated[
        str, typer.Option("--agent", help="model, random, a player by name, or package.module:agent.")
    ] = "model",
    output: Annotated[Path | None, typer.Option("--output", help="Write the transcripts to this file.")] = None,
) -> None:
    """Attempt tasks without training, by the model or by an agent; prints the transcripts, and what they came to."""
    loaded = _checked(path, overrides)
    from roll.commands import rollout as attempts

    attempts.rollout(loaded, attempts.Request(tasks=tasks, num=num, agent=agent, output=output))


@app.command()
def sft(path: File, overrides: Overrides = None, overwrite: Overwrite = False) -> None:
    """Warm a model up on the answers of its tasks."""
    loaded = _checked(path, overrides)
    from roll.commands import train as commands

    commands.warm_start(loaded, overwrite=overwrite)


@app.command()
def score(  # noqa: PLR0913 - a parameter for each option
    path: Annotated[
        Path, typer.Argument(metavar="REPLIES.JSONL", help="A JSON object a line, with `reply` or `replies`.")
    ],
    reward: Annotated[str | None, typer.Option("--reward", help="A name, or package.module:attribute.")] = None,
    option: Annotated[
        list[str] | None, typer.Option("--option", help="KEY=VALUE for the reward; again for more.")
    ] = None,
    field: Annotated[list[str] | None, typer.Option("--field", help="What the file calls it: answer=gold.")] = None,
    run: Annotated[Path | None, typer.Option("--run", help="Take the reward from this run's file.")] = None,
    source: Annotated[str | None, typer.Option("--source", help="Which source of the run.")] = None,
    workers: Annotated[int | None, typer.Option("--workers", help="Processes that score; 0: here.", min=0)] = None,
    timeout: Annotated[float | None, typer.Option("--timeout", help="Seconds for one score.", min=0.001)] = None,
    output: Annotated[Path | None, typer.Option("--output", help="Write the scores to this file.")] = None,
) -> None:
    """Score a file of replies with any reward; prints a line of JSON a reply, and a summary at the end."""
    from roll.commands import score as scoring

    scoring.score(
        scoring.Request(
            path=path,
            reward=reward,
            options=option or (),
            fields=field or (),
            run=run,
            source=source,
            workers=workers,
            timeout_s=timeout,
            output=output,
        )
    )


@app.command()
def play(
    env: Annotated[str, typer.Argument(metavar="ENV", help="A name, or package.module:attribute.")],
    options: Annotated[
        list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Its arguments, such as size=5.")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="Which of its worlds.", min=0)] = 0,
) -> None:
    """Play an environment yourself: arrow keys or letters where it has moves, else lines; q leaves."""
    from roll.commands import play as playing
    from roll.preflight import importable

    importable(Path("play"))  # what lies in the current directory
    playing.play(env, options or [], seed=seed, said=sys.stdin, say=typer.echo)


@app.command()
def samples(
    directory: Directory,
    step: Annotated[int | None, typer.Option("--step", help="Only what this step trained on.")] = None,
    last: Annotated[int, typer.Option("--last", help="How many to show, the newest.", min=1)] = 5,
    domain: Annotated[str | None, typer.Option("--domain", help="Only tasks of this name.")] = None,
    status: Annotated[str | None, typer.Option("--status", help="Only this outcome, such as truncated.")] = None,
) -> None:
    """Show what the model wrote, with rewards, versions and reasons."""
    from roll.report.samples import show

    for line in show(directory, step=step, last=last, domain=domain, status=status):
        typer.echo(line)


@app.command()
def report(
    directory: Directory,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object instead of tables.")] = False,
) -> None:
    """Say where every second, token, attempt and group of a run went."""
    import msgspec

    from roll.report.ledger import ledger
    from roll.report.report import report as text

    found = ledger(directory)
    typer.echo(msgspec.json.encode(found).decode() if as_json else text(found))


@app.command()
def timeline(
    directory: Directory,
    output: Annotated[Path, typer.Option("--output", help="The file; .svg makes a picture.")] = Path("trace.json"),
    steps: Annotated[str | None, typer.Option("--steps", help="Only what these trained on, such as 10:12.")] = None,
) -> None:
    """Write a run as a trace for ui.perfetto.dev or chrome://tracing."""
    from roll.report.timeline import write

    typer.echo(f"{write(directory, output, steps)} attempts: {output}")


@app.command()
def export(
    directory: Directory,
    output: Annotated[Path, typer.Option("--output", help="The directory to write.")] = Path("model"),
    apart: Annotated[bool, typer.Option("--apart", help="The adapter alone, as peft reads it.")] = False,
) -> None:
    """Write the newest adapter of a run, added into its model, as a Hugging Face directory."""
    from roll.commands.export import export as write

    typer.echo(f"{write(directory, output, apart=apart)}: {output}")


@app.command("list")
def names(
    kind: Annotated[str | None, typer.Argument(metavar="KIND", help="Such as rewards; none lists all kinds.")] = None,
) -> None:
    """Say which recipes, rewards, environments, datasets and parts of algorithms a file may name."""
    from roll.config.load import recipes
    from roll.errors import UnknownName
    from roll.registry import TABLES

    kind = {"envs": "environments"}.get(kind or "", kind)  # as the key of a file has it
    if kind is not None and kind not in (known := ("recipes", *TABLES)):
        raise UnknownName("kind", kind, known)
    found = {"recipes": {name: text.partition("\n")[0].lstrip("# ") for name, text in recipes().items()}}
    found |= {each: table.summaries() for each, table in TABLES.items()}
    for title in found if kind is None else (kind,):
        typer.echo(title)
        for name, summary in found[title].items():
            typer.echo(f"  {name:<{max(map(len, found[title]))}}  {summary}".rstrip())


@app.command()
def doctor(as_json: Annotated[bool, typer.Option("--json", help="One JSON list instead of a table.")] = False) -> None:
    """Say what this machine has: devices, packages, Ray, the sandbox; and how to get what is missing."""
    import msgspec

    from roll.commands.doctor import examine, page

    found = examine()
    typer.echo(msgspec.json.encode(found).decode() if as_json else page(found))


@app.command()
def bench(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="Which one; none lists them.")] = None,
) -> None:
    """Run a benchmark; its last line is one JSON object."""
    root = Path(__file__).parents[1]
    if not (root / "benchmarks" / "run.py").is_file():
        raise ConfigError("roll bench: benchmarks are not part of the installed package; run it in a clone of roll")
    sys.path.insert(0, str(root))
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(root), os.environ.get("PYTHONPATH"))))  # for children
    from benchmarks import run

    run.main(name)


def _checked(path: Path, overrides: list[str] | None, *, files: bool = True) -> Loaded:
    """The run in `path`, with nothing left to be found wrong before it starts."""
    from roll.config.load import load
    from roll.preflight import preflight

    loaded = load(path, overrides or [])
    preflight(loaded, files=files)
    return loaded


def _planned(run: Run, cluster: str | None) -> str:
    from roll.explain.placement import plan_in_words

    return plan_in_words(run, cluster)


def _leave(message: str, code: int) -> None:
    typer.echo(message, err=True)
    sys.exit(code)


if __name__ == "__main__":
    main()
