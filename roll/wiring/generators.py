"""Who samples, from configuration: one description for any process, whichever the backend."""

from __future__ import annotations

from typing import Any

import torch

from roll.config.roles import NativeInfer
from roll.config.schema import Run
from roll.config.vllm import VllmInfer
from roll.engines.base import Generator
from roll.engines.native.build import Surroundings
from roll.engines.native.decoder import geometry
from roll.engines.native.generator import Settings as NativeSettings
from roll.engines.native.model_spec import Origin, architecture
from roll.engines.vllm.generator import Settings as VllmSettings
from roll.engines.vllm.generator import VllmGenerator
from roll.serving.canary import Canary, canary_of
from roll.types import Call
from roll.weights.plan import Channel


def generator_call(run: Run, origin: Origin, channel: Call, around: Surroundings) -> Call:
    """A worker of the role `actor_infer`, to be made by any executor; `channel` brings it its weights."""
    given: dict[str, Any] = {"origin": origin, "channel": channel}
    if isinstance(run.actor_infer, VllmInfer):
        return Call("roll.engines.vllm.generator:generator", {**given, "settings": vllm_settings(run, run.actor_infer)})
    settings = native_settings(run, run.actor_infer)
    return Call("roll.engines.native.build:generator", {**given, "settings": settings, "around": around})


def build_generator(run: Run, origin: Origin, channel: Channel) -> Generator:
    """A generator in this process with a model of its own, for backends that cannot share the trainer's."""
    assert isinstance(run.actor_infer, VllmInfer), "the native one is built beside the trainer"
    return VllmGenerator(origin, vllm_settings(run, run.actor_infer), channel)


def native_settings(run: Run, section: NativeInfer) -> NativeSettings:
    """How the native generator serves this run; the device is settled by whoever computes."""
    return NativeSettings(
        slots=section.slots,
        context=run.rollout.context,
        prefill_tokens=section.prefill_tokens,
        flush_tokens=section.flush_tokens,
        device=torch.device("cpu"),
    )


def vllm_settings(run: Run, section: VllmInfer) -> VllmSettings:
    """How vLLM serves this run."""
    return VllmSettings(
        context=run.rollout.context,
        slots=section.slots,
        prefill_tokens=section.prefill_tokens,
        flush_tokens=section.flush_tokens,
        stream_tokens=section.stream_tokens,
        tp=section.parallel.tp,
        dtype=run.actor_train.dtype if section.dtype == "auto" else section.dtype,
        memory=section.memory,
        kv_gib=section.kv_gib,
        prefix_cache=section.prefix_cache,
        eager=section.eager,
        seeded=section.seeded,
        logprobs=section.logprobs,
        offload=section.offload,
    )


def build_canary(run: Run) -> Canary | None:
    """What every version is tried with before it is served, unless the file says not to."""
    if not run.publication.canary:
        return None
    vocab, exact = geometry(architecture(run.model)).vocab, run.actor_train.dtype == "float32"
    return canary_of(vocab=vocab, context=run.rollout.context, exact=exact)
