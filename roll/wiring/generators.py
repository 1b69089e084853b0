"""Builds generators of any backend from the configuration."""

from __future__ import annotations

from typing import Any

import torch

from roll.config.roles import NativeInfer
from roll.config.schema import Run
from roll.config.vllm import VllmInfer
from roll.engines.base import Generator
from roll.engines.native.build import WorkerContext
from roll.engines.native.decoder import geometry
from roll.engines.native.generator import NativeGeneratorSettings
from roll.engines.native.model_spec import ModelSpec, architecture
from roll.engines.vllm.generator import VllmGenerator, VllmSettings
from roll.serving.canary import Canary, canary_for
from roll.types import Spec
from roll.weights.channel import Channel


def generator_call(run: Run, model_spec: ModelSpec, channel: Spec, context: WorkerContext) -> Spec:
    """A worker of the role `actor_infer`, for any executor; `channel` delivers its weights."""
    kwargs: dict[str, Any] = {"model_spec": model_spec, "channel": channel}
    if isinstance(run.actor_infer, VllmInfer):
        return Spec(
            "roll.engines.vllm.generator:generator", {**kwargs, "settings": vllm_settings(run, run.actor_infer)}
        )
    settings = native_settings(run, run.actor_infer)
    return Spec("roll.engines.native.build:generator", {**kwargs, "settings": settings, "context": context})


def build_generator(run: Run, model_spec: ModelSpec, channel: Channel) -> Generator:
    """A generator in this process with a separate model, for backends that cannot share the trainer's."""
    assert isinstance(run.actor_infer, VllmInfer), "the native generator is built together with the trainer"
    return VllmGenerator(model_spec, vllm_settings(run, run.actor_infer), channel)


def native_settings(run: Run, section: NativeInfer) -> NativeGeneratorSettings:
    """Settings of the native generator; the worker sets the device."""
    return NativeGeneratorSettings(
        max_num_seqs=section.max_num_seqs,
        max_seq_len=run.rollout.max_seq_len,
        max_num_batched_tokens=section.max_num_batched_tokens,
        progress_interval=section.progress_interval,
        device=torch.device("cpu"),
    )


def vllm_settings(run: Run, section: VllmInfer) -> VllmSettings:
    """Settings of vLLM."""
    return VllmSettings(
        max_seq_len=run.rollout.max_seq_len,
        max_num_seqs=section.max_num_seqs,
        max_num_batched_tokens=section.max_num_batched_tokens,
        progress_interval=section.progress_interval,
        stream_interval=section.stream_interval,
        tp=section.parallel.tp,
        dtype=run.actor_train.dtype if section.dtype == "auto" else section.dtype,
        gpu_memory_utilization=section.gpu_memory_utilization,
        kv_cache_gib=section.kv_cache_gib,
        enable_prefix_caching=section.enable_prefix_caching,
        enforce_eager=section.enforce_eager,
        per_request_seed=section.per_request_seed,
        logprobs=section.logprobs,
        offload=section.offload,
    )


def build_canary(run: Run) -> Canary | None:
    """The canary that checks every version before it is served; None if switched off."""
    if not run.weight_sync.canary:
        return None
    vocab, exact = geometry(architecture(run.model)).vocab, run.actor_train.dtype == "float32"
    return canary_for(vocab=vocab, max_seq_len=run.rollout.max_seq_len, exact=exact)
