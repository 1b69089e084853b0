"""Tasks from tables: Parquet files, and Hugging Face datasets on disk or on the hub. Both packages are optional."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, cast

from roll.data.fields import PLAIN, Fields, tasks_from
from roll.errors import ConfigError
from roll.types import Task


def parquet(path: str, fields: Fields = PLAIN) -> list[Task]:
    """The tasks of a Parquet file, or of all `*.parquet` in a directory by name; columns are as fields in `jsonl`.

    `id` and `seed` default to the number of the row, counted from 1 over all files.
    """
    given = Path(path)
    files = sorted(given.glob("*.parquet")) if given.is_dir() else [given]
    if not files or not files[0].is_file():
        raise ConfigError(f"{path}: no such file; check the path (it is relative to the current directory)")
    rows = enumerate((row for file in files for row in _parquet_rows(file)), start=1)
    return tasks_from(rows, fields, place=path, domain=given.stem)


def hf(path: str, split: str | None = None, config: str | None = None, fields: Fields = PLAIN) -> list[Task]:
    """The tasks of a Hugging Face dataset: a directory that `save_to_disk` wrote, or a copy or name of one on the hub.

    The hub's are downloaded by the package `datasets` into its own cache; nothing in them is run. One of several splits
    has to be chosen.
    """
    datasets = _package("datasets", f"dataset {path!r}")
    saved = any((Path(path) / name).is_file() for name in ("state.json", "dataset_dict.json"))
    if saved and config is not None:
        raise ConfigError(f"dataset {path!r}: was saved without configs (got config {config!r}); leave config out")
    try:
        found = datasets.load_from_disk(path) if saved else datasets.load_dataset(path, config, split=split)
    except (OSError, ValueError, datasets.exceptions.DatasetsError) as error:
        reason = str(error).partition("\n")[0]
        raise ConfigError(
            f"dataset {path!r}: cannot be loaded ({reason}); "
            "give a directory that save_to_disk wrote, or a name on the hub"
        ) from error
    rows: Iterable[Any] = _split(found, split, f"dataset {path!r}") if saved or split is None else found
    place = f"{path}[{split}]" if split else path
    return tasks_from(enumerate(rows, start=1), fields, place=place, domain=Path(path).name)


def _split(found: Any, split: str | None, place: str) -> Any:
    """The rows of one split; `found` has them by split, or is one itself."""
    if not isinstance(found, dict):
        if split is not None:
            raise ConfigError(f"{place}: was saved as one split (got split {split!r}); leave split out")
        return found
    splits = cast(dict[str, Any], found)
    if split not in splits:
        got = repr(split) if split else "none"
        raise ConfigError(f"{place}: has the splits {', '.join(splits)} (got {got}); set split to one of them")
    return splits[split]


def _parquet_rows(file: Path) -> Iterator[dict[str, Any]]:
    reader = _package("pyarrow.parquet", str(file))
    try:
        for batch in reader.ParquetFile(file).iter_batches():
            yield from batch.to_pylist()
    except (OSError, ValueError) as error:  # what pyarrow raises is one of the two
        reason = str(error).partition("\n")[0]
        raise ConfigError(f"{file}: cannot be read ({reason}); it must be a Parquet file") from None


def _package(name: str, place: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"{place}: needs the package {name.partition('.')[0]!r}; install it with `pip install 'roll[data]'`"
        ) from error
