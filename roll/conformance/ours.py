"""Everything of ours under the kit: with default arguments, and with some that reach other branches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from roll.algorithms.recipe import Objective
from roll.conformance.laws import (
    check_advantage,
    check_aggregation,
    check_correction,
    check_estimator,
    check_loss,
    check_objective,
    check_shaping,
)
from roll.types import Call

LOSSES = (
    Call("clipped"),
    Call("clipped", {"clip_low": 0.1, "clip_high": 0.3}),
    Call("clipped", {"dual_clip": 1.5}),
    Call("policy_gradient"),
    Call("sequence_clipped"),
    Call("sequence_clipped", {"clip_low": 0.3, "clip_high": 0.5}),
    Call("geometric_clipped"),
    Call("geometric_clipped", {"clip_low": 0.05, "clip_high": 0.2}),
    Call("cispo"),
    Call("cispo", {"clip_low": 0.2, "clip_high": 0.5}),
    Call("truncated_importance"),
    Call("truncated_importance", {"cap": 0.9}),
    Call("topr"),
    Call("topr", {"positive": 2.0, "negative": 0.5, "low": 0.8, "high": 1.2}),
    Call("raft"),
    Call("raft", {"clip_low": 0.05, "clip_high": 0.1}),
    Call("kimi"),
    Call("kimi", {"tau": 2.0}),
    Call("sapo"),
    Call("sapo", {"tau_positive": 3.0, "tau_negative": 0.5}),
    Call("decoupled"),
    Call("decoupled", {"clip_low": 0.1, "clip_high": 0.3, "cap": 1.1}),
    Call("squared_value"),
    Call("squared_value", {"clip": 0.3}),
)
CORRECTIONS = tuple(
    Call(name, {"level": level, **bounds})
    for level in ("token", "turn", "sequence", "geometric")
    for name, bounds in (("truncate", {"cap": 1.2}), ("mask", {"low": 0.8, "high": 1.5}), ("reject", {"low": 0.8}))
)
ESTIMATORS = (Call("k1"), Call("k2"), Call("k3"))
OBJECTIVES = (
    Objective(loss=Call("clipped")),
    Objective(loss=Call("clipped"), kl=Call("k1"), kl_coefficient=0.1),
    Objective(loss=Call("sequence_clipped"), kl=Call("k2"), kl_coefficient=0.2),
    Objective(loss=Call("policy_gradient"), kl=Call("k3"), kl_coefficient=0.3, entropy=0.05),
    Objective(loss=Call("clipped"), correction=Call("mask", {"level": "sequence", "low": 0.7}), entropy=0.01),
    Objective(loss=Call("cispo"), correction=Call("truncate", {"cap": 1.2}), kl=Call("k3"), kl_coefficient=0.5),
    Objective(loss=Call("squared_value", {"clip": 0.2})),
)
AGGREGATIONS = (
    Call("token_mean"),
    Call("sequence_mean_token_mean"),
    Call("sequence_mean_token_sum"),
    Call("constant", {"tokens": 7}),
)
ADVANTAGES = (
    Call("group_normalised"),
    Call("group_normalised", {"unbiased": True}),
    Call("group_normalised", {"scale": False}),
    Call("leave_one_out"),
    Call("batch_centred"),
    Call("group_centred_batch_scaled"),
    Call("group_centred_batch_scaled", {"unbiased": True}),
    Call("batch_normalised"),
    Call("batch_normalised", {"baseline": "group", "unbiased": True}),
    Call("gae"),
    Call("gae", {"gamma": 0.9}),
    Call("gae", {"gamma": 0.99, "lam": 0.9}),
    Call("gae", {"gamma": 0.9, "lam": 0.5, "bootstrap": True}),
    Call("discounted"),
    Call("discounted", {"gamma": 0.8, "baseline": "group"}),
    Call("discounted", {"baseline": "batch"}),
    Call("discounted", {"gamma": 0.9, "per": "token"}),
    Call("discounted", {"per": "token", "baseline": "group"}),
    Call("gigpo"),
    Call("gigpo", {"step_weight": 0.5, "gamma": 0.7, "scale": False}),
    Call("distilled"),
    Call("distilled", {"weight": 0.3}),
)
_EXTENTS = ("group", "batch", "running", "none")
SHAPINGS = (
    Call("clipped", {"low": -0.5, "high": 1.0}),
    Call("scaled"),
    Call("scaled", {"factor": 2.0, "shift": -1.0}),
    *(Call("normalised", {"mean": mean, "std": std}) for mean in _EXTENTS for std in _EXTENTS),
    Call("normalised", {"unbiased": True}),
    Call("overlong", {"max_tokens": 12, "buffer": 6}),
    Call("overlong", {"max_tokens": 8, "buffer": 4, "factor": 0.5}),
    Call("format"),
    Call("format", {"penalty": 0.25}),
)
_KINDS: tuple[tuple[str, tuple[Call, ...], Callable[..., list[str]]], ...] = (
    ("loss", LOSSES, check_loss),
    ("correction", CORRECTIONS, check_correction),
    ("estimator", ESTIMATORS, check_estimator),
    ("aggregation", AGGREGATIONS, check_aggregation),
    ("advantage", ADVANTAGES, check_advantage),
    ("shaping", SHAPINGS, check_shaping),
)


def check_all(**options: Any) -> Iterator[tuple[str, list[str]]]:
    """What was checked, and what is wrong with it, one after the other."""
    for kind, calls, check in _KINDS:
        for call in calls:
            yield f"{kind} {described(call)}", check(call.name, **call.arguments, **(options if _cut(kind) else {}))
    for objective in OBJECTIVES:
        yield described_objective(objective), check_objective(objective, **options)


def described(call: Call) -> str:
    """As it would be called."""
    given = ", ".join(f"{name}={value}" for name, value in call.arguments.items())
    return f"{call.name}({given})"


def described_objective(objective: Objective) -> str:
    """Its parts, one after the other."""
    parts = [described(objective.loss)]
    parts += [] if objective.correction is None else [described(objective.correction)]
    parts += [] if objective.kl is None else [f"{objective.kl_coefficient} {described(objective.kl)}"]
    parts += [f"{objective.entropy} entropy"] if objective.entropy else []
    return f"objective {' and '.join(parts)}"


def _cut(kind: str) -> bool:
    """Whether the check looks at batches."""
    return kind != "estimator"
