"""The command `roll`. Each command imports its modules when it runs, so that help and checks stay fast."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import roll
from roll.allocator import keep_freed_memory
from roll.commands.audit import audits, rewards
from roll.commands.chaos.command import chaos
from roll.commands.compare import compare
from roll.commands.entry import exit_unless_finished, load_checked
from roll.commands.generators import generators
from roll.commands.listing import names
from roll.commands.offline_cli import command_of, distill, dpo, reward
from roll.commands.options import (
    HANG_TIMEOUT_S,
    RESTARTS,
    ClusterOption,
    Directory,
    File,
    HangTimeout,
    Overrides,
    Overwrite,
    Restarts,
    Resume,
    RunCommand,
    Source,
    Supervise,
)
from roll.commands.plan import plan
from roll.commands.report import report
from roll.commands.samples import samples
from roll.commands.stages import run as run_stages
from roll.commands.timeline import timeline
from roll.commands.verify import verify
from roll.commands.watch import watch
from roll.errors import ConfigError, RunStopped, WorkerDied, escape_output

if TYPE_CHECKING:
    pass

app = typer.Typer(
    help="Reinforcement learning for large language models.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,  # bugs show Python's plain traceback
)
imports = typer.Typer(help="Convert a configuration of another project into a run file.", no_args_is_help=True)
app.add_typer(imports, name="import")
app.add_typer(audits, name="audit")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line. Errors that are not bugs print one line each and set the exit code, without a traceback.

    0 is success, 2 an error in the user's input, 3 a run that had to stop, 130 an interrupt.
    """
    keep_freed_memory()
    escape_output()
    try:
        app(arguments)
    except ConfigError as error:
        _exit(str(error), 2)
    except (RunStopped, WorkerDied) as error:
        _exit(str(error), 3)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS):
            raise
        where = f" ({error.filename})" if error.filename else ""
        read_only = error.errno == errno.EROFS
        what, fix = ("not written", "make it writable") if read_only else ("disk is full", "free some space")
        _exit(f"{what}: {error.strerror}{where}; {fix}, then 'roll resume' the run", 3)


@app.callback(invoke_without_command=True)
def _root(version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False) -> None:
    if version:
        typer.echo(f"roll {roll.__version__}")
        raise typer.Exit


@app.command(cls=RunCommand)
def train(  # noqa: PLR0913 - one parameter per option
    path: File,
    overrides: Overrides = None,
    overwrite: Overwrite = False,
    resume: Resume = False,
    supervise: Supervise = False,
    restarts: Restarts = RESTARTS,
    hang_timeout: HangTimeout = HANG_TIMEOUT_S,
) -> None:
    """Train a model by reinforcement learning.

    Ctrl-C once finishes the step, writes a checkpoint and exits with code 130; twice exits at once.
    """
    if overwrite and resume:
        raise ConfigError("roll train: --overwrite deletes the run that --resume continues; leave one of them out")
    from roll.config.load import load
    from roll.preflight import preflight

    loaded, supervised = load(path, overrides or []), None
    if supervise:
        from roll.commands.supervise import supervise_fresh

        supervised = supervise_fresh(loaded.run, overwrite or resume, restarts=restarts, hang_timeout_s=hang_timeout)
        if supervised.restart is not None and supervised.restart.begun:
            overwrite, resume = False, True
    options: dict[str, Any] = {"overwrite": overwrite, "resume": resume, "overrides": overrides or ()}
    with supervised or nullcontext():
        preflight(loaded)
        from roll.commands import train as commands

        exit_unless_finished(lambda: commands.train(loaded, **options, supervised=supervised).finished)


@app.command(cls=RunCommand)
def resume(
    directory: Directory,
    overrides: Overrides = None,
    source: Source = None,
    supervise: Supervise = False,
    restarts: Restarts = RESTARTS,
    hang_timeout: HangTimeout = HANG_TIMEOUT_S,
) -> None:
    """Resume a run from its newest checkpoint. Ctrl-C works as in `roll train`."""
    supervised = None
    if (command := command_of(directory)) is not None:
        from roll.commands.offline import continue_directory

        plain, changes = not (source or supervise), overrides or []
        return exit_unless_finished(lambda: continue_directory(command, directory, changes, plain=plain))
    if supervise:
        from roll.commands.supervise import supervise_existing

        supervised = supervise_existing(directory, restarts=restarts, hang_timeout_s=hang_timeout)
    with supervised or nullcontext():
        from roll.commands import train as commands

        exit_unless_finished(
            lambda: commands.resume(directory, overrides or [], source=source, supervised=supervised).finished
        )


