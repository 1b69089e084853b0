"""Runs all checks on all built-in functions: with default arguments, and with some that reach other branches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from roll import registry
from roll.algorithms.recipe import Objective
from roll.conformance import laws
from roll.conformance.divergences import check_divergence
from roll.conformance.preferences import check_preference_loss
from roll.conformance.reward_models import check_reward_loss
from roll.types import Spec

LOSSES = (
    *map(Spec, registry.LOSSES.targets),
    Spec("clipped", {"clip_low": 0.1, "clip_high": 0.3}),
    Spec("clipped", {"dual_clip": 1.5}),
    Spec("sequence_clipped", {"clip_low": 0.3, "clip_high": 0.5}),
    Spec("geometric_clipped", {"clip_low": 0.05, "clip_high": 0.2}),
    Spec("cispo", {"clip_low": 0.2, "clip_high": 0.5}),
    Spec("truncated_importance", {"cap": 0.9}),
    Spec("topr", {"positive": 2.0, "negative": 0.5, "low": 0.8, "high": 1.2}),
    Spec("raft", {"clip_low": 0.05, "clip_high": 0.1}),
    Spec("kimi", {"tau": 2.0}),
    Spec("sapo", {"tau_positive": 3.0, "tau_negative": 0.5}),
    Spec("decoupled", {"clip_low": 0.1, "clip_high": 0.3, "cap": 1.1}),
    Spec("squared_value", {"clip": 0.3}),
)
CORRECTIONS = tuple(
    Spec(name, {"level": level, **bounds})
    for level in ("token", "turn", "sequence", "geometric")
    for name, bounds in (("truncate", {"cap": 1.2}), ("mask", {"low": 0.8, "high": 1.5}), ("reject", {"low": 0.8}))
)
ESTIMATORS = tuple(map(Spec, registry.ESTIMATORS.targets))
OBJECTIVES = (
    Objective(loss=Spec("clipped")),
    Objective(loss=Spec("clipped"), kl=Spec("k1"), kl_coefficient=0.1),
    Objective(loss=Spec("sequence_clipped"), kl=Spec("k2"), kl_coefficient=0.2),
    Objective(loss=Spec("policy_gradient"), kl=Spec("k3"), kl_coefficient=0.3, entropy=0.05),
    Objective(loss=Spec("clipped"), correction=Spec("mask", {"level": "sequence", "low": 0.7}), entropy=0.01),
    Objective(loss=Spec("cispo"), correction=Spec("truncate", {"cap": 1.2}), kl=Spec("k3"), kl_coefficient=0.5),
    Objective(loss=Spec("squared_value", {"clip": 0.2})),
)
AGGREGATIONS = (
    Spec("token_mean"),
    Spec("sequence_mean_token_mean"),
    Spec("sequence_mean_token_sum"),
    Spec("constant", {"tokens": 7}),
)
ADVANTAGES = (
    *map(Spec, registry.ADVANTAGES.targets),
    Spec("group_normalised", {"unbiased": True}),
    Spec("group_normalised", {"scale": False}),
    Spec("group_normalised_process", {"outcome_weight": 0.5, "unbiased": True}),
    Spec("group_normalised_process", {"scale": False}),
    Spec("group_centred_batch_scaled", {"unbiased": True}),
    Spec("batch_normalised", {"baseline": "group", "unbiased": True}),
    Spec("gae", {"gamma": 0.9}),
    Spec("gae", {"gamma": 0.99, "lam": 0.9}),
    Spec("gae", {"gamma": 0.9, "lam": 0.5, "bootstrap": True}),
    Spec("discounted", {"gamma": 0.8, "baseline": "group"}),
    Spec("discounted", {"baseline": "batch"}),
    Spec("discounted", {"gamma": 0.9, "per": "token"}),
    Spec("discounted", {"per": "token", "baseline": "group"}),
    Spec("gigpo", {"step_weight": 0.5, "gamma": 0.7, "scale": False}),
    Spec("distilled", {"weight": 0.3}),
)
_EXTENTS = ("group", "batch", "running", "none")
SHAPINGS = (
    Spec("clipped", {"low": -0.5, "high": 1.0}),
    Spec("scaled"),
    Spec("scaled", {"factor": 2.0, "shift": -1.0}),
    *(Spec("normalised", {"mean": mean, "std": std}) for mean in _EXTENTS for std in _EXTENTS),
    Spec("normalised", {"unbiased": True}),
    Spec("overlong", {"max_tokens": 12, "buffer": 6}),
    Spec("overlong", {"max_tokens": 8, "buffer": 4, "factor": 0.5}),
    Spec("format"),
    Spec("format", {"penalty": 0.25}),
)
PREFERENCE_LOSSES = (
    *map(Spec, registry.PREFERENCE_LOSSES.targets),
    *(Spec(name, {"beta": 0.7, "per_token": True}) for name in ("dpo", "cdpo", "ipo", "apo_zero", "apo_down")),
    Spec("cdpo", {"noise": 0.3, "beta": 2.0}),
    Spec("orpo", {"beta": 1.5}),
    Spec("simpo", {"beta": 5.0, "margin": 0.2}),
    Spec("kto", {"beta": 0.6, "desirable_weight": 1.3, "undesirable_weight": 0.4}),
)
REWARD_LOSSES = (
    *map(Spec, registry.REWARD_LOSSES.targets),
    Spec("bradley_terry", {"margin_scale": 0.0}),
    Spec("bradley_terry", {"margin_scale": 2.0, "centring": 0.1}),
    Spec("classification", {"positive_weight": 3.0}),
    Spec("process", {"positive_weight": 0.5}),
)
DIVERGENCES = (
    *map(Spec, registry.DIVERGENCES.targets),
    Spec("jensen_shannon", {"weight": 0.9}),
    Spec("skewed_forward_kl", {"skew": 0.4}),
    Spec("skewed_reverse_kl", {"skew": 0.7}),
)
_KINDS: tuple[tuple[str, tuple[Spec, ...], Callable[..., list[str]]], ...] = (
    ("loss", LOSSES, laws.check_loss),
    ("correction", CORRECTIONS, laws.check_correction),
    ("estimator", ESTIMATORS, laws.check_estimator),
    ("aggregation", AGGREGATIONS, laws.check_aggregation),
    ("advantage", ADVANTAGES, laws.check_advantage),
    ("shaping", SHAPINGS, laws.check_shaping),
)


def check_all(**options: Any) -> Iterator[tuple[str, list[str]]]:
    """The label of each check, and its faults."""
    for kind, calls, check in _KINDS:
        for call in calls:
            extra = {} if kind == "estimator" else options  # estimators take no batches
            yield f"{kind} {describe(call)}", check(call.name, **call.kwargs, **extra)
    for call in PREFERENCE_LOSSES:
        yield f"preference loss {describe(call)}", check_preference_loss(call.name, **call.kwargs)
    for call in REWARD_LOSSES:
        yield f"reward loss {describe(call)}", check_reward_loss(call.name, **call.kwargs)
    for call in DIVERGENCES:
        for top_k in (None, 3):
            faults = check_divergence(call.name, top_k=top_k, temperature=2.0, sft_weight=0.2, **call.kwargs)
            yield f"divergence {describe(call)} of {'all' if top_k is None else top_k} tokens", faults
    for objective in OBJECTIVES:
        yield describe_objective(objective), laws.check_objective(objective, **options)


def describe(call: Spec) -> str:
    """The call as text."""
    kwargs = ", ".join(f"{name}={value}" for name, value in call.kwargs.items())
    return f"{call.name}({kwargs})"


def describe_objective(objective: Objective) -> str:
    """The parts of an objective as text."""
    parts = [describe(objective.loss)]
    parts += [] if objective.correction is None else [describe(objective.correction)]
    parts += [] if objective.kl is None else [f"{objective.kl_coefficient} {describe(objective.kl)}"]
    parts += [f"{objective.entropy} entropy"] if objective.entropy else []
    return f"objective {' and '.join(parts)}"
