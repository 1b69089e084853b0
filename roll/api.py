"""The Python interface: the commands as functions, with Python objects in place of names.

Everything here is also an attribute of `roll`. Where a configuration names a function or class, an object may be given
instead. Errors are those of `roll.errors`; nothing exits the process. All functions may be called in a notebook.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from roll.allocator import keep_freed_memory
from roll.config.document import COMMAND_LINE
from roll.config.load import LoadedRun, source_keys, tree_of
from roll.config.load import load as load_config
from roll.errors import ConfigError, RollError, RunStopped, UnknownName, WorkerDied
from roll.objects import importable_objects, replace_objects
from roll.preflight import preflight

if TYPE_CHECKING:
    from pandas import DataFrame  # pyright: ignore[reportMissingTypeStubs]

    from roll.background import Training
    from roll.commands.evaluate import Evaluation
    from roll.commands.lifecycle import Embedded
    from roll.commands.train import Result

__all__ = [
    "ConfigError",
    "Evaluation",
    "LoadedRun",
    "Result",
    "RollError",
    "RunStopped",
    "Training",
    "WorkerDied",
    "evaluate",
    "load",
    "metrics",
    "metrics_frame",
    "resume",
    "samples",
    "samples_frame",
    "start",
    "train",
]

Config: TypeAlias = str | PathLike[str] | Mapping[str, Any] | LoadedRun
"""The path of a YAML file, the same as a dictionary, or a loaded run."""
Rewards: TypeAlias = Mapping[str, Callable[..., Any]]
"""Rewards by the name of the task source that they score."""


def load(config: Config, *, rewards: Rewards | None = None, **overrides: Any) -> LoadedRun:
    """The valid run of a file or dictionary; raises `ConfigError` with one line per fault.

    An override is named by its dotted key: `steps=5`, `**{"rollout.group_size": 4}`. A reward of `rewards` applies to
    training, validation and SFT sources of its name.
    """
    return _load(config, rewards, overrides)[0]


def train(
    config: Config, *, rewards: Rewards | None = None, overwrite: bool = False, resume: bool = False, **overrides: Any
) -> Result:
    """Train a model, as `roll train`. With `resume`, continue the run if it has anything to continue from.

    The first Ctrl-C finishes the step and returns; the second raises `KeyboardInterrupt`.
    """
    work, _ = _training(config, rewards, overrides, overwrite=overwrite, resume=resume)
    return work(None)


def start(
    config: Config, *, rewards: Rewards | None = None, overwrite: bool = False, resume: bool = False, **overrides: Any
) -> Training:
    """Train a model in the background, one run at a time; the arguments are those of `train`.

    Signals do not reach the run: `stop` of the result finishes its step and ends it.
    """
    from roll.background import Training, check_alone

    work, loaded = _training(config, rewards, overrides, overwrite=overwrite, resume=resume)
    directory = Path(loaded.run.directory) / loaded.run.name
    check_alone(directory)
    with _objects_of(loaded):
        preflight(loaded)  # its errors belong to this call
    return Training(directory, work)


def _training(
    config: Config, rewards: Rewards | None, overrides: Mapping[str, Any], *, overwrite: bool, resume: bool
) -> tuple[Callable[[Embedded | None], Result], LoadedRun]:
    """The training of a valid configuration as a function, and the run."""
    from roll.commands import train as commands
    from roll.commands.lifecycle import Embedded

    if overwrite and resume:
        raise ConfigError("train: overwrite=True deletes the run that resume=True continues; leave one of them out")
    loaded, assignments = _load(config, rewards, overrides)
    again = [assignments[key] for key in overrides]  # a resumed run has its rewards in its configuration

    def work(embedded: Embedded | None) -> Result:
        with _objects_of(loaded):
            preflight(loaded)
            return commands.train(
                loaded, overwrite=overwrite, resume=resume, overrides=again, embedded=embedded or Embedded()
            )

    return work, loaded


def resume(run: str | PathLike[str], *, rewards: Rewards | None = None, **overrides: Any) -> Result:
    """Continue the run in a directory from its newest checkpoint, as `roll resume`.

    Objects that the run was started with must be passed again, unless they can be imported.
    """
    from roll.commands import train as commands
    from roll.commands.lifecycle import Embedded

    loaded, assignments = _load(Path(run) / "config.yaml", rewards, overrides)
    with _objects_of(loaded):
        return commands.resume(Path(run), list(assignments.values()), embedded=Embedded())


def evaluate(config: Config, *, rewards: Rewards | None = None, **overrides: Any) -> Evaluation:
    """Measure a model on the validation tasks without training it, as `roll eval`."""
    from roll.commands.evaluate import evaluate as run_evaluation

    loaded, _ = _load(config, rewards, overrides)
    with _objects_of(loaded):
        preflight(loaded)
        result = run_evaluation(loaded)
    return replace(result, samples=[_flatten(row) for row in result.samples])


def metrics(run: str | PathLike[str]) -> list[dict[str, Any]]:
    """The metrics of a run, one row per step; `docs/metrics.md` describes them."""
    from roll.tracking.directory import METRICS, check_run
    from roll.tracking.sinks import read_lines

    check_run(Path(run), METRICS)
    return read_lines(Path(run) / METRICS)


def samples(
    run: str | PathLike[str],
    *,
    step: int | None = None,
    last: int | None = None,
    domain: str | None = None,
    status: str | None = None,
) -> list[dict[str, Any]]:
    """The sampled trajectories of a run, one flat row each, the newest last; `last` limits their number."""
    from roll.report.samples import SampleQuery, sample_rows

    query = SampleQuery(step=step, last=last, domain=domain, status=status)
    return [_flatten(row) for row in sample_rows(Path(run), query)]


def metrics_frame(run: str | PathLike[str]) -> DataFrame:
    """The metrics of a run as a DataFrame of pandas, with the step as its index."""
    from roll.background import frame

    return frame(metrics(run), "step")


def samples_frame(run: str | PathLike[str], **query: Any) -> DataFrame:
    """The rows of `samples` with these arguments as a DataFrame of pandas."""
    from roll.background import frame

    return frame(samples(run, **query))


def _flatten(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row with `parts/exact` in place of the dictionary `parts`, and `num_turns` in place of the list `turns`."""
    flat: dict[str, Any] = {}
    for key, value in row.items():
        if key in ("parts", "metrics"):
            flat |= {f"{key}/{name}": number for name, number in value.items()}
        elif key in ("turns", "versions"):
            flat |= {"num_turns": len(value)} if key == "turns" else {"version": max(value, default=None)}
        else:
            flat[key] = value
    return flat