@app.command(cls=RunCommand)
def check(
    path: File,
    overrides: Overrides = None,
    cluster: ClusterOption = None,
    all_rows: Annotated[
        bool, typer.Option("--all-rows", help="Read all rows of task files, not only the first 1,000.")
    ] = False,
) -> None:
    """Report all errors in a file without starting anything. With --cluster, data and models need not exist here."""
    loaded = load_checked(path, overrides, files=cluster is None)
    from roll.commands.check import check_data
    from roll.explain.devices import device_summary
    from roll.explain.placement import format_placement, placement_of
    from roll.explain.run import headline
    from roll.wiring.services import check_sandboxes

    if cluster is None:
        check_sandboxes(loaded)
        check_data(loaded.run, all_rows=all_rows)
    lines = [f"{path}: ok", headline(loaded.run), device_summary(loaded.run)]
    placement = placement_of(loaded.run, cluster)
    lines += [format_placement(placement)] if cluster is not None or placement.fault else []
    typer.echo("\n".join(lines).rstrip())


@app.command("explain", cls=RunCommand)
def describe(
    path: File,
    overrides: Overrides = None,
    cluster: ClusterOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object instead of text.")] = False,
) -> None:
    """Explain a file in words, and its placement on the devices of this machine or of --cluster."""
    run = load_checked(path, overrides, files=False).run
    import msgspec

    from roll.explain.run import explain_on, format_explanation

    explanation = explain_on(run, cluster)
    typer.echo(msgspec.json.encode(explanation).decode() if as_json else format_explanation(explanation))


@app.command("eval", cls=RunCommand)
def evaluate(
    path: File,
    overrides: Overrides = None,
    output: Annotated[Path | None, typer.Option("--output", help="Write the attempts to this file.")] = None,
) -> None:
    """Measure a model on the validation tasks without training it."""
    loaded = load_checked(path, overrides)
    from roll.commands.evaluate import evaluate as run_evaluation

    run_evaluation(loaded, output=output)


@app.command(cls=RunCommand)
def rollout(  # noqa: PLR0913 - one parameter per option
    path: File,
    overrides: Overrides = None,
    tasks: Annotated[str | None, typer.Option("--tasks", help="Name of the task source (default: the first).")] = None,
    num: Annotated[int, typer.Option("--num", help="Number of attempts.", min=1)] = 8,
    agent: Annotated[
        str, typer.Option("--agent", help="model, random, a player by name, or package.module:agent.")
    ] = "model",
    output: Annotated[Path | None, typer.Option("--output", help="Write the transcripts to this file.")] = None,
    min_reward: Annotated[
        float | None, typer.Option("--min-reward", help="Keep the attempts with at least this reward.")
    ] = None,
    best: Annotated[int | None, typer.Option("--best", help="Attempts to keep per task: the best ones.", min=1)] = None,
) -> None:
    """Attempt tasks with the model or an agent, without training; prints transcripts and a summary."""
    loaded = load_checked(path, overrides)
    from roll.commands.rollout import AttemptFilter
    from roll.commands.rollout import rollout as attempt_tasks

    selection = AttemptFilter(min_reward=min_reward, best=best)
    attempt_tasks(loaded, tasks=tasks, num=num, agent=agent, output=output, selection=selection)


@app.command(cls=RunCommand)
def sft(path: File, overrides: Overrides = None, overwrite: Overwrite = False) -> None:
    """Fine-tune a model on the answers of its tasks (warm start)."""
    loaded = load_checked(path, overrides)
    from roll.commands.sft import sft as run_sft

    exit_unless_finished(lambda: run_sft(loaded, overwrite=overwrite))


