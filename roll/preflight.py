"""What can be found wrong with a run before anything starts: names, arguments, metrics, files. Imports no torch."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

from roll.config.algorithm import Algorithm, OwnAlgorithm
from roll.config.best import best_fault
from roll.config.load import Loaded
from roll.config.lora import Lora, rank_fault, widths
from roll.config.proxy import Agent
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
    TOOLS,
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
    if fault := best_fault(run):
        yield "checkpoint.best", fault


def _names(run: Run) -> Iterator[tuple[str, Table[Any], Named]]:
    """Everything in a run that is named and imported: its key, where to look it up, and what the file says."""
    yield from _parts(run.algorithm)
    if run.sft.player is not None:
        yield "sft.player", PLAYERS, run.sft.player
    for key, source in _sources(run):
        yield f"{key}.env", ENVS, source.env
        for index, named in _tools(source.env):
            yield f"{key}.env.tools.{index}", TOOLS, named
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


def _tools(env: Named) -> Iterator[tuple[int, Named]]:
    """What an environment that takes tools by name has been given, as far as it names any."""
    given: Any = env.arguments.get("tools") if env.kind == "tool_use" else None
    for index, entry in enumerate(cast(list[Any], given) if isinstance(given, list) else []):
        kind: Any = cast(dict[str, Any], entry).get("kind") if isinstance(entry, dict) else entry
        if isinstance(kind, str):
            yield index, Named.model_validate(entry)


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
    if run.actor_train.lora is not None:
        yield from _adapter_faults(run.actor_train.lora, run.model.path)
    for key, source in _sources(run):
        fault = None if source.data is None else _data_fault(source.data)
        if fault is not None:
            yield f"{key}.data", fault
        if source.agent is not None and (fault := _agent_fault(source.agent)):
            yield f"{key}.agent", fault
        for index, named in _tools(source.env):
            if fault := _tool_fault(named):
                yield f"{key}.env.tools.{index}", fault


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


def _agent_fault(agent: Agent) -> str:
    """Why a command cannot be started from here; empty where it can, as far as one can see."""
    folder = Path(agent.directory or ".")
    if not folder.is_dir():
        return f"directory: no such directory: {folder}; paths are relative to the current directory ({Path.cwd()})"
    return _command_fault(agent.command, folder, f"`directory`, else to {Path.cwd()}")


def _tool_fault(named: Named) -> str:
    """Why the files of a set of tools cannot be what it needs; empty where they can, as far as one can see."""
    corpus, command = named.arguments.get("corpus"), named.arguments.get("command")
    here = f"the current directory ({Path.cwd()})"
    if named.kind == "retrieval" and isinstance(corpus, str) and not Path(corpus).is_file():
        return f"corpus: no such file: {corpus}; paths are relative to {here}"
    words = cast(list[Any], command) if isinstance(command, list) else []
    if named.kind == "mcp" and words and all(isinstance(word, str) for word in words):
        return _command_fault(words, Path(), here)
    return ""


def _command_fault(command: Sequence[str], folder: Path, here: str) -> str:
    program, *rest = command
    if program not in ("python", "python3") and shutil.which(program) is None and not (folder / program).is_file():
        return f"command: no program named {program!r} here; install it, or give its path"
    if rest and rest[0].endswith(".py") and not (folder / rest[0]).is_file():
        return f"command: no such file: {folder / rest[0]}; paths are relative to {here}"
    return ""


def _models(run: Run) -> Iterator[tuple[str, str]]:
    roles = {role: getattr(run, role) for role in ("model", "critic", "reference", "teacher", "reward_model")}
    for role, section in roles.items():
        if section is not None and section.path is not None:
            yield f"{role}.path", section.path
    for index, policy in enumerate(run.policies):
        if policy.path is not None:
            yield f"policies.{index}.path", policy.path


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


def _adapter_faults(lora: Lora, model: str | None) -> Iterator[tuple[str, str]]:
    """What files show of adapters: where they are to start from, and what they stand beside."""
    if lora.path is not None and not (Path(lora.path) / "adapter_config.json").is_file():
        yield "actor_train.lora.path", f"{lora.path} has no adapter_config.json; give the folder of an adapter"
    described = None if model is None else Path(model) / "config.json"
    if described is None or not described.is_file():
        return
    try:
        given: dict[str, Any] = json.loads(described.read_text(encoding="utf-8"))
    except ValueError:
        return  # of which the engine speaks
    if not given.keys() >= {"hidden_size", "num_attention_heads", "intermediate_size"}:
        return
    hidden, heads = given["hidden_size"], given["num_attention_heads"]
    size = given.get("head_dim") or hidden // heads
    kv = (given.get("num_key_value_heads") or heads) * size
    if fault := rank_fault(lora, widths(hidden=hidden, q=heads * size, kv=kv, mlp=given["intermediate_size"])):
        yield "actor_train.lora.rank", fault


def _shards(index: Path) -> list[str]:
    """The files that an index of weights says exist."""
    try:
        return sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{index}: broken index of weights ({error!r}); download the model again") from None
