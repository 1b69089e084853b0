"""Keys of ROLL's `WorkerConfig`: models, training, generation and devices of each role."""

from __future__ import annotations

import math
from typing import Any

from roll.commands.importing.algorithm import has_critic
from roll.commands.importing.device_lists import format_devices
from roll.commands.importing.outcome import Status
from roll.commands.importing.source import Source
from roll.commands.importing.table import (
    Convert,
    Effect,
    Row,
    goes_to,
    into,
    neutral,
    refuse,
    renamed,
    same,
    take,
    unsupported,
    unused,
)
from roll.commands.importing.trainers import TRAIN_CONFIG, has_lora, on_devices, train_backend
from roll.config.lora import TARGETS

_DTYPES = {"bf16": "bfloat16", "fp32": "float32"}
_SCHEDULES = {"constant": "constant", "constant_with_warmup": "constant", "linear": "linear", "cosine": "cosine"}
_INFER = "actor_infer.strategy_args.strategy_config"
_MODEL = "actor_train.model_args"
_ROLES = ("actor_train", "actor_infer", "reference", "critic")


def build_roles(source: Source) -> dict[str, Any]:
    """Executor, backends, devices and the sizes that follow from them."""
    train, infer = set(source.devices("actor_train")), set(source.devices("actor_infer"))
    values: dict[str, Any] = {
        "actor_train.tokens_per_microbatch": _microbatch(source),
        "algorithm.minibatches": num_minibatches(source),
    }
    if _has_vllm(source):
        values["actor_infer.backend"] = "vllm"
    critic = source.get("critic.model_args.model_name_or_path") or source.get("reward_pretrain")
    if has_critic(source) and critic is not None:
        values["critic.path"] = critic
    if not on_devices(source):
        return values
    values |= {"executor": "ray", "actor_train.backend": train_backend(source)}
    for role in _ROLES:
        devices = source.devices(role)
        if devices and not _no_role(role, source):
            values[f"{role}.devices"] = format_devices(devices)
            if role in ("reference", "critic") and len(devices) > 1 and _is_divided(source, role):
                values[f"{role}.sharded"] = True
    if train & infer and _has_vllm(source):
        values["actor_infer.offload"] = True
    if train and infer and not train & infer:
        values["weight_sync.transport"] = "nccl"
    return values


def num_trajectories(source: Source) -> int:
    """Trajectories per step."""
    batch = source.whole("rollout_batch_size")
    return batch * source.whole("num_return_sequences_in_group") if source.pipeline == "rlvr" else batch


