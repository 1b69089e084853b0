"""Checks of a run before it starts: names, arguments, metrics and files. Imports no torch."""

from __future__ import annotations

import difflib
import importlib.machinery
import importlib.metadata
import reprlib
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

from roll import model_files
from roll.config.algorithm import Algorithm, DomainAlgorithm
from roll.config.deepspeed import DeepspeedTrain, release_fault
from roll.config.envs import Agent
from roll.config.load import LoadedRun
from roll.config.schema import Checkpoint, Run, TaskSourceConfig
from roll.config.section import SpecConfig
from roll.errors import ConfigError, did_you_mean
from roll.registry import (
    CALLBACKS,
    DATASETS,
    DIVERGENCES,
    ENVS,
    OPTIMIZERS,
    PARTS,
    PREFERENCE_DATASETS,
    PREFERENCE_LOSSES,
    REWARD_LOSSES,
    REWARDS,
    SCRIPTED_AGENTS,
    SINKS,
    TOOLS,
    Table,
)

_STEP_METRICS = (
    *("reward/mean", "reward/std", "reward/model", "reward/masked", "reward/spans"),
    *("length/mean", "length/max", "length/truncated", "staleness/mean", "staleness/max"),
    *("tokens/generated", "tokens/trained", "trained/groups", "trained/uniform"),
    *("sampler_mismatch/mean", "sampler_mismatch/max"),
    *("kl/reference", "kl/coefficient", "hacks/notices", "waiting/groups", "waiting/length", "waiting/reward"),
    *("bias/length", "bias/reward", "time/wait", "time/score", "time/update", "time/publish", "time/validate"),
)
_OPEN_PREFIXES = (
    *("loss/", "experts/", "critic/", "staleness/", "waiting/share/", "bias/share/", "mixture/share/", "rewarded/"),
)
"""Any name with one of these prefixes is valid: losses, rewards and environments name their own metrics."""


def preflight(loaded: LoadedRun, *, files: bool = True, models: bool = True) -> None:
    """Raise all faults in names and files, each with its location; make the user's modules importable.

    With `files` false, data and models may be on another machine; a config.json on this one is still checked, unless
    the caller needs no `models`.
    """
    importable(loaded.path)
    run = loaded.run
    faults = [
        *_name_faults(run),
        *(model_files.config_faults(run) if models else ()),
        *(model_files.megatron_faults(run, installed=files) if models else ()),
        *(_file_faults(run) if files else ()),
        *(_package_faults(run) if files else ()),
    ]
    if faults:
        raise ConfigError("\n".join(f"{loaded.where(key)}: {key}: {fault}" for key, fault in faults))


def importable(path: Path) -> None:
    """Make modules in the directory of the file `path` importable."""
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)


def _name_faults(run: Run) -> Iterator[tuple[str, str]]:
    for key, table, section in _named_objects(run):
        for argument, fault in table.faults(section.kind, section.kwargs):
            yield f"{key}.{argument}" if argument else key, fault
    if fault := best_fault(run):
        yield "checkpoint.best_metric", fault


def _named_objects(run: Run) -> Iterator[tuple[str, Table[Any], SpecConfig]]:
    """Every importable object that a run names: its key, its table and its section."""
    yield from _parts("algorithm", run.algorithm)
    if run.sft.scripted_agent is not None:
        yield "sft.scripted_agent", SCRIPTED_AGENTS, run.sft.scripted_agent
    yield from _preference_functions(run)
    if run.distill is not None:
        yield "distill.divergence", DIVERGENCES, run.distill.divergence
    yield from _observers(run)
    yield from _optimizers(run)
    for key, source in _sources(run):
        yield f"{key}.env", ENVS, source.env
        for index, tool in _tools(source.env):
            yield f"{key}.env.tools.{index}", TOOLS, tool
        if source.data is not None:
            yield f"{key}.data", DATASETS, source.data
        if source.reward is not None:
            yield f"{key}.reward", REWARDS, source.reward
            for index, reward in enumerate(source.reward.rewards):
                yield f"{key}.reward.{index}", REWARDS, reward
        for index, section in enumerate(source.filters or ()):
            yield f"{key}.filters.{index}", PARTS["filters"], section
        if source.algorithm is not None:
            yield from _parts(f"{key}.algorithm", source.algorithm)


def _optimizers(run: Run) -> Iterator[tuple[str, Table[Any], SpecConfig]]:
    """The user's own optimizers."""
    sections = {"actor_train": run.actor_train, "critic": run.critic, "sft": run.sft}
    sections |= {section.key: section for section in run.preference_sections}
    sections |= {} if run.distill is None else {"distill": run.distill}
    sections |= {f"policies.{index}": policy for index, policy in enumerate(run.policies)}
    for key, section in sections.items():
        custom = None if section.optimizer is None else section.optimizer.custom
        if custom is not None:
            yield f"{key}.optimizer", OPTIMIZERS, SpecConfig.model_validate({"kind": custom.name, **custom.kwargs})


