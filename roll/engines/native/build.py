"""Factories of native workers, called in the process of the worker.

A `roll.types.Spec` names the function; its first argument is the worker's rank.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, cast

import torch

from roll.engines.hf.decoder import HuggingFaceDecoder
from roll.engines.native import fp8
from roll.engines.native.decoder import Decoder
from roll.engines.native.distillation import NativeDistiller, NativeTeacher
from roll.engines.native.generator import NativeGenerator, NativeGeneratorSettings
from roll.engines.native.model_spec import ModelSpec, build
from roll.engines.native.paged_generator import PagedGenerator
from roll.engines.native.trainer import LogprobSettings, NativeLogprobModel, NativeTrainerSettings
from roll.errors import ConfigError
from roll.registry import CHANNELS
from roll.types import Spec
from roll.weights.channel import Channel, Shared


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerContext:
    """Process-wide settings of a worker."""

    device_key: str
    """Config key that names the device, for error messages."""
    device: str
    """`auto` is the first visible GPU, otherwise the CPU."""
    threads: int
    """0: torch's default."""
    deterministic: bool


def trainer(
    rank: int,
    *,
    model_spec: ModelSpec,
    settings: NativeTrainerSettings,
    context: WorkerContext,
    channel: Spec | None = None,
) -> NativeDistiller:
    """A trainer that sends its weights through `channel`; None for a critic, whose weights are not published."""
    settings = replace(settings, device=training_device(settings, context))
    decoder = build(model_spec, settings.device)
    return NativeDistiller(decoder, settings, Shared() if channel is None else _channel(channel, rank))


def logprob_model(
    rank: int, *, model_spec: ModelSpec, settings: LogprobSettings, context: WorkerContext
) -> NativeLogprobModel:
    """A model with fixed weights."""
    settings = replace(settings, device=configure_torch(context))
    return NativeLogprobModel(build(model_spec).requires_grad_(False), settings)


def teacher(rank: int, *, model_spec: ModelSpec, settings: LogprobSettings, context: WorkerContext) -> NativeTeacher:
    """A model with fixed weights, which also gives its distributions."""
    settings = replace(settings, device=configure_torch(context))
    return NativeTeacher(build(model_spec).requires_grad_(False), settings)


def generator(
    rank: int, *, model_spec: ModelSpec, settings: NativeGeneratorSettings, context: WorkerContext, channel: Spec
) -> NativeGenerator | PagedGenerator:
    """A generator in a separate process, which receives its weights through `channel`."""
    settings = replace(settings, device=configure_torch(context))
    engine = generator_of(build(model_spec), settings, _channel(channel, rank))
    engine.continuous = True
    return engine


def generator_of(
    decoder: Decoder | HuggingFaceDecoder, settings: NativeGeneratorSettings, channel: Channel
) -> NativeGenerator | PagedGenerator:
    """The generator for these settings."""
    if settings.dtype is torch.float32:
        return NativeGenerator(decoder, settings, channel)
    if not isinstance(decoder, Decoder):
        raise ConfigError(
            "actor_infer: backend native samples models of transformers with float32 only; set actor_infer.backend to "
            "vllm, or actor_train.dtype to float32"
        )
    return PagedGenerator(decoder, settings, channel)


def training_device(settings: LogprobSettings, context: WorkerContext) -> torch.device:
    """The device of a trainer, after `configure_torch`; raises `ConfigError` if it lacks products that are set."""
    device = configure_torch(context)
    if settings.precision.fp8 is not None:
        fp8.check_device(device, context.device_key)
    return device


def configure_torch(context: WorkerContext) -> torch.device:
    """Apply process-wide torch settings, and choose the device."""
    prefer_blas()
    if context.threads:
        torch.set_num_threads(context.threads)
    if context.deterministic:
        torch.use_deterministic_algorithms(True)
        # Memory that is never read need not be deterministic.
        cast(Any, torch.utils.deterministic).fill_uninitialized_memory = False
    name = context.device
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    device = torch.device(name)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f"{context.device_key}: no GPU is visible (got {name!r}); choose 'cpu' or 'auto'")
    if device.type == "cuda" and context.deterministic:
        raise ConfigError(f"deterministic: backend native supports it on the CPU only; set {context.device_key}=cpu")
    return device


def prefer_blas() -> None:
    """On 64-bit ARM, use BLAS instead of oneDNN for products with a transposed right side, where BLAS is faster.

    Output layers and gradients are such products. oneDNN stays where it supports 16-bit products.
    """
    if torch.backends.mkldnn.is_acl_available() and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        torch.backends.mkldnn.enabled = False


def _channel(channel: Spec, rank: int) -> Channel:
    return CHANNELS[channel.name](rank, **channel.kwargs)