def num_minibatches(source: Source) -> int:
    """Optimizer steps per pass over a batch."""
    return max(1, num_trajectories(source) // _per_update(source))


def _has_vllm(source: Source) -> bool:
    return source.get("actor_infer.strategy_args.strategy_name") in ("vllm", "sglang")


def _no_lora(source: Source) -> str:
    return "" if has_lora(source) else "lora_target is not set"


def _no_role(role: str, source: Source) -> str:
    """The reason why a role has no model of its own; empty if it has one."""
    if role == "critic" and not has_critic(source):
        return "only adv_estimator gae has a critic"
    return "the reference is the actor without its adapters" if role == "reference" and has_lora(source) else ""


def _is_divided(source: Source, role: str) -> bool:
    """Whether ROLL divides the model of a role over devices."""
    name, config = str(source.get(f"{role}.strategy_args.strategy_name")), f"{role}.strategy_args.strategy_config"
    sizes = [value for key, value in source.section(config).items() if key.endswith("parallel_size")]
    return name.startswith(("deepspeed", "fsdp2")) or any(size not in (1, None) for size in sizes)


def _per_update(source: Source) -> int:
    """Trajectories per optimizer step: per rank, times the data-parallel ranks of ROLL's trainer."""
    sizes = [f"{TRAIN_CONFIG}.{name}_parallel_size" for name in ("tensor_model", "pipeline_model", "context")]
    given = [source.whole(key) for key in (*sizes, f"{_MODEL}.ulysses_size") if source.get(key) is not None]
    ranks = max(1, len(source.devices("actor_train")) // max(1, math.prod(given)))
    args = "actor_train.training_args"
    per_rank = source.whole(f"{args}.per_device_train_batch_size") * source.whole(f"{args}.gradient_accumulation_steps")
    return max(1, per_rank * ranks)


def _microbatch(source: Source) -> int:
    longest = source.max_seq_len
    if source.get("actor_train.use_dynamic_batching_in_train"):
        return max(longest, source.whole("actor_train.max_tokens_per_microbatch_in_train"))
    return longest * max(1, source.whole("actor_train.training_args.per_device_train_batch_size"))


def _batch_size(source: Source, key: str, _value: Any) -> Effect:
    total, each = num_trajectories(source), _per_update(source)
    status = Status.DIFFERS if total % each else Status.RENAMED
    microbatch = ("actor_train.tokens_per_microbatch",) if "per_device" in key else ()
    return Effect(status, {}, f"{total} trajectories in updates of {each}", ("algorithm.minibatches", *microbatch))


def _infer_backend(source: Source, key: str, value: Any) -> Effect:
    backend = "vllm" if _has_vllm(source) else "native"
    return goes_to(key, "actor_infer.backend", "" if value == backend else f"the generator is {backend}")


def _infer_value(name: str) -> Convert:
    def convert(source: Source, key: str, value: Any) -> Effect:
        ours = f"actor_infer.{name}"
        return Effect(renamed(key, ours), {ours: value}) if _has_vllm(source) else unsupported("only vllm has it")

    return convert


def _dtype(source: Source, key: str, value: Any) -> Effect:
    if train_backend(source) == "megatron" and value == "bf16":
        return unsupported("backend megatron computes in float32, and the generator as it does")
    if value not in _DTYPES:
        return unsupported("types are bf16 and fp32; here it is float32")
    if not _has_vllm(source):
        return unsupported("the native generator samples in float32")
    return Effect(Status.TAKEN, {f"{key.partition('.')[0]}.dtype": _DTYPES[value]})


def _optimizer(name: str) -> Convert:
    """A key of the optimizer of a role."""

    def convert(source: Source, key: str, value: Any) -> Effect:
        role, prefix = key.partition(".")[0], key.rpartition(".")[0]
        if reason := _no_role(role, source):
            return unused(reason)
        ours = f"{role}.optimizer.{name}"
        match name:
            case "betas":
                value = [source.number(f"{prefix}.adam_beta{index}") for index in (1, 2)]
            case "schedule" if value not in _SCHEDULES:
                return unsupported(f"known schedules: {', '.join(_SCHEDULES)}; here it is constant")
            case "schedule":
                value = _SCHEDULES[value]
            case _:
                pass
        return Effect(renamed(key, ours), {ours: value})

    return convert


def _warmup_ratio(source: Source, key: str, value: Any) -> Effect:
    role, prefix = key.partition(".")[0], key.rpartition(".")[0]
    if reason := _no_role(role, source) or ("warmup_steps is set" if source.get(f"{prefix}.warmup_steps") else ""):
        return unused(reason)
    updates = source.whole("max_steps") * num_minibatches(source)
    steps = math.ceil(updates * source.number(key))
    return Effect(Status.RENAMED, {f"{role}.optimizer.warmup_steps": steps}, f"{value} of {updates} optimizer steps")


def _lora(source: Source, _key: str, _value: Any) -> Effect:
    if reason := _no_lora(source):
        return unused(reason)
    rank, given = source.whole(f"{_MODEL}.lora_rank"), source.get(f"{_MODEL}.lora_alpha")
    alpha = 2 * rank if given is None else source.number(f"{_MODEL}.lora_alpha")
    return Effect(Status.RENAMED, {"actor_train.lora.rank": rank, "actor_train.lora.alpha": alpha})


def _lora_target(_source: Source, _key: str, value: Any) -> Effect:
    if value is None:
        return Effect(Status.DEFAULT)
    ours = "actor_train.lora.target_modules"
    if value in ("all", "all-linear"):
        return Effect(Status.RENAMED, {ours: list(TARGETS)})
    names = [name.strip() for name in str(value).split(",")]
    known = [name for name in names if name in TARGETS]
    rest = "others are left out" if known else "here all have adapters"
    note = "" if known == names else f"modules are {', '.join(TARGETS)}; {rest}"
    return Effect(renamed("", ours, note), {ours: known or list(TARGETS)}, note)


def _top_k(source: Source, key: str, _value: Any) -> Effect:
    return Effect(Status.TAKEN, {"rollout.top_k": max(0, source.whole(key))})


def _devices(source: Source, key: str, value: Any) -> Effect:
    role = key.partition(".")[0]
    if reason := _no_role(role, source):
        return unused(reason)
    return Effect(Status.DEFAULT) if value is None else goes_to(key, f"{role}.devices")


def _training_rows(role: str) -> tuple[Row, ...]:
    prefix = f"{role}.training_args"
    return (
        Row(f"{prefix}.learning_rate", _optimizer("lr"), 5e-5),
        Row(f"{prefix}.weight_decay", _optimizer("weight_decay")),
        Row(f"{prefix}.adam_beta1", _optimizer("betas"), 0.9),
        Row(f"{prefix}.adam_beta2", _optimizer("betas"), 0.999),
        Row(f"{prefix}.adam_epsilon", _optimizer("eps")),
        Row(f"{prefix}.max_grad_norm", _optimizer("max_grad_norm")),
        Row(f"{prefix}.lr_scheduler_type", _optimizer("schedule"), "linear"),
        Row(f"{prefix}.warmup_steps", _optimizer("warmup_steps")),
        Row(f"{prefix}.warmup_ratio", _warmup_ratio),
    )


ROWS: tuple[Row, ...] = (
    take("max_grad_norm", "actor_train.optimizer.max_grad_norm"),
    into("reward_pretrain", "critic.path", only=("gae",)),
    into("critic.model_args.model_name_or_path", "critic.path", only=("gae",)),
    Row("actor_train.training_args.per_device_train_batch_size", _batch_size, 8),
    Row("actor_train.training_args.gradient_accumulation_steps", _batch_size, 1),
    *_training_rows("actor_train"),
    *_training_rows("critic"),
    *same("as the actor", "critic.training_args.*_batch_size", "critic.training_args.gradient_accumulation_steps"),
    *same("a run has steps, not epochs", "*.training_args.num_train_epochs", "*.training_args.max_steps"),
    *same("follows from dtype", "*.training_args.bf16", "*.training_args.fp16", "*.training_args.tf32"),
    *same("the seed of the run", "*.training_args.seed", "*.training_args.data_seed"),
    *same("tasks are read once", "*.training_args.dataloader_num_workers"),
    *same("the run's directory", "*.training_args.output_dir"),
    Row(f"{_MODEL}.dtype", _dtype, "bf16"),
    Row("actor_infer.model_args.dtype", _dtype),
    Row(f"{_MODEL}.lora_rank", _lora, 8),
    Row(f"{_MODEL}.lora_alpha", _lora),
    Row(f"{_MODEL}.lora_target", _lora_target),
    *neutral("adapters have no dropout", "*.model_args.lora_dropout"),
    *same("as for actor_train", "actor_infer.model_args.lora_*", "reference.model_args.lora_*"),
    take("reference.model_args.model_name_or_path", "reference.path"),
    *same("the model of the run", f"{_MODEL}.model_name_or_path", "actor_infer.model_args.model_name_or_path"),
    *same("the type of the actor", "reference.model_args.dtype", "critic.model_args.dtype"),
    *same(
        "engines choose it", *(f"*.model_args.{name}" for name in ("attn_implementation", "flash_attn", "device_map"))
    ),
    *same("only the trainer needs it", "*.model_args.disable_gradient_checkpointing"),
    *same("follows from config.json", "*.model_args.model_type", "*.model_args.num_labels"),
    *neutral("no such setting of the model", "*.model_args.**"),
    Row("actor_infer.strategy_args.strategy_name", _infer_backend),
    *same("as the actor's trainer", "*.strategy_args.strategy_name"),
    Row(f"{_INFER}.mem_fraction_static", _infer_value("gpu_memory_utilization")),
    Row(f"{_INFER}.tensor_parallel_size", _infer_value("parallel.tp")),
    Row(f"{_INFER}.tp_size", _infer_value("parallel.tp")),
    Row(f"{_INFER}.gpu_memory_utilization", _infer_value("gpu_memory_utilization")),
    Row(f"{_INFER}.max_num_seqs", _infer_value("max_num_seqs")),
    Row(f"{_INFER}.max_num_batched_tokens", _infer_value("max_num_batched_tokens")),
    Row(f"{_INFER}.enforce_eager", _infer_value("enforce_eager")),
    Row(f"{_INFER}.enable_prefix_caching", _infer_value("enable_prefix_caching")),
    *same("rollout.max_seq_len", f"{_INFER}.max_model_len", f"{_INFER}.context_length"),
    *same("the engine chooses it", f"{_INFER}.block_size", f"{_INFER}.load_format", f"{_INFER}.sleep_level", _INFER),
    *neutral("generators have tensor parallelism only", f"{_INFER}.*_parallel_size", values=(1, None)),
    *neutral("no such setting of the generator", f"{_INFER}.**"),
    *same(
        "sharded where ROLL divides the model", "*.strategy_args.strategy_config", "*.strategy_args.strategy_config.**"
    ),
    take("actor_infer.generating_args.temperature", "rollout.temperature", default=0.95),
    take("actor_infer.generating_args.top_p", "rollout.top_p", default=0.7),
    Row("actor_infer.generating_args.top_k", _top_k, 50),
    take("actor_infer.generating_args.stop_strings", "rollout.stop", note="each must be one token of the model"),
    *neutral("no beam search", "*.generating_args.num_beams", values=(1, None)),
    *neutral(
        "no penalties", "*.generating_args.repetition_penalty", "*.generating_args.length_penalty", values=(1, None)
    ),
    *neutral("rollouts sample", "*.generating_args.do_sample", values=(True, None)),
    *neutral("the response includes it", "*.generating_args.include_stop_str_in_output", values=(True, None)),
    *same("rollout.max_seq_len", "*.generating_args.max_length"),
    *same("always returned", "*.generating_args.logprobs"),
    *(Row(f"{role}.device_mapping", _devices) for role in _ROLES),
    into("actor_train.use_dynamic_batching_in_train", "actor_train.tokens_per_microbatch"),
    into(
        "actor_train.max_tokens_per_microbatch_in_train",
        "actor_train.tokens_per_microbatch",
        default=0,
        when="actor_train.use_dynamic_batching_in_train",
    ),
    *same("batches have no padding", "*.use_dynamic_batching_in_*", "*.max_tokens_per_microbatch_in_*"),
    *same("batches have no padding", "*.sequence_length_round_in_*", "*.use_sequence_packing", "*.infer_batch_size"),
    *same("batches have no padding", "*.sequence_packing_args.**"),
    *same("follows from the devices", "*.num_gpus_per_worker", "*.world_size", "*.max_concurrency", "*.offload_nccl"),
    *same("losses divide by counts over the whole batch", "*.apply_loss_scale"),
    *same("logits are float32", "*.logits_in_fp32"),
    *same("weights are published after every step", "*.model_update_frequency"),
    *same("the role has this name", "*.name"),
    *same("the tokenizer's chat template is used", "*.data_args.template", "global_template"),
    *refuse("roles have no classes", *(f"{role}.worker_cls" for role in _ROLES)),
)