def _preference_functions(run: Run) -> Iterator[tuple[str, Table[Any], SpecConfig]]:
    """The losses and the datasets of training on preferences."""
    if run.dpo is not None:
        yield "dpo.loss", PREFERENCE_LOSSES, run.dpo.loss
    if run.reward_training is not None:
        yield "reward_training.loss", REWARD_LOSSES, run.reward_training.loss
    for key, data in _preference_files(run):
        yield key, PREFERENCE_DATASETS, data


def _preference_files(run: Run) -> Iterator[tuple[str, SpecConfig]]:
    """The data of training on preferences."""
    for section in run.preference_sections:
        yield f"{section.key}.data", section.data
        if section.held_out is not None:
            yield f"{section.key}.held_out", section.held_out


def _observers(run: Run) -> Iterator[tuple[str, Table[Any], SpecConfig]]:
    """Classes of the user's that receive metrics."""
    for index, section in enumerate(run.callbacks):
        yield f"callbacks.{index}", CALLBACKS, section
    for index, section in enumerate(run.tracking.sinks):
        yield f"tracking.sinks.{index}", SINKS, section


def _tools(env: SpecConfig) -> Iterator[tuple[int, SpecConfig]]:
    """Named tools of a `tool_use` environment."""
    tools: Any = env.kwargs.get("tools") if env.kind == "tool_use" else None
    for index, entry in enumerate(cast(list[Any], tools) if isinstance(tools, list) else []):
        kind: Any = cast(dict[str, Any], entry).get("kind") if isinstance(entry, dict) else entry
        if isinstance(kind, str) and kind:
            yield index, SpecConfig.model_validate(entry)
        else:  # no valid section; the table says what is wrong with the name
            yield index, SpecConfig.model_construct(kind=kind if kind == "" else reprlib.repr(cast(Any, entry)))


def _parts(above: str, algorithm: Algorithm | DomainAlgorithm) -> Iterator[tuple[str, Table[Any], SpecConfig]]:
    """The functions of the run's algorithm, or of its overrides for a domain."""
    for part, table in PARTS.items():
        value: Any = getattr(algorithm, part, None)
        if isinstance(value, tuple):
            for index, section in enumerate(cast("tuple[SpecConfig, ...]", value)):
                yield f"{above}.{part}.{index}", table, section
        elif value is not None:
            yield f"{above}.{part}", table, value
    if isinstance(algorithm, Algorithm):
        yield f"{above}.value_loss", PARTS["loss"], algorithm.value_loss
        if algorithm.kl is not None:
            yield f"{above}.kl.estimator", PARTS["estimator"], algorithm.kl.estimator


def _sources(run: Run) -> Iterator[tuple[str, TaskSourceConfig]]:
    for above, sources in (
        ("tasks", run.tasks),
        ("validation.tasks", run.validation.tasks),
        ("sft.tasks", run.sft.tasks),
        ("distill.tasks", () if run.distill is None else run.distill.tasks),
    ):
        for index, source in enumerate(sources):
            yield f"{above}.{index}", source


def best_fault(run: Run) -> str:
    """Why this run never measures `checkpoint.best_metric`; empty if it does."""
    best = run.checkpoint.best_metric
    domains = [f"domain/{task.name}/{each}" for task in run.tasks for each in ("reward", "std", "groups", "uniform")]
    reuse = ("reuse/groups", "reuse/usable") if run.rollout.reuse > 1 else ()
    known = [*_validation_metrics(run), *_STEP_METRICS, *domains, *reuse]
    valid = best in known or best.startswith(tuple(_prefixes(run))) or _is_reward_part(best)
    if valid or best == Checkpoint().best_metric:
        return ""
    if best.startswith("validation/") and not run.validation.tasks:
        return f"there are no held-out tasks to measure {best!r} on; add validation.tasks, or take reward/mean"
    return f"no step and no validation of this run measures {best!r}{did_you_mean(best, known)}"


def _is_reward_part(best: str) -> bool:
    """Whether this may name a part of a score: any `reward/` name except a misspelt metric of the run."""
    part = best.removeprefix("reward/")
    reserved = [name.removeprefix("reward/") for name in _STEP_METRICS if name.startswith("reward/")]
    return part != best and not difflib.get_close_matches(part, reserved, cutoff=0.75)


def _prefixes(run: Run) -> Iterator[str]:
    yield from _OPEN_PREFIXES
    if run.dpo is not None:
        yield "preference/"
    if run.reward_training is not None:
        yield "reward_model/"
    if run.distill is not None:
        yield "distillation/"
    for source in run.tasks:
        yield from (f"domain/{source.name}/reward/", f"env/{source.name}/")
    for policy in run.policies:
        yield f"policy/{policy.name}/"
    if run.rollout.stop_quantile is not None:
        yield from ("stopped/", "bias/stopped/")


