"""Runs side by side: curves, final numbers, config keys that differ, and responses before and after training."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, cast

from roll.config.load import read
from roll.errors import ConfigError
from roll.journal.records import StoredTrajectory, TrajectoryQuery
from roll.journal.store import Reader
from roll.report.attempts import attempt_row
from roll.report.held_out import HELD_OUT, read_attempts
from roll.report.journals import open_journal
from roll.report.samples import load_decoder
from roll.tracking.directory import JOURNAL, check_run
from roll.tracking.sinks import read_lines

_CURVES = {
    "reward": ("reward/mean",),
    "held-out": ("validation/accuracy", "validation/reward", "sft/accuracy"),
}
"""Metrics of each curve: the first that a run has."""
_FINAL = 10
"""The final reward is the mean over the last tenth of the steps."""
_MAX_TRAINED = 500
"""Most trained tasks whose responses are read, per run."""
_SAME = ("name", "directory")
"""Keys that differ between any two runs."""

Points = list[tuple[int, float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """What the comparison needs of one run."""

    run: str
    """The directory, as it was given."""
    last_step: int
    curves: dict[str, Points]
    numbers: dict[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseChange:
    """First and last attempt of one run at one task."""

    run: str
    first_step: int
    last_step: int
    before: dict[str, Any]
    """A row, as in `roll samples --json`."""
    after: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One run before and after, or several runs."""

    runs: list[RunSummary]
    config: dict[str, list[Any]]
    """Values by key where they differ, one per run; None where a run lacks the key."""
    tasks: list[list[ResponseChange]]
    """One list per task, with one change per run; those whose reward changed most come first."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def compare_runs(directories: Sequence[Path], num_tasks: int) -> Comparison:
    """Reads the runs, finished or in progress; at most `num_tasks` tasks with responses."""
    repeated = [str(path) for index, path in enumerate(directories) if path in directories[:index]]
    if repeated:
        raise ConfigError(f"{repeated[0]}: given twice; name each run once")
    runs = [_summarise(path) for path in directories]
    configs = [flat_config(path) for path in directories]
    changes = [_changes(path, run.last_step) for path, run in zip(directories, runs, strict=True)]
    return Comparison(runs=runs, config=config_differences(configs), tasks=_common_tasks(changes, num_tasks))


def _summarise(directory: Path) -> RunSummary:
    check_run(directory)
    lines = read_lines(directory / "metrics.jsonl")
    curves = {name: points for name, metrics in _CURVES.items() if (points := _curve(lines, metrics))}
    if not curves:
        raise ConfigError(f"{directory}: no step with a reward or a validation yet; let the run complete one")
    return RunSummary(
        run=str(directory), last_step=lines[-1]["step"], curves=curves, numbers=final_numbers(lines, curves)
    )


def _curve(lines: Sequence[Mapping[str, Any]], metrics: Iterable[str]) -> Points:
    name = next((name for name in metrics if any(line.get(name) is not None for line in lines)), "")
    return [(line["step"], line[name]) for line in lines if line.get(name) is not None]


def final_numbers(lines: Sequence[Mapping[str, Any]], curves: Mapping[str, Points]) -> dict[str, float]:
    """Steps, minutes, and the first and last values of the curves; of `lines` the first and the last count."""
    numbers = {"steps": float(lines[-1]["step"]), "minutes": (lines[-1]["time"] - lines[0]["time"]) / 60}
    rewards = [value for _, value in curves.get("reward", ())]
    if rewards:
        count = max(1, len(rewards) // _FINAL)
        numbers |= {"reward, first steps": fmean(rewards[:count]), "reward, last steps": fmean(rewards[-count:])}
    held_out = [value for _, value in curves.get("held-out", ())]
    if held_out:
        numbers |= {"held-out, first": held_out[0], "held-out, last": held_out[-1], "held-out, best": max(held_out)}
    return numbers


def flat_config(directory: Path) -> dict[str, Any]:
    """Values of the run's configuration by dotted key."""
    return _flatten(read(directory / "config.yaml").tree)


