"""`roll check`: reads the data of a run as its start would. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from roll.config.schema import Run
from roll.config.sources import TaskSourceConfig
from roll.data.dataset import read_tasks
from roll.errors import ConfigError

_ROWS = 1000
"""Rows of each file that a check reads; the start of a run reads all."""


def check_data(run: Run) -> None:
    """Raise the faults of all task sources together; calls data functions, and downloads nothing from the hub."""
    sources = (*run.tasks, *run.validation.tasks, *run.sft.tasks)
    faults = dict.fromkeys(line for source in sources if not _on_hub(source) for line in _faults(source))
    if faults:
        raise ConfigError("\n".join(faults))


def _faults(source: TaskSourceConfig) -> Iterator[str]:
    try:
        read_tasks(source, first=_ROWS)
    except ConfigError as error:
        yield from str(error).splitlines()


def _on_hub(source: TaskSourceConfig) -> bool:
    data = source.data
    return data is not None and data.kind == "hf" and not Path(str(data.kwargs.get("path"))).exists()
