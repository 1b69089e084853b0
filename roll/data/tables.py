"""Tasks from tables: Parquet files, and Hugging Face datasets on disk or on the hub. Needs optional packages."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, cast

from roll.config.sources import Fields
from roll.data.fields import PLAIN, tasks_from
from roll.errors import ConfigError
from roll.types import Task


def parquet(path: str, fields: Fields = PLAIN) -> list[Task]:
    """The tasks of a Parquet file, or of all `*.parquet` in a directory by name; columns are like fields of `jsonl`.

    `id` and `seed` default to the row number, counted from 1 over all files.
    """
    location = Path(path)
    files = sorted(location.glob("*.parquet")) if location.is_dir() else [location]
    if not files or not files[0].is_file():
        raise ConfigError(f"{path}: no such file; check the path (it is relative to the current directory)")
    rows = enumerate((row for file in files for row in _parquet_rows(file)), start=1)
    return tasks_from(rows, fields, where=path, domain=location.stem)


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
            f"{where}: needs the package {name.partition('.')[0]!r}; install it with `pip install 'roll[data]'`"
        ) from error