def _flatten(tree: Any, key: str = "") -> dict[str, Any]:
    """Values of the leaves by dotted key."""
    if isinstance(tree, dict) and tree:
        items: Iterable[tuple[Any, Any]] = cast(dict[Any, Any], tree).items()
    elif isinstance(tree, list) and tree:
        items = enumerate(cast(list[Any], tree))
    else:
        return {key: tree}
    leaves: dict[str, Any] = {}
    for name, value in items:
        leaves |= _flatten(value, f"{key}.{name}" if key else str(name))
    return leaves


def config_differences(configs: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Values that differ; an empty list or section of one run is left out, since others have rows for the entries."""
    keys = dict.fromkeys(key for config in configs for key in config if key not in _SAME)
    values = {key: [config.get(key) for config in configs] for key in keys}
    empty = {key for key in keys if all(config.get(key, []) in ([], {}) for config in configs)}
    return {key: each for key, each in values.items() if key not in empty and any(value != each[0] for value in each)}


def _changes(directory: Path, last_step: int) -> dict[tuple[str, str], ResponseChange]:
    """By source and task: held-out tasks, or else tasks that the run trained on in two steps or more."""
    validations = read_attempts(directory / HELD_OUT, last_step)
    if len(validations) < 2:
        return dict(_trained_changes(directory))
    (first, before), *_, (last, after) = validations.items()
    earlier = {(row["source"], row["id"]): row for row in reversed(before)}  # of several attempts the first
    later = {(row["source"], row["id"]): row for row in reversed(after)}
    return {
        key: ResponseChange(run=str(directory), first_step=first, last_step=last, before=earlier[key], after=later[key])
        for key in earlier
        if key in later
    }


def _trained_changes(directory: Path) -> Iterator[tuple[tuple[str, str], ResponseChange]]:
    if not (directory / JOURNAL).is_file():
        return
    decode = load_decoder(directory, special_tokens=False)
    with open_journal(directory) as reader:
        for first, last in _repeated_tasks(reader)[:_MAX_TRAINED]:
            trajectories = [next(reader.trajectories(TrajectoryQuery(id=each.id))).trajectory for each in (first, last)]
            rows = [attempt_row(first.domain, each, decode) for each in trajectories if each is not None]
            if len(rows) == 2 and first.step is not None and last.step is not None:  # else pruned or rolled back
                yield (
                    (first.domain, first.task),
                    ResponseChange(
                        run=str(directory), first_step=first.step, last_step=last.step, before=rows[0], after=rows[1]
                    ),
                )


def _repeated_tasks(reader: Reader) -> list[tuple[StoredTrajectory, StoredTrajectory]]:
    """First and last trained attempt at each task of several steps, the largest change of the reward first."""
    first: dict[tuple[str, str], StoredTrajectory] = {}
    last: dict[tuple[str, str], StoredTrajectory] = {}
    for stored in reader.trajectories(TrajectoryQuery(bodies=False)):
        if stored.step is not None:
            last[stored.domain, stored.task] = stored
            first.setdefault((stored.domain, stored.task), stored)
    pairs = [(each, last[key]) for key, each in first.items() if each.step != last[key].step]
    return sorted(pairs, key=lambda pair: -abs((pair[1].reward or 0.0) - (pair[0].reward or 0.0)))


def _common_tasks(changes: Sequence[Mapping[tuple[str, str], ResponseChange]], num: int) -> list[list[ResponseChange]]:
    """Tasks of all runs, the largest change of a reward first."""
    tasks = [[each[key] for each in changes] for key in changes[0] if all(key in each for each in changes)]
    return sorted(tasks, key=lambda task: -max(map(_reward_change, task)))[:num]


def _reward_change(change: ResponseChange) -> float:
    before, after = change.before["reward"], change.after["reward"]
    return 0.0 if before is None or after is None else abs(after - before)