def _load(config: Config, rewards: Rewards | None, overrides: Mapping[str, Any]) -> tuple[LoadedRun, dict[str, str]]:
    """The run with its overrides, and by key the overrides as the command line writes them."""
    objects = dict(config.objects) if isinstance(config, LoadedRun) else {}
    if isinstance(config, LoadedRun):
        if not rewards and not overrides:
            return config, {}
        source: Path | Mapping[str, Any] = tree_of(config.run)
    else:
        source = replace_objects(config, objects) if isinstance(config, Mapping) else Path(config)
    changed = {**_reward_keys(source, rewards or {}), **overrides}
    plain = {key: replace_objects(value, objects, key) for key, value in changed.items()}
    assignments = {key: f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in plain.items()}
    try:
        loaded = load_config(source, list(assignments.values()))
    except ConfigError as error:  # there is no command line here
        lines = [line.replace(f"{COMMAND_LINE}: ", "argument: ") for line in str(error).splitlines()]
        raise ConfigError("\n".join(lines)) from None
    path = config.path if isinstance(config, LoadedRun) else loaded.path
    return replace(loaded, path=path, objects=objects), assignments


def _reward_keys(source: Path | Mapping[str, Any], rewards: Rewards) -> dict[str, Any]:
    """The rewards by the dotted keys of their sources."""
    keys = source_keys(source) if rewards else {}
    for name in rewards:
        if name not in keys:
            raise UnknownName("task source", name, keys)
    return {f"{key}.reward": reward for name, reward in rewards.items() for key in keys[name]}


@contextmanager
def _objects_of(loaded: LoadedRun) -> Generator[None]:
    """Makes the objects of a run importable inside this block, in the processes that the run starts as well."""
    keep_freed_memory()
    run = loaded.run
    spread = run.executor == "ray"  # its workers may be on other machines, which share the folder of runs
    if spread and loaded.objects:
        Path(run.directory).mkdir(parents=True, exist_ok=True)
    folder = Path(run.directory).absolute() if spread and loaded.objects else None
    processes = spread or bool(run.rewards.workers or run.envs.workers)
    with importable_objects(loaded.objects, folder, processes=processes):
        yield


def __getattr__(name: str) -> Any:
    """The records of the commands, imported on first use: they need torch."""
    if name == "Result":
        from roll.commands.train import Result

        return Result
    if name == "Evaluation":
        from roll.commands.evaluate import Evaluation

        return Evaluation
    if name == "Training":
        from roll.background import Training

        return Training
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
