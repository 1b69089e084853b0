"""The tasks of a source, read by its dataset. Imports no torch, so that checks can read data too."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from roll.config.sources import TaskSourceConfig
from roll.data.task_file import TaskFile
from roll.data.tasks import Seeds
from roll.errors import ConfigError, RollError, describe_error, source_of
from roll.registry import DATASETS
from roll.types import Task

_FILES = ("jsonl", "parquet")


def read_tasks(config: TaskSourceConfig, *, first: int | None = None) -> Sequence[Task]:
    """The tasks of a source; their domain is its name. With `first`, only so many rows of a file are read."""
    tasks = _read(config, first)
    tasks = tasks if config.limit is None else tasks[: config.limit]
    if not tasks:
        raise ConfigError(f"tasks: source {config.name!r} has no tasks; give it some")
    if isinstance(tasks, Seeds | TaskFile):
        return tasks.within(config.name)
    return [replace(task, domain=config.name) for task in tasks]


def rows_at_start(tasks: Sequence[Task]) -> Sequence[Task]:
    """The tasks that the start of a run reads: all of a list, the first rows of a large file, and no seeds."""
    if isinstance(tasks, Seeds):
        return ()
    return tasks.checked if isinstance(tasks, TaskFile) else tasks


def _read(config: TaskSourceConfig, first: int | None) -> Sequence[Task]:
    if config.data is None:
        return DATASETS["seeds"]()
    kind, kwargs = config.data.kind, config.data.kwargs
    if kind in _FILES and first is not None:
        kwargs = {"first": first, **kwargs}
    if config.fields is not None:
        if not DATASETS.takes(kind, "fields"):
            raise ConfigError(
                f"tasks: source {config.name!r}: dataset {kind!r} returns complete tasks, not rows; "
                "remove 'fields', or add a parameter for it"
            )
        kwargs = {**kwargs, "fields": config.fields}
    if ":" not in kind:
        return DATASETS[kind](**kwargs)  # an exception in one of ours is a bug
    return _call(f"tasks: source {config.name!r}: dataset {kind!r}", kind, kwargs)


def _call(where: str, kind: str, kwargs: dict[str, Any]) -> Sequence[Task]:
    """The tasks that a user's function returns; raises `ConfigError` where it raises or returns something else."""
    function: Any = None
    try:
        function = DATASETS[kind]
        tasks: Any = function(**kwargs)
        tasks = tasks if isinstance(tasks, Seeds | TaskFile) else list(tasks)
    except RollError:
        raise
    except (Exception, SystemExit) as error:
        raise ConfigError(f"{where}: {describe_error(error, source_of(function))}; fix its code") from error
    if not isinstance(tasks, Seeds | TaskFile) and (wrong := [task for task in tasks if not isinstance(task, Task)]):
        raise ConfigError(f"{where}: must return tasks (got {type(wrong[0]).__name__}); fix its code")
    return tasks
