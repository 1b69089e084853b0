"""The knobs of adapters: small matrices that are trained beside the large ones of a model, which stay as they are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, field_validator

from roll.config.section import Section
from roll.errors import did_you_mean

TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
"""Every projection of a layer, by its Hugging Face name."""

Widths = Mapping[str, tuple[int, int]]
"""By target, how many numbers it reads of a token and how many it makes of them."""


class Lora(Section):
    """Adapters: a projection W x of the model becomes W x + alpha / rank * B A x, and A and B alone are trained."""

    rank: int = Field(default=16, gt=0)
    """Rows of A and columns of B: a projection from n to m numbers gets rank * (n + m) trained ones."""
    alpha: float = Field(default=32.0, gt=0)
    """What an adapter adds is multiplied with alpha / rank."""
    targets: tuple[str, ...] = Field(default=TARGETS, min_length=1)
    """Projections that have one, in every layer: `q_proj`, `k_proj`, `v_proj`, `o_proj`, `gate_proj`, `up_proj`,
    `down_proj`."""
    path: str | None = Field(default=None, min_length=1)
    """A directory with an adapter as peft writes it, to start from; None: one that adds nothing yet."""
    export: Literal["merged", "apart"] = "merged"
    """What the exported model is: a whole model with the adapter added in, or the adapter alone, as peft reads it."""

    @field_validator("targets")
    @classmethod
    def _known(cls, targets: tuple[str, ...]) -> tuple[str, ...]:
        for name in targets:
            if name not in TARGETS:
                raise ValueError(f"a layer has no projection {name!r}{did_you_mean(name, TARGETS)}")
        if len(set(targets)) != len(targets):
            raise ValueError(f"a projection is named twice (got {', '.join(targets)}); name each once")
        return tuple(name for name in TARGETS if name in targets)

    @property
    def scale(self) -> float:
        """What the product of both matrices is multiplied with."""
        return self.alpha / self.rank

    def parameters(self, widths: Widths) -> int:
        """Trained numbers of one layer."""
        return sum(self.rank * sum(widths[name]) for name in self.targets)


def widths(*, hidden: int, q: int, kv: int, mlp: int) -> Widths:
    """Of every projection of a layer whose queries, and keys, have so many numbers in all."""
    return {
        "q_proj": (hidden, q),
        "k_proj": (hidden, kv),
        "v_proj": (hidden, kv),
        "o_proj": (q, hidden),
        "gate_proj": (hidden, mlp),
        "up_proj": (hidden, mlp),
        "down_proj": (mlp, hidden),
    }


def rank_fault(lora: Lora, found: Widths) -> str:
    """That an adapter would be wider than what it stands beside; nothing where it is not."""
    name = min(lora.targets, key=lambda target: min(found[target]))
    least = min(found[name])
    if lora.rank <= least:
        return ""
    return f"{name} is {found[name][0]} x {found[name][1]}, so its rank is at most {least} (got {lora.rank}); lower it"


def check_lora(lora: Lora, *, shape: Any, parallel: Any, reference: Any) -> None:
    """Raise what adapters cannot be had with; each argument is the section of that name, or None."""
    if parallel is not None and parallel.tp > 1:
        raise ValueError(
            f"actor_train.parallel.tp ({parallel.tp}): adapters are not divided among ranks that share layers; "
            "set it to 1, or leave out actor_train.lora"
        )
    told: list[str] = [name for name, value in reference if value != getattr(type(reference)(), name)]
    if reference.path is None and told:
        raise ValueError(
            f"reference.{told[0]}: with actor_train.lora the reference is the actor without its adapters, in the "
            "actor's own processes; leave it out, or give reference.path"
        )
    if shape is None:
        return
    size = shape.hidden // shape.heads
    sizes = widths(hidden=shape.hidden, q=shape.hidden, kv=shape.kv_heads * size, mlp=shape.mlp)
    if fault := rank_fault(lora, sizes):
        raise ValueError(f"actor_train.lora.rank: {fault}")
