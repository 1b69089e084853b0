"""Keys of ROLL's rlvr pipeline: tasks with verifiable rewards, one domain per reward."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any, cast

from roll.commands.importing.outcome import Status
from roll.commands.importing.source import Source
from roll.commands.importing.table import (
    Effect,
    Row,
    goes_to,
    into,
    neutral,
    refuse,
    same,
    take,
    unsupported,
    unused,
)
from roll.data.tasks import numbered_objects

_ROWS_READ = 2_000
"""Rows of a file that are read to see the domains in it."""
_REWARDS = {
    "MathRuleRewardWorker": "math",
    "CodeSandboxRewardWorker": "code",
    "GeneralRuleRewardWorker": "ifeval",
    "CrossThinkQARuleRewardWorker": "choice",
    "MultipleChoiceBoxedRuleRewardWorker": "choice",
    "LLMJudgeRewardWorker": "judge",
}
"""Last part of `worker_cls`: our reward."""
_ROW_NOTES = {
    "code": "rows need `tests` or `cases` instead of `test_cases`",
    "ifeval": "rows need instructions as docs/rewards.md has them",
    "choice": "rows need `options`",
    "judge": "the judge is behind an OpenAI-compatible server",
}
_NO_TASKS = "no file here has rows of this domain only, so it has no tasks"
_JUDGE_URL = "http://127.0.0.1:8000/v1"


def build_rlvr(source: Source) -> dict[str, Any]:
    """Lengths, tasks and validation."""
    longest = source.max_seq_len
    values: dict[str, Any] = {
        "rollout.max_seq_len": longest,
        "rollout.max_new_tokens": max(1, longest - source.whole("prompt_length")),
        "tasks": _tasks(source, "actor_train", source.section("actor_train.data_args.domain_interleave_probs")),
    }
    if source.texts("validation.data_args.file_name"):
        values["validation.tasks"] = _tasks(source, "validation", {})
        values["validation.temperature"] = _validation_temperature(source)
        values["validation.samples"] = _validation_samples(source) if values["validation.temperature"] else 1
    return values


def _validation_temperature(source: Source) -> float:
    return 0.0 if source.get("val_greedy") else source.number("validation.generating_args.temperature")


def _validation_samples(source: Source) -> int:
    return max(source.whole("val_n_sample"), source.whole("validation.generating_args.num_return_sequences"))


def _tasks(source: Source, role: str, shares: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One task source per file of a domain with a reward; files of a domain divide its share."""
    files = _files_by_domain(source, role)
    tasks: list[dict[str, Any]] = []
    for domain, paths in files.items():
        reward = _reward(source, domain)
        for index, path in enumerate(paths if reward is not None else []):
            task: dict[str, Any] = {
                "name": domain if len(paths) == 1 else f"{domain}_{index}",
                "data": _data(path),
                "fields": _fields(source, role),
                "reward": reward,
            }
            if isinstance(share := shares.get(domain), int | float) and share > 0:
                task["share"] = share / len(paths)
            if role == "actor_train":
                task |= {"max_prompt_tokens": source.whole("prompt_length"), "filters": _filters(source, domain)}
            tasks.append({name: value for name, value in task.items() if value is not None})
    return tasks


def _data(path: str) -> Any:
    if path.endswith((".jsonl", ".jsonl.gz", ".parquet")):
        return path
    return {"kind": "hf" if Path(path).suffix == "" else "jsonl", "path": path}


def _fields(source: Source, role: str) -> dict[str, Any]:
    """Columns: ROLL's rewards read `ground_truth`."""
    columns = {name: source.get(f"{role}.data_args.{name}") for name in ("messages", "prompt")}
    given = {name: str(value) for name, value in columns.items() if value is not None}
    return {**(given or {"messages": "messages"}), "answer": "ground_truth"}


def _domains(source: Source) -> list[str]:
    return list(source.section("rewards"))


def _files_by_domain(source: Source, role: str) -> dict[str, list[str]]:
    """The files of each domain; with several domains, the tags in the rows decide."""
    files, domains = source.texts(f"{role}.data_args.file_name"), _domains(source)
    if len(domains) <= 1:
        return {domain: files for domain in domains}
    by_domain: dict[str, list[str]] = {domain: [] for domain in domains}
    for file in files:
        found = _domains_in(source, role, file)
        if len(found) == 1:
            by_domain[found[0]].append(file)
    return by_domain


def _domains_in(source: Source, role: str, file: str) -> list[str]:
    """Domains whose tags are in the rows of a file; none if it is not here, or not JSON Lines."""
    tags = _tags_in(Path(file).resolve(), str(source.get(f"{role}.data_args.tag") or "tag"))
    return [name for name in _domains(source) if tags & {name, *source.texts(f"rewards.{name}.tag_included")}]


