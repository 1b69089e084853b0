"""What can be found wrong with a run before anything starts: names, arguments, files. Imports no torch."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from roll.config.algorithm import Algorithm, OwnAlgorithm
from roll.config.load import Loaded
from roll.config.schema import Named, Run, Source
from roll.errors import ConfigError
from roll.registry import (
    ADVANTAGES,
    AGGREGATIONS,
    CORRECTIONS,
    DATASETS,
    EMPHASES,
    ENVS,
    ESTIMATORS,
    FILTERS,
    LOSSES,
    MASKS,
    PLAYERS,
    REWARDS,
    SHAPINGS,
    Table,
)


def preflight(loaded: Loaded, *, files: bool = True) -> None:
    """Raise every fault that names and files show, each at its place; make the user's modules importable.

    Without `files` data and models may be elsewhere.
    """
    importable(loaded.path)
    found = (*_name_faults(loaded.run), *(_file_faults(loaded.run) if files else ()))
    faults = [f"{loaded.place(key)}: {key}: {fault}" for key, fault in found]
    if faults:
        raise ConfigError("\n".join(faults))


def importable(path: Path) -> None:
    """Let modules that lie beside the file `path` be imported."""
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)


def _name_faults(run: Run) -> Iterator[tuple[str, str]]:
    for key, table, named in _names(run):
        for argument, fault in table.faults(named.kind, named.arguments):
            yield f"{key}.{argument}" if argument else key, fault


def _names(run: Run) -> Iterator[tuple[str, Table[Any], Named]]:
    """Everything in a run that is named and imported: its key, where to look it up, and what the file says."""
    yield from _parts(run.algorithm)
    if run.sft.player is not None:
        yield "sft.player", PLAYERS, run.sft.player
    for key, source in _sources(run):
        yield f"{key}.env", ENVS, source.env
        if source.data is not None:
            yield f"{key}.data", DATASETS, source.data
        if source.reward is not None:
            yield f"{key}.reward", REWARDS, source.reward
            for index, reward in enumerate(source.reward.rewards):
                yield f"{key}.reward.{index}", REWARDS, reward
        for index, named in enumerate(source.filters or ()):
            yield f"{key}.filters.{index}", FILTERS, named
        if source.algorithm is not None:
            yield from _credit(f"{key}.algorithm", source.algorithm)


def _parts(algorithm: Algorithm) -> Iterator[tuple[str, Table[Any], Named]]:
    yield from _credit("algorithm", algorithm)
    yield "algorithm.loss", LOSSES, algorithm.loss
    yield "algorithm.aggregation", AGGREGATIONS, algorithm.aggregation
    yield "algorithm.value_loss", LOSSES, algorithm.value_loss
    if algorithm.correction is not None:
        yield "algorithm.correction", CORRECTIONS, algorithm.correction
    if algorithm.kl is not None:
        yield "algorithm.kl.estimator", ESTIMATORS, algorithm.kl.estimator
    for index, named in enumerate(algorithm.filters):
        yield f"algorithm.filters.{index}", FILTERS, named


def _credit(above: str, algorithm: Algorithm | OwnAlgorithm) -> Iterator[tuple[str, Table[Any], Named]]:
    """What is about credit, which a domain may have for itself."""
    if algorithm.advantage is not None:
        yield f"{above}.advantage", ADVANTAGES, algorithm.advantage
    for key, table, many in (
        ("shaping", SHAPINGS, algorithm.shaping),
        ("emphasis", EMPHASES, algorithm.emphasis),
        ("masks", MASKS, algorithm.masks),
    ):
        for index, named in enumerate(many or ()):
            yield f"{above}.{key}.{index}", table, named


def _sources(run: Run) -> Iterator[tuple[str, Source]]:
    for above, sources in (
        ("tasks", run.tasks),
        ("validation.tasks", run.validation.tasks),
        ("sft.tasks", run.sft.tasks),
    ):
        for index, source in enumerate(sources):
            yield f"{above}.{index}", source


def _file_faults(run: Run) -> Iterator[tuple[str, str]]:
    for key, path in _models(run):
        for fault in _model_faults(Path(path)):
            yield key, fault
    for key, source in _sources(run):
        fault = None if source.data is None else _data_fault(source.data)
        if fault is not None:
            yield f"{key}.data", fault


def _data_fault(data: Named) -> str | None:
    """Why the file of a dataset cannot be read; None where it can, or where the dataset is no file of this machine."""
    given = data.arguments.get("path")
    if data.kind not in ("jsonl", "parquet") or not isinstance(given, str):
        return None
    path = Path(given)
    if not path.exists():
        return f"no such file: {path}; paths are relative to the current directory ({Path.cwd()})"
    if path.is_dir() and data.kind == "jsonl":
        return f"{path} is a directory; name the .jsonl file in it"
    if path.is_dir() and not any(path.glob("*.parquet")):
        return f"{path} has no *.parquet in it; name another directory, or a file"
    return None


def _models(run: Run) -> Iterator[tuple[str, str]]:
    roles = {role: getattr(run, role) for role in ("model", "critic", "reference", "teacher", "reward_model")}
    for role, section in roles.items():
        if section is not None and section.path is not None:
            yield f"{role}.path", section.path


def _model_faults(directory: Path) -> Iterator[str]:
    if not directory.is_dir():
        wrong = "is not a directory" if directory.exists() else "no such directory"
        yield f"{wrong}: {directory}; give the folder of a Hugging Face model (get one with 'hf download')"
        return
    if not (directory / "config.json").is_file():
        yield f"{directory} has no config.json; give the folder of a Hugging Face model"
    index = directory / "model.safetensors.index.json"
    if index.is_file():
        missing = [name for name in _shards(index) if not (directory / name).is_file()]
        if missing:
            yield f"{directory} lacks {', '.join(missing)}, which its index names; download the weights again"
    elif not any(directory.glob("*.safetensors")):
        yield f"{directory} has no weights (*.safetensors); download or export them there"


def _shards(index: Path) -> list[str]:
    """The files that an index of weights says exist."""
    try:
        return sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{index}: broken index of weights ({error!r}); download the model again") from None
