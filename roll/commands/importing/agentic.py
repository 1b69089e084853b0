"""Keys of ROLL's agentic pipeline: environments by tag, in groups of equal seeds."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, cast

from roll.commands.importing.outcome import Status
from roll.commands.importing.source import Source
from roll.commands.importing.table import Effect, Row, goes_to, into, neutral, refuse, same, take, unsupported

_HELD_OUT_SEED = 2_000_000
"""First seed of validation tasks, far from those of training."""
_TAG = re.compile(r".*<(\w+)>\(\.\*\??\)</\1>\$?", re.DOTALL)
_COMMON = {"max_steps": "max_turns", "format_penalty": "format_penalty", "action_pattern": "tag"}
_ARGUMENTS: dict[str, dict[str, str]] = {
    "frozen_lake": {**_COMMON, "is_slippery": "slippery", "size": "size", "p": "holes"},
    "sokoban": {**_COMMON, "dim_room": "size", "num_boxes": "boxes", "search_depth": "pulls"},
}
"""By `env_type`: keys of `env_config`, and our arguments."""
_NOTES = {
    "frozen_lake": "the messages are those of roll.envs",
    "sokoban": "the reward is 1 for a solved level; ROLL also scores moves and boxes",
    "dim_room": "a square without the outer wall: the shorter side less 2",
    "search_depth": "the most pulls of boxes during generation",
    "format_penalty": "a cost, so without its sign",
}


def build_agentic(source: Source) -> dict[str, Any]:
    """Batch, lengths, tasks and validation."""
    longest, group_size = source.max_seq_len, source.whole("train_env_manager.group_size")
    tags = source.texts("train_env_manager.tags")
    turns = [source.whole(f"custom_envs.{tag}.max_steps") for tag in tags if _setting(source, tag, "max_steps")]
    tokens = min(source.whole("actor_infer.generating_args.max_new_tokens"), longest - 1)
    values: dict[str, Any] = {
        "rollout.groups_per_step": max(1, source.whole("rollout_batch_size") // max(1, group_size)),
        "rollout.group_size": group_size,
        "rollout.max_seq_len": longest,
        "rollout.max_new_tokens": tokens,
        "tasks": [_task(source, tag, "train_env_manager") for tag in tags if _env(source, tag)],
    }
    if turns:
        values["rollout.max_turns"] = max(turns)
    if any("StepEnvManager" in str(_setting(source, tag, "env_manager_cls")) for tag in tags):
        values["rollout.segment_per"] = "turn"
    if source.get("val_env_manager") is not None:
        tags = [tag for tag in source.texts("val_env_manager.tags") if _env(source, tag)]
        limits = [_setting(source, tag, "max_tokens_per_step") or tokens for tag in tags]
        values["validation.tasks"] = [_task(source, tag, "val_env_manager") for tag in tags]
        values["validation.max_new_tokens"] = max(limits, default=tokens)
        values["validation.temperature"] = source.number("actor_infer.generating_args.temperature")
        values["validation.samples"] = source.whole("val_env_manager.group_size")
    return values


def _setting(source: Source, tag: str, name: str) -> Any:
    return source.get(f"custom_envs.{tag}.{name}")


def _task(source: Source, tag: str, manager: str) -> dict[str, Any]:
    """The task source of a tag."""
    task: dict[str, Any] = {"name": tag, "env": _env(source, tag)}
    tags = source.texts(f"{manager}.tags")
    groups = cast("list[Any]", source.get(f"{manager}.num_groups_partition") or [])
    index = tags.index(tag)
    share = groups[index] if index < len(groups) else None
    if manager == "val_env_manager":
        count = share or max(1, source.whole("val_env_manager.num_env_groups") // len(tags))
        return {**task, "data": {"kind": "seeds", "start": _HELD_OUT_SEED, "count": count}}
    if share:
        task["share"] = float(share)
    if _setting(source, tag, "max_tokens_per_step") is not None:
        task["max_new_tokens"] = source.whole(f"custom_envs.{tag}.max_tokens_per_step")
    return task


def _env(source: Source, tag: str) -> dict[str, Any] | None:
    """Our environment for a tag; None if there is none."""
    kind = _setting(source, tag, "env_type")
    if kind not in _ARGUMENTS:
        return None
    config = source.section(f"custom_envs.{tag}.env_config")
    arguments = {ours: _argument(name, config) for name, ours in _ARGUMENTS[kind].items() if name in config}
    return {"kind": kind, **{name: value for name, value in arguments.items() if value is not None}}


def _argument(name: str, config: Mapping[str, Any]) -> Any:
    """Our argument for a value of `env_config`; None if it has no counterpart."""
    value = config[name]
    match name:
        case "action_pattern":
            match = _TAG.fullmatch(str(value))
            return match[1] if match else None
        case "format_penalty":
            return abs(float(value))
        case "p":
            return round(1 - float(value), 6)
        case "dim_room":
            return max(2, min(int(side) for side in cast("list[Any]", value)) - 2)
        case _:
            return value


def _env_config(source: Source, key: str, _value: Any) -> Effect:
    _, tag, _, name = key.split(".", 3)
    kind = _setting(source, tag, "env_type")
    argument = _ARGUMENTS.get(str(kind), {}).get(name)
    if argument is None:
        return unsupported(f"{kind} has no such argument here")
    if _argument(name, source.section(f"custom_envs.{tag}.env_config")) is None:
        return unsupported("an action is the content of one tag, such as <answer>")
    return goes_to(key, f"tasks.env.{argument}", _NOTES.get(name, ""))


def _env_type(_source: Source, key: str, value: Any) -> Effect:
    if value in _ARGUMENTS:
        return goes_to(key, "tasks.env.kind", _NOTES[value])
    return unsupported(f"its tasks are left out; write tasks.env by hand (known: {', '.join(_ARGUMENTS)})")


def _batch(source: Source, key: str, _value: Any) -> Effect:
    total, size = source.whole(key), max(1, source.whole("train_env_manager.group_size"))
    status = Status.DIFFERS if total % size else Status.RENAMED
    return Effect(status, {}, f"{total} trajectories in groups of {size}", ("rollout.groups_per_step",))


def _tags(source: Source, key: str, _value: Any) -> Effect:
    known = source.section("custom_envs")
    missing = [tag for tag in source.texts(key) if tag not in known]
    if missing:
        raise source.fault(key, f"custom_envs has no {missing[0]!r}")
    return goes_to(key, "tasks" if key.startswith("train") else "validation.tasks")


def _manager(_source: Source, key: str, value: Any) -> Effect:
    known = ("TrajEnvManager", "StepEnvManager")
    if str(value).rpartition(".")[2] in known:
        return goes_to(key, "rollout.segment_per")
    return unsupported(f"a sequence is a trajectory here (known: {', '.join(known)})")


def _has_length(source: Source) -> str:
    return "" if source.get("sequence_length") is None else "sequence_length is set"


def _no_even_shares(source: Source) -> str:
    if source.get("val_env_manager.num_groups_partition"):
        return "num_groups_partition is set"
    return "" if source.get("val_env_manager") else "there is no validation"


_ENV = "custom_envs.*"
ROWS: tuple[Row, ...] = (
    Row("rollout_batch_size", _batch, 128),
    into("train_env_manager.group_size", "rollout.group_size", default=1),
    take("train_env_manager.group_size_redundancy", "rollout.redundant_siblings"),
    Row("train_env_manager.tags", _tags),
    Row("val_env_manager.tags", _tags),
    into("train_env_manager.num_groups_partition", "tasks.share"),
    into("val_env_manager.num_groups_partition", "validation.tasks.data.count"),
    into("val_env_manager.num_env_groups", "validation.tasks.data.count", default=128, unless=_no_even_shares),
    into("val_env_manager.group_size", "validation.samples", default=1, when="val_env_manager"),
    *same("rollout.groups_per_step and staleness decide", "train_env_manager.num_env_groups", "*.max_traj_per_env"),
    *same("validation attempts each task once per sample", "val_batch_size"),
    *same("environments run in the processes of envs.workers", "*.max_env_num_per_worker"),
    *neutral("the environments have their own format_penalty", "*.format_penalty"),
    *refuse("write algorithm.filters by hand", "*.group_filter_cls"),
    *neutral("the policy of the run attempts all tasks", "*.llm_proxy.proxy_type", values=("policy",)),
    *neutral("the policy of the run attempts all tasks", "*.llm_proxy.**"),
    into("actor_infer.generating_args.max_new_tokens", "rollout.max_new_tokens", default=8192),
    *same("rollout.group_size", "actor_infer.generating_args.num_return_sequences"),
    into("sequence_length", "rollout.max_seq_len"),
    into("response_length", "rollout.max_seq_len", unless=_has_length),
    into("prompt_length", "rollout.max_seq_len", default=1024, unless=_has_length),
    *same("as in training", "val_prompt_length", "val_sequence_length"),
    *same("a batch need not divide by the number of ranks", "batch_adjust_mode"),
    Row(f"{_ENV}.env_type", _env_type),
    into(f"{_ENV}.max_tokens_per_step", "tasks.max_new_tokens"),
    into(f"{_ENV}.max_steps", "rollout.max_turns"),
    Row(f"{_ENV}.env_manager_cls", _manager),
    Row(f"{_ENV}.env_config.**", _env_config),
    *same("environments share no state", f"{_ENV}.use_thread_lock"),
    *same("set envs.workers and rollout.concurrency", f"{_ENV}.max_env_step_concurrent"),
    *refuse(
        "environments write their own messages", f"{_ENV}.agent_template", f"{_ENV}.*_*_template", f"{_ENV}.*_format"
    ),
    *neutral("no such setting of an environment", f"{_ENV}.**"),
    *same("tasks come from the environments", "*.data_args.**"),
    *neutral("no such setting of the environments", "train_env_manager.**", "val_env_manager.**"),
    *refuse("environments give the rewards", "reward.**", "rewards.**"),
)
