"""The section `actor_train.lora`: low-rank adapters on the projections of a frozen model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, field_validator

from roll.config.section import Section
from roll.errors import did_you_mean

TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
"""All projections of a layer of the native decoder, by their Hugging Face names."""
OTHER_TARGETS = (
    *("qkv_proj", "gate_up_proj", "q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "out_proj", "fc1", "fc2"),
    *("dense", "query_key_value", "dense_h_to_4h", "dense_4h_to_h"),
)
"""Projections of other families."""

Widths = Mapping[str, tuple[int, int]]
"""Input and output width of each projection."""


class Lora(Section):
    """LoRA: a projection W x becomes W x + alpha / rank * B A x, and only A and B are trained."""

    rank: int = Field(default=16, gt=0)
    """Rows of A and columns of B: a projection of width n to m has rank * (n + m) trained parameters."""
    alpha: float = Field(default=32.0, gt=0)
    """The adapter's output is multiplied by alpha / rank."""
    target_modules: tuple[str, ...] = Field(default=TARGETS, min_length=1)
    """Projections of every layer that have an adapter: `q_proj`, `k_proj`, `v_proj`, `o_proj`, `gate_proj`, `up_proj`,
    `down_proj`; with engine hf also names such as `qkv_proj`. By default those of the seven that the model has."""
    path: str | None = Field(default=None, min_length=1)
    """A directory with an adapter in peft's format to start from; None: a new one whose output is zero."""
    export: Literal["merged", "adapter"] = "merged"
    """Format of the exported model: a whole model with the adapter merged in, or only the adapter, for peft."""

    @field_validator("target_modules")
    @classmethod
    def _check_names(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        for name in names:
            if name not in TARGETS + OTHER_TARGETS:
                raise ValueError(f"a layer has no projection {name!r}{did_you_mean(name, TARGETS + OTHER_TARGETS)}")
        if len(set(names)) != len(names):
            raise ValueError(f"a projection is named twice (got {', '.join(names)}); name each once")
        return tuple(name for name in TARGETS + OTHER_TARGETS if name in names)

    @property
    def scale(self) -> float:
        """Factor on B A x."""
        return self.alpha / self.rank

    def parameters(self, widths: Widths) -> int:
        """Trained parameters per layer."""
        return sum(self.rank * sum(widths[name]) for name in self.target_modules if name in widths)


def widths(*, hidden: int, q: int, kv: int, mlp: int) -> Widths:
    """Widths of all projections of a layer; `q` and `kv` are the widths of all query heads and of all KV heads."""
    return {
        "q_proj": (hidden, q),
        "k_proj": (hidden, kv),
        "v_proj": (hidden, kv),
        "o_proj": (q, hidden),
        "gate_proj": (hidden, mlp),
        "up_proj": (hidden, mlp),
        "down_proj": (mlp, hidden),
    }


def rank_fault(lora: Lora, widths: Widths) -> str:
    """An error text if the rank is larger than a projection is wide; else empty. Others are not looked at."""
    names = [name for name in lora.target_modules if name in widths]
    if not names:
        return ""
    name = min(names, key=lambda target: min(widths[target]))
    rows, columns = widths[name]
    least = min(rows, columns)
    if lora.rank <= least:
        return ""
    return f"{name} is {rows} x {columns}, so its rank is at most {least} (got {lora.rank}); lower it"


def native_fault(lora: Lora) -> str:
    """An error text if a projection is none of the native decoder's; else empty."""
    unknown = [name for name in lora.target_modules if name not in TARGETS]
    return f"the native decoder has no {unknown[0]}; choose from {', '.join(TARGETS)}" if unknown else ""


def check_lora(lora: Lora, *, shape: Any, parallel: Any, reference: Any) -> None:
    """Raise ValueError for settings that adapters exclude; each argument is the section of that name, or None."""
    if parallel is not None and parallel.tp > 1:
        raise ValueError(
            f"actor_train.parallel.tp ({parallel.tp}): adapters are not divided among ranks that share layers; "
            "set it to 1, or leave out actor_train.lora"
        )
    changed: list[str] = [name for name, value in reference if value != getattr(type(reference)(), name)]
    if reference.path is None and changed:
        raise ValueError(
            f"reference.{changed[0]}: with actor_train.lora the reference is the actor without its adapters, in the "
            "actor's own processes; leave it out, or give reference.path"
        )
    if shape is None:
        return
    if fault := native_fault(lora):
        raise ValueError(f"actor_train.lora.target_modules: {fault}")
    head_size = shape.hidden // shape.heads
    sizes = widths(hidden=shape.hidden, q=shape.hidden, kv=shape.kv_heads * head_size, mlp=shape.mlp)
    if fault := rank_fault(lora, sizes):
        raise ValueError(f"actor_train.lora.rank: {fault}")
