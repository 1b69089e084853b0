"""Native workers made from descriptions that travel, in whichever process they are to live.

Each function is named by a `roll.types.Call`, and is given the worker's rank first.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, cast

import torch

from roll.engines.native.generator import NativeGenerator
from roll.engines.native.generator import Settings as InferSettings
from roll.engines.native.model_spec import Origin, build
from roll.engines.native.trainer import NativeScorer, NativeTrainer, ScoreSettings
from roll.engines.native.trainer import Settings as TrainSettings
from roll.errors import ConfigError
from roll.registry import CHANNELS
from roll.types import Call
from roll.weights.inline import Shared
from roll.weights.plan import Channel


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What a process of its own has to know besides its role."""

    place: str
    """The key of a file that names the device."""
    device: str
    """`auto` is the first GPU that it sees, or the CPU."""
    threads: int
    """0 leaves it to torch."""
    deterministic: bool


def trainer(
    rank: int, *, origin: Origin, settings: TrainSettings, around: Surroundings, channel: Call | None = None
) -> NativeTrainer:
    """One that sends its weights through `channel`, or, like a critic, nowhere."""
    settings = replace(settings, device=settle(around))
    decoder = build(origin, settings.device)
    return NativeTrainer(decoder, settings, Shared() if channel is None else _made(channel, rank))


def scorer(rank: int, *, origin: Origin, settings: ScoreSettings, around: Surroundings) -> NativeScorer:
    """One whose weights stay as they are."""
    return NativeScorer(build(origin).requires_grad_(False), replace(settings, device=settle(around)))


def generator(
    rank: int, *, origin: Origin, settings: InferSettings, around: Surroundings, channel: Call
) -> NativeGenerator:
    """One that is given its weights through `channel`."""
    return NativeGenerator(build(origin), replace(settings, device=settle(around)), _made(channel, rank))


def settle(around: Surroundings) -> torch.device:
    """Set up what torch keeps for the whole process, and find the device."""
    multiply_by_blas()
    if around.threads:
        torch.set_num_threads(around.threads)
    if around.deterministic:
        torch.use_deterministic_algorithms(True)
        # Memory that is never read need not be the same.
        cast(Any, torch.utils.deterministic).fill_uninitialized_memory = False
    wanted = around.device
    if wanted == "auto":
        wanted = "cuda" if torch.cuda.is_available() else "cpu"
    device = torch.device(wanted)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f"{around.place}: no GPU is to be seen (got {wanted!r}); choose 'cpu' or 'auto'")
    if device.type == "cuda" and around.deterministic:
        raise ConfigError(f"deterministic: backend native keeps this promise on the CPU only; set {around.place}=cpu")
    return device


def multiply_by_blas() -> None:
    """On 64-bit ARM, keep oneDNN from taking the products whose right side is turned: BLAS is faster at those too.

    Output layers and gradients are such. Where it knows 16-bit products, which are its to make, it stays.
    """
    if torch.backends.mkldnn.is_acl_available() and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        torch.backends.mkldnn.enabled = False


def _made(channel: Call, rank: int) -> Channel:
    return CHANNELS[channel.name](rank, **channel.arguments)
