"""Former names of keys. An old name is an error that tells the new one; there are no aliases."""

from __future__ import annotations

from roll.config.algorithm import Algorithm, DomainAlgorithm, Kl
from roll.config.envs import Envs
from roll.config.fsdp import FsdpTrain
from roll.config.knobs import sections_at
from roll.config.lora import Lora
from roll.config.policies import Policy
from roll.config.proxy import ProxyConfig
from roll.config.roles import NativeInfer, NativeTrain, Optimizer, Ray
from roll.config.schema import Checkpoint, Rollout, Run, Sft, Shape
from roll.config.section import Section
from roll.config.sources import TaskSourceConfig
from roll.config.vllm import VllmInfer

_GENERATOR = {
    "slots": "max_num_seqs",
    "prefill_tokens": "max_num_batched_tokens",
    "flush_tokens": "progress_interval",
}
RENAMED: dict[type[Section], dict[str, str]] = {
    Run: {"publication": "weight_sync"},
    Shape: {"context": "max_seq_len"},
    Rollout: {"context": "max_seq_len"},
    Ray: {"max_replaced": "max_replacements"},
    NativeTrain: {"checkpointing": "activation_checkpointing", "exact": "float32_compute"},
    FsdpTrain: {"checkpointing": "activation_checkpointing"},
    Optimizer: {
        "clip_norm": "max_grad_norm",
        "final_lr": "final_lr_ratio",
        "max_refused": "max_nonfinite_updates",
    },
    Lora: {"targets": "target_modules"},
    NativeInfer: _GENERATOR,
    VllmInfer: {
        **_GENERATOR,
        "stream_tokens": "stream_interval",
        "memory": "gpu_memory_utilization",
        "kv_gib": "kv_cache_gib",
        "prefix_cache": "enable_prefix_caching",
        "eager": "enforce_eager",
        "seeded": "per_request_seed",
    },
    Algorithm: {"clip": "advantage_clip", "emphasis": "advantage_weights", "entropy": "entropy_coefficient"},
    DomainAlgorithm: {"clip": "advantage_clip", "emphasis": "advantage_weights", "weight": "loss_weight"},
    Kl: {"place": "apply_to"},
    TaskSourceConfig: {"sampling": "task_sampling"},
    Policy: {"plays": "agents"},
    Envs: {"start_limit": "max_concurrent_starts"},
    ProxyConfig: {
        "sampling": "sampling_params",
        "max_under_way": "max_concurrent_requests",
        "max_agents": "max_concurrent_agents",
    },
    Checkpoint: {"best": "best_metric"},
    Sft: {"player": "scripted_agent", "stop_at": "stop_at_accuracy"},
}
"""By section: old name to new name."""


def new_name(key: str) -> str | None:
    """The dotted key that replaces `key`, such as `rollout.max_seq_len` for `rollout.context`; None if none does."""
    above, _, name = key.rpartition(".")
    for section in sections_at(above.split(".") if above else []):
        if name in RENAMED.get(section, {}):
            new = RENAMED[section][name]
            return f"{above}.{new}" if above else new
    return None