@cache
def _tags_in(path: Path, column: str) -> set[str]:
    if not path.is_file() or path.suffix not in (".jsonl", ".json", ".gz"):
        return set()
    rows = islice(numbered_objects(path), _ROWS_READ)
    return {str(cast("dict[str, Any]", row).get(column)) for _, row in rows if isinstance(row, dict)}


def _kind(source: Source, domain: str) -> str | None:
    worker = str(source.get(f"rewards.{domain}.worker_cls")).rpartition(".")[2]
    return _REWARDS.get(worker)


def _reward(source: Source, domain: str) -> Any:
    """Our reward for a domain; None if there is none."""
    kind, prefix = _kind(source, domain), f"rewards.{domain}"
    if kind == "ifeval" and source.get(f"{prefix}.reward_type") == "soft":
        return {"kind": "ifeval", "partial": True}
    if kind != "judge":
        return kind
    model = source.get(f"{prefix}.judge_model_name") or source.get(f"{prefix}.model_args.model_name_or_path")
    return {
        "kind": "judge",
        "chat": {"url": str(source.get(f"{prefix}.judge_api_url") or _JUDGE_URL), "model": str(model or "judge")},
    }


def _filters(source: Source, domain: str) -> list[Any] | None:
    prefix = f"rewards.{domain}.query_filter_config"
    match source.get(f"{prefix}.type"):
        case "mean_filter":
            bounds = {"low": "threshold_down", "high": "threshold_up"}
            given = {ours: source.get(f"{prefix}.filter_args.{name}") for ours, name in bounds.items()}
            return [{"kind": "mean_between", **{name: value for name, value in given.items() if value is not None}}]
        case "std_filter":
            return ["mixed"]
        case _:
            return None


def _has_tasks(source: Source, domain: str) -> bool:
    return _reward(source, domain) is not None and bool(_files_by_domain(source, "actor_train").get(domain))


def _worker(source: Source, key: str, value: Any) -> Effect:
    domain = key.split(".")[1]
    kind = _kind(source, domain)
    if kind is None:
        names = ", ".join(sorted(set(_REWARDS.values())))
        return unsupported(f"no reward for it, so its tasks are left out (known: {names})")
    if not _has_tasks(source, domain):
        return unsupported(_NO_TASKS)
    return goes_to(key, "tasks.reward", _ROW_NOTES.get(kind, ""))


def _files(source: Source, key: str, _value: Any) -> Effect:
    role = key.partition(".")[0]
    target = "tasks.data" if role == "actor_train" else "validation.tasks.data"
    files, assigned = source.texts(key), [file for each in _files_by_domain(source, role).values() for file in each]
    left = [file for file in files if file not in assigned]
    note = (
        f"left out, since the tags of its rows do not name one domain (is it here?): {', '.join(left)}" if left else ""
    )
    return goes_to(key, target, note) if assigned else unsupported(note)


def _tags(source: Source, key: str, _value: Any) -> Effect:
    if len(_domains(source)) > 1:
        return Effect(Status.RENAMED, {}, "assigns files to domains", ("tasks.data",))
    return goes_to(key, "tasks.data", "one domain: all rows are used, whatever their tag")


def _share(source: Source, key: str, _value: Any) -> Effect:
    domain = key.rpartition(".")[2]
    if domain not in _domains(source):
        return unused("rewards has no such domain")
    return goes_to(key, "tasks.share") if _has_tasks(source, domain) else unused(_NO_TASKS)


def _filter(source: Source, key: str, value: Any) -> Effect:
    name = key.rpartition(".")[2]
    if name == "type" and value in (None, "no_filter"):
        return Effect(Status.DEFAULT)
    if name == "std_threshold" and value not in (0, None):
        return goes_to(key, "tasks.filters", "groups with equal rewards are replaced, others are kept")
    known = ("type", "std_threshold", "threshold_down", "threshold_up")
    if name not in known or (name == "type" and value not in ("mean_filter", "std_filter")):
        return unsupported("known filters: mean_filter, std_filter")
    return goes_to(key, "tasks.filters")


def _judge(source: Source, key: str, _value: Any) -> Effect:
    if _kind(source, key.split(".")[1]) != "judge":
        return unused("the reward is no judge")
    return goes_to(key, "tasks.reward.chat")


def _judge_model(source: Source, key: str, _value: Any) -> Effect:
    domain = key.split(".")[1]
    if _kind(source, domain) != "judge":
        return unused("the reward has no model")
    if source.get(f"rewards.{domain}.judge_model_name"):
        return unused("judge_model_name is set")
    return goes_to(key, "tasks.reward.chat.model", f"serve it at {_JUDGE_URL}, or change url")


def _reward_type(source: Source, key: str, value: Any) -> Effect:
    if _kind(source, key.split(".")[1]) == "ifeval" and value == "soft":
        return goes_to(key, "tasks.reward.partial")
    return Effect(Status.DEFAULT) if value in (None, "strict", "hard") else unsupported("the reward is 0 or 1")


