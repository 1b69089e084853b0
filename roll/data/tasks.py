"""Tasks from JSON lines, from tables, and seeds for environments that generate their own tasks.

Tables are Parquet files, and Hugging Face datasets on disk or on the hub. They need optional packages.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar, cast, overload

from roll.config.sources import Fields
from roll.data.fields import PLAIN, parse_rows, tasks_from
from roll.data.task_file import LARGE, NUM_CHECKED, index_file, numbered_objects
from roll.errors import ConfigError
from roll.types import Task

T = TypeVar("T")


def jsonl(path: str, fields: Fields = PLAIN, first: int | None = None) -> Sequence[Task]:
    """The tasks of a `.jsonl` or `.jsonl.gz` file, one JSON object per line; with `first`, only so many are read.

    A row has `prompt` (text) or `messages` (a list of role and content), and usually `answer`; `fields` maps other
    names. `id` and `seed` default to the line number, `domain` to the file name; all other fields are metadata. Blank
    lines are skipped. Of an uncompressed file with more than `LARGE` rows, most are read on access only.
    """
    file = Path(path)
    indexed = None if first is not None or file.suffix == ".gz" else index_file(file, fields, domain=domain_of(file))
    large = indexed if indexed is not None and len(indexed) > LARGE else None
    rows = islice(numbered_objects(file), first if large is None else NUM_CHECKED)
    tasks = tasks_from(rows, fields, where=str(file), domain=domain_of(file), unit="line")
    return tasks if large is None else large


def parquet(path: str, fields: Fields = PLAIN, first: int | None = None) -> list[Task]:
    """The tasks of a Parquet file, or of all `*.parquet` in a directory by name; columns are like fields of `jsonl`.

    `id` and `seed` default to the row number, counted from 1 over all files. With `first`, only so many rows are read.
    """
    location = Path(path)
    files = sorted(location.glob("*.parquet")) if location.is_dir() else [location]
    if not files or not files[0].is_file():
        raise ConfigError(f"{path}: no such file; check the path (it is relative to the current directory)")
    rows = enumerate((row for file in files for row in _parquet_rows(file)), start=1)
    return tasks_from(islice(rows, first), fields, where=path, domain=location.stem)


def hf(path: str, split: str | None = None, config: str | None = None, fields: Fields = PLAIN) -> list[Task]:
    """The tasks of a Hugging Face dataset: a directory from `save_to_disk`, a local copy, or a name on the hub.

    The package `datasets` downloads from the hub into its cache and runs no code of the dataset. If there are several
    splits, `split` is required.
    """
    datasets = _package("datasets", f"dataset {path!r}")
    saved = any((Path(path) / name).is_file() for name in ("state.json", "dataset_dict.json"))
    if saved and config is not None:
        raise ConfigError(f"dataset {path!r}: was saved without configs (got config {config!r}); leave config out")
    try:
        dataset = datasets.load_from_disk(path) if saved else datasets.load_dataset(path, config, split=split)
    except (OSError, ValueError, datasets.exceptions.DatasetsError) as error:
        reason = str(error).partition("\n")[0]
        raise ConfigError(
            f"dataset {path!r}: cannot be loaded ({reason}); "
            "give a directory that save_to_disk wrote, or a name on the hub"
        ) from error
    rows: Iterable[Any] = _select(dataset, split, f"dataset {path!r}") if saved or split is None else dataset
    where = f"{path}[{split}]" if split else path
    return tasks_from(enumerate(rows, start=1), fields, where=where, domain=Path(path).name)


def domain_of(file: Path) -> str:
    """The domain of tasks in a file that name none."""
    return file.name.removesuffix(".gz").removesuffix(".jsonl")


def parse_lines(file: Path, parse: Callable[[int, Any], T], *, empty: str) -> list[T]:
    """The parsed lines of a `.jsonl` or `.jsonl.gz` file; see `parse_rows`."""
    return parse_rows(numbered_objects(file), parse, where=str(file), empty=empty)


class Seeds(Sequence[Task]):
    """Tasks that consist of a seed only, created on access."""

    def __init__(self, seeds: range, domain: str) -> None:
        self._seeds, self._domain = seeds, domain

    def within(self, domain: str) -> Seeds:
        """The same seeds as tasks of another domain."""
        return Seeds(self._seeds, domain)

    def __len__(self) -> int:
        return len(self._seeds)

    @overload
    def __getitem__(self, index: int) -> Task: ...
    @overload
    def __getitem__(self, index: slice) -> list[Task]: ...
    def __getitem__(self, index: int | slice) -> Task | list[Task]:
        if isinstance(index, slice):
            return [self._task(seed) for seed in self._seeds[index]]
        return self._task(self._seeds[index])

    def _task(self, seed: int) -> Task:
        return Task(id=f"seed-{seed}", domain=self._domain, seed=seed)


def seeds(count: int = 1_000_000, start: int = 0) -> Seeds:
    """Tasks for environments that generate themselves from a seed; use another `start` for held-out tasks."""
    if count < 1 or start < 0:
        raise ConfigError(f"seeds: needs count >= 1 and start >= 0 (got count {count}, start {start}); change them")
    return Seeds(range(start, start + count), "seeds")


def _select(dataset: Any, split: str | None, where: str) -> Any:
    """The rows of one split of a dataset, which may itself be a single split."""
    if not isinstance(dataset, dict):
        if split is not None:
            raise ConfigError(f"{where}: was saved as one split (got split {split!r}); leave split out")
        return dataset
    splits = cast(dict[str, Any], dataset)
    if split not in splits:
        got = repr(split) if split else "none"
        raise ConfigError(f"{where}: has the splits {', '.join(splits)} (got {got}); set split to one of them")
    return splits[split]


def _parquet_rows(file: Path) -> Iterator[dict[str, Any]]:
    reader = _package("pyarrow.parquet", str(file))
    try:
        for batch in reader.ParquetFile(file).iter_batches():
            yield from batch.to_pylist()
    except (OSError, ValueError) as error:  # base classes of pyarrow's errors
        reason = str(error).partition("\n")[0]
        raise ConfigError(f"{file}: cannot be read ({reason}); it must be a Parquet file") from None


def _package(name: str, where: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"{where}: needs the package {name.partition('.')[0]!r}; install it with `pip install 'roll-rl[data]'`"
        ) from error
