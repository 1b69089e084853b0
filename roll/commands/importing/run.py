"""Keys of ROLL's `BaseConfig` that are about the whole run."""

from __future__ import annotations

import re
from typing import Any

from roll.commands.importing.outcome import Status
from roll.commands.importing.source import Source
from roll.commands.importing.table import (
    Convert,
    Effect,
    Row,
    goes_to,
    neutral,
    refuse,
    renamed,
    same,
    take,
    unsupported,
    unused,
)

_TRACKERS = {"wandb": "tracking.wandb", "swanlab": "tracking.swanlab"}


def _name(_source: Source, key: str, value: Any) -> Effect:
    name = re.sub(r"[^\w.+-]", "-", str(value)).lstrip(".") or "run"
    note = "characters that cannot be in a run's name become '-'" if name != value else ""
    return Effect(renamed(key, "name", note), {"name": name}, note)


def _steps(source: Source, key: str, _value: Any) -> Effect:
    if source.whole(key) <= 0:
        return unsupported("a run has a number of steps; set steps")
    return Effect(Status.RENAMED, {"steps": source.whole(key)})


def _every(ours: str) -> Convert:
    return lambda source, key, _value: Effect(Status.RENAMED, {ours: max(0, source.whole(key))})


def _tracker(source: Source, _key: str, value: Any) -> Effect:
    project = source.get("tracker_kwargs.project") or source.get("exp_name") or "roll"
    if value in _TRACKERS:
        return Effect(Status.RENAMED, {_TRACKERS[value]: str(project), "tracking.tensorboard": False})
    if value in ("tensorboard", "stdout", None):
        return Effect(Status.RENAMED, {"tracking.tensorboard": value == "tensorboard"})
    return unsupported("known trackers: tensorboard, wandb, swanlab, stdout")


def _project(source: Source, key: str, _value: Any) -> Effect:
    target = _TRACKERS.get(str(source.get("track_with")))
    return goes_to(key, target) if target else unused(f"track_with is {source.get('track_with')}")


def _kept(source: Source, key: str, _value: Any) -> Effect:
    count = source.whole(key)
    note = "" if count > 0 else "ROLL keeps all"
    return Effect(renamed(key, "keep", note), {"checkpoint.keep": count if count > 0 else 1_000_000}, note)


def _extra_prompts(source: Source, _key: str, _value: Any) -> Effect:
    if not source.get("is_use_additional_prompts"):
        return unused("is_use_additional_prompts is false")
    return Effect(Status.RENAMED, {"rollout.redundant_groups": source.whole("max_additional_running_prompts")})


def _variable(_source: Source, _key: str, _value: Any) -> Effect:
    return Effect(Status.VARIABLE, {}, "has an effect only where a key refers to it")


ROWS: tuple[Row, ...] = (
    Row("exp_name", _name),
    take("seed", "seed", default=42),
    take("output_dir", "directory"),
    take("pretrain", "model.path"),
    Row("max_steps", _steps, 500),
    Row("save_steps", _every("checkpoint.every")),
    Row("eval_steps", _every("validation.every"), 10),
    Row("max_ckpt_to_keep", _kept),
    take("async_generation_ratio", "rollout.max_staleness"),
    take("max_running_requests", "rollout.concurrency", default=128),
    Row("is_use_additional_prompts", _extra_prompts),
    Row("max_additional_running_prompts", _extra_prompts, 16),
    Row("track_with", _tracker),
    Row("tracker_kwargs.project", _project),
    *refuse("set WANDB_API_KEY or SWANLAB_API_KEY in the environment", "tracker_kwargs.api_key"),
    *refuse("only the project is passed to a tracker", "tracker_kwargs.**"),
    *neutral("use 'roll train --resume' or 'roll resume'", "resume_from_checkpoint", values=(False, None)),
    *neutral("checkpoints are files in the run's directory", "checkpoint_config.type", values=("file_system",)),
    *neutral("checkpoints are in the run's directory", "checkpoint_config", "checkpoint_config.**"),
    *neutral("set environment variables before the command", "system_envs", "system_envs.**"),
    *neutral("set environment variables before the command", "*.system_envs", "*.system_envs.**"),
    *neutral("download the model before the run", "model_download_type"),
    *refuse("Hydra's own settings", "hydra", "hydra.**"),
    *same("every step is logged", "logging_steps"),
    *same("logs, metrics and samples are in the run's directory", "logging_dir", "base_dir", "rollout_dump_dir"),
    *same("roll samples and roll report show them", "save_logging_board_dir", "report_length_and_rewards"),
    *same("follows from the devices", "num_gpus_per_node", "num_nodes", "local_rank", "is_offload_states"),
    *same("one request per attempt", "generate_opt_level", "is_num_return_sequences_expand"),
    *same("weights move in buckets of a fixed size", "model_update_buffer_size_mb"),
    *same("calls have no timeout; workers are checked for progress", "rpc_timeout", "*.backend_timeout"),
    *neutral("actor_train.offload moves all states or none", "is_offload_optimizer_states_in_train_step"),
    *neutral("rendered frames are not saved", "render_save_dir"),
    *neutral("no profiler; see roll report and roll timeline", "profiler_timeline", "profiler_memory"),
    *refuse("no profiler; see roll report and roll timeline", "profiler_output_dir", "length_profiler_dir"),
    *refuse("write an environment or an agent instead", "user_defined_rollout_loop_cls"),
    *neutral("rollouts are not replaced by recorded ones", "rollout_mock", "rollout_mock.**"),
    *neutral("requests go to the least loaded generator", "router_args", "router_args.**"),
    *(Row(key, _variable) for key in ("deepspeed_*.**", "custom_env.**", "action_pattern", "*_pattern", "*_template")),
    *(Row(key, _variable) for key in ("max_tokens_per_step", "max_actions_per_traj", "*_format_penalty")),
)