def _samples(source: Source, key: str, _value: Any) -> Effect:
    if not source.get("validation"):
        return unused("there is no validation")
    if not _validation_temperature(source):
        return unused("greedy attempts are all the same")
    return goes_to(key, "validation.samples")


ROWS: tuple[Row, ...] = (
    take("rollout_batch_size", "rollout.groups_per_step", default=128),
    take("num_return_sequences_in_group", "rollout.group_size", default=1),
    into("prompt_length", "tasks.max_prompt_tokens", default=1024),
    into("response_length", "rollout.max_new_tokens"),
    into("sequence_length", "rollout.max_seq_len"),
    *same("prompt_length and response_length decide", "actor_infer.generating_args.max_new_tokens"),
    *same("rollout.group_size", "actor_infer.generating_args.num_return_sequences"),
    Row("actor_train.data_args.file_name", _files),
    Row("validation.data_args.file_name", _files),
    Row("actor_train.data_args.domain_interleave_probs.*", _share),
    into("actor_train.data_args.messages", "tasks.fields.messages"),
    into("actor_train.data_args.prompt", "tasks.fields.prompt"),
    into("validation.data_args.messages", "validation.tasks.fields.messages"),
    into("validation.data_args.prompt", "validation.tasks.fields.prompt"),
    into("actor_train.data_args.tag", "tasks.data", note="its rows assign files to domains"),
    into("validation.data_args.tag", "validation.tasks.data", note="its rows assign files to domains"),
    *neutral("ids are in the column `id`", "*.data_args.id", values=("id", None)),
    *same("rewards read the column `ground_truth`", "*.data_args.response"),
    *same("paths are relative to the current directory", "*.data_args.dataset_dir"),
    *same("files are read as they are, once", "*.data_args.preprocessing_num_workers", "*.data_args.cache_path"),
    *same("the kind follows from the name of the file", "*.data_args.dataset_type"),
    *same("shares are per domain", "*.data_args.interleave_probs"),
    *refuse("no such setting of data", "*.data_args.**"),
    into("validation.generating_args.temperature", "validation.temperature", default=0.95, when="validation"),
    *neutral("validation samples from all tokens", "validation.generating_args.top_p", values=(1, None)),
    *neutral("validation samples from all tokens", "validation.generating_args.top_k", values=(0, -1, None)),
    Row("validation.generating_args.num_return_sequences", _samples, 1),
    Row("val_n_sample", _samples, 1),
    into("val_greedy", "validation.temperature"),
    *same("as in training", "validation.generating_args.max_new_tokens", "val_prompt_length", "val_sequence_length"),
    *same("all held-out tasks are attempted", "val_batch_size"),
    *same("validation.every, from the key of the run", "validation.eval_steps"),
    *refuse("the generators of the run attempt held-out tasks", "validation.**"),
    Row("rewards.*.worker_cls", _worker),
    Row("rewards.*.tag_included", _tags),
    Row("rewards.*.query_filter_config.type", _filter),
    Row("rewards.*.query_filter_config.filter_args.*", _filter),
    Row("rewards.*.reward_type", _reward_type),
    Row("rewards.*.judge_api_url", _judge),
    Row("rewards.*.judge_model_name", _judge),
    *refuse("name the variable with the key as chat.api_key_env", "rewards.*.judge_api_key"),
    *refuse("write the rubric of the reward by hand", "rewards.*.judge_prompt"),
    *same("the judge is behind a server", "rewards.*.judge_model_type"),
    Row("rewards.*.model_args.model_name_or_path", _judge_model),
    *same("rewards run in the processes of rewards.workers", "rewards.*.world_size", "rewards.*.infer_batch_size"),
    *same("code runs in a sandbox on this machine", "rewards.*.use_local", "rewards.*.code_url"),
    *same("messages go to rewards as they are", "rewards.*.data_args.**"),
    *neutral("responses are not filtered", "rewards.*.response_filter_config.type", values=("no_filter", None)),
    *neutral("add the reward `length` or the shaping `overlong`", "rewards.*.response_length_penalty_coef"),
    *refuse("the judge's server has its own settings", "rewards.*.generating_args.**", "rewards.*.strategy_args.**"),
    *refuse("the judge's server has its own settings", "rewards.*.model_args.**", "rewards.*.device_mapping"),
    *neutral("no such setting of a reward", "rewards.*.**"),
    *refuse("use roll.rewards.model, or the section reward_model", "reward.**", "reward_model.**"),
    *neutral("screen the file before the run", "dataset_filter.**"),
    *refuse("models with images are not supported", "vlm_filter.**"),
    *same("rows are distributed by length", "balance_length"),
    *neutral("set algorithm.minibatches", "minibatch_data_iter_num", values=(1, None)),
)