def _validation_metrics(run: Run) -> Iterator[str]:
    """Metrics over all held-out tasks and per source; pass@k and majority only with several samples per task."""
    if not run.validation.tasks:
        return
    samples = run.validation.samples
    ks = {*(2**power for power in range(1, samples.bit_length())), samples} - {1}
    multi_sample = ["majority", *(f"pass@{k}" for k in sorted(ks))] if ks else []
    yield "validation/length"
    for prefix in ("validation", *(f"validation/{source.name}" for source in run.validation.tasks)):
        yield from (f"{prefix}/{name}" for name in ("reward", "accuracy", "std", "tasks", "failed", *multi_sample))


def _file_faults(run: Run) -> Iterator[tuple[str, str]]:
    yield from model_files.weight_faults(run)
    yield from model_files.adapter_faults(run)
    yield from _stop_faults(run)
    for key, data in _preference_files(run):
        if fault := _data_fault(data):
            yield key, fault
    for key, source in _sources(run):
        if source.data is not None and (fault := _data_fault(source.data)):
            yield f"{key}.data", fault
        if source.agent is not None and (fault := _agent_fault(source.agent)):
            yield f"{key}.agent", fault
        for index, tool in _tools(source.env):
            if fault := _tool_fault(tool):
                yield f"{key}.env.tools.{index}", fault


def _package_faults(run: Run) -> Iterator[tuple[str, str]]:
    """Packages that trainers on this machine need."""
    train = run.actor_train
    if not isinstance(train, DeepspeedTrain) or train.python is not None or run.ray.address is not None:
        return
    try:
        release = importlib.metadata.version("deepspeed")
    except importlib.metadata.PackageNotFoundError:
        release = None
    if fault := release_fault(release):
        yield "actor_train.backend", f"deepspeed {fault}"


def _stop_faults(run: Run) -> Iterator[tuple[str, str]]:
    known = model_files.vocabulary(run.model) if run.rollout.stop else dict[str, int]()
    for index, token in enumerate(run.rollout.stop if known else ()):
        if token not in known:
            yield f"rollout.stop.{index}", f"the tokenizer has no token {token!r}; name tokens, not text"


def _data_fault(data: SpecConfig) -> str:
    """Why the file of a dataset cannot be read; empty if it can, or if the dataset is not a local file."""
    name = data.kwargs.get("path")
    if data.kind not in ("jsonl", "parquet") or not isinstance(name, str):
        return ""
    path = Path(name)
    if not path.exists():
        return f"no such file: {path}; paths are relative to the current directory ({Path.cwd()})"
    if path.is_dir() and data.kind == "jsonl":
        return f"{path} is a directory; name the .jsonl file in it"
    if path.is_dir() and not any(path.glob("*.parquet")):
        return f"{path} has no *.parquet in it; name another directory, or a file"
    return ""


def _agent_fault(agent: Agent) -> str:
    """Why the command of an agent cannot be started here; empty if no reason is found."""
    folder = Path(agent.directory or ".")
    if not folder.is_dir():
        return f"directory: no such directory: {folder}; paths are relative to the current directory ({Path.cwd()})"
    if fault := _command_fault(agent.command, folder, f"`directory`, else to {Path.cwd()}"):
        return fault
    scripts = str((folder / agent.command[1]).absolute().parent) if agent.preload else ""
    for module in agent.preload:
        if not _has_module(module, [scripts, *sys.path]):
            return f"preload: no module named {module!r} here; install it, or leave it out"
    return ""


def _has_module(name: str, paths: Sequence[str]) -> bool:
    """Whether a module is built in or found in `paths`; nothing is imported."""
    if name in sys.builtin_module_names:
        return True
    package = ""
    for part in name.split("."):
        package = f"{package}.{part}" if package else part
        spec = importlib.machinery.PathFinder.find_spec(package, paths)
        if spec is None:
            return False
        paths = list(spec.submodule_search_locations or ())
    return True


def _tool_fault(tool: SpecConfig) -> str:
    """Why the files of a set of tools are missing; empty if no reason is found."""
    corpus, command = tool.kwargs.get("corpus"), tool.kwargs.get("command")
    here = f"the current directory ({Path.cwd()})"
    if tool.kind == "retrieval" and isinstance(corpus, str) and not Path(corpus).is_file():
        return f"corpus: no such file: {corpus}; paths are relative to {here}"
    words = cast(list[Any], command) if isinstance(command, list) else []
    if tool.kind == "mcp" and words and all(isinstance(word, str) for word in words):
        return _command_fault(words, Path(), here)
    return ""


def _command_fault(command: Sequence[str], folder: Path, here: str) -> str:
    program, *rest = command
    if program not in ("python", "python3") and shutil.which(program) is None and not (folder / program).is_file():
        return f"command: no program named {program!r} here; install it, or give its path"
    if rest and rest[0].endswith(".py") and not (folder / rest[0]).is_file():
        return f"command: no such file: {folder / rest[0]}; paths are relative to {here}"
    return ""