@app.command()
def score(  # noqa: PLR0913 - one parameter per option
    path: Annotated[
        Path,
        typer.Argument(metavar="RESPONSES.JSONL", help="One JSON object per line, with `response` or `responses`."),
    ],
    reward: Annotated[str | None, typer.Option("--reward", help="A name, or package.module:attribute.")] = None,
    option: Annotated[list[str] | None, typer.Option("--option", help="KEY=VALUE for the reward; repeatable.")] = None,
    field: Annotated[
        list[str] | None, typer.Option("--field", help="Name of a field in the file, such as answer=gold.")
    ] = None,
    run: Annotated[Path | None, typer.Option("--run", help="Use the reward of this run's configuration file.")] = None,
    source: Annotated[str | None, typer.Option("--source", help="Task source of the run.")] = None,
    workers: Annotated[int | None, typer.Option("--workers", help="Scoring processes; 0: this process.", min=0)] = None,
    timeout: Annotated[
        float | None, typer.Option("--timeout", help="Timeout per score, in seconds.", min=0.001)
    ] = None,
    output: Annotated[Path | None, typer.Option("--output", help="Write the scores to this file.")] = None,
) -> None:
    """Score a file of responses with any reward; prints one JSON line per response and a summary at the end."""
    from roll.commands import score as scoring

    scoring.score_file(
        scoring.ScoreRequest(
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
        list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Arguments of the environment, such as size=5.")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="Seed of the environment.", min=0)] = 0,
) -> None:
    """Play an environment yourself: with arrow keys or letters if it has moves, else with lines; q quits."""
    from roll.commands import play as playing
    from roll.preflight import importable

    importable(Path("play"))  # modules in the current directory
    playing.play(env, options or [], seed=seed, keyboard=sys.stdin, echo=typer.echo)


for _command in (samples, timeline, compare, report, verify, watch, generators):
    app.command()(_command)
app.command(cls=RunCommand)(chaos)
app.command(cls=RunCommand)(distill)
app.command(cls=RunCommand)(dpo)
app.command(cls=RunCommand)(reward)
app.command(cls=RunCommand)(plan)
app.command("list")(names)
app.command("run")(run_stages)
audits.command(cls=RunCommand)(rewards)


@app.command()
def export(
    directory: Directory,
    output: Annotated[Path, typer.Option("--output", help="Directory to write.")] = Path("model"),
    adapter_only: Annotated[bool, typer.Option("--adapter-only", help="Write the adapter alone, for peft.")] = False,
) -> None:
    """Write the newest adapter of a run, merged into its model, as a Hugging Face directory."""
    from roll.commands.export import export as write

    typer.echo(f"{write(directory, output, adapter_only=adapter_only)}: {output}")


@app.command()
def doctor(as_json: Annotated[bool, typer.Option("--json", help="One JSON list instead of a table.")] = False) -> None:
    """Check this machine: devices, packages, Ray, the sandbox; prints how to fix what is missing."""
    import msgspec

    from roll.commands.doctor import examine, page

    findings = examine()
    typer.echo(msgspec.json.encode(findings).decode() if as_json else page(findings))


@imports.command("roll")
def import_roll(
    path: Annotated[Path, typer.Argument(metavar="FILE.YAML", help="An rlvr or agentic configuration of ROLL.")],
    output: Annotated[Path | None, typer.Option("--output", help="Write the run file here, not to stdout.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the file of --output.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="The report as one JSON list instead of a table.")] = False,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with code 2 if a key is unknown.")] = False,
) -> None:
    """Convert a configuration of Alibaba's ROLL; reports on stderr what became of every key."""
    from roll.commands.importing.command import write_import

    text, report, num_unknown = write_import(path, output=output, overwrite=overwrite, as_json=as_json)
    typer.echo(text, nl=False)
    typer.echo(report, err=True)
    if strict and num_unknown:
        raise typer.Exit(2)


@app.command()
def bench(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="Benchmark (default: list all).")] = None,
    experiment: Annotated[str | None, typer.Argument(help="For `paper`: its experiment (default: list all).")] = None,
) -> None:
    """Run a benchmark; the last line of its output is one JSON object."""
    root = Path(__file__).parents[1]
    if not (root / "benchmarks" / "run.py").is_file():
        raise ConfigError("roll bench: benchmarks are not part of the installed package; run it in a clone of roll")
    sys.path.insert(0, str(root))
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(root), os.environ.get("PYTHONPATH"))))  # for children
    from benchmarks import run

    run.main(name, experiment)


def _exit(message: str, code: int) -> None:
    typer.echo(message, err=True)
    sys.exit(code)


if __name__ == "__main__":
    main()
