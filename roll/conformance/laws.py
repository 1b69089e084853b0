"""Checks for users: `check_loss("my_lab.losses:mine", clip=0.1)` returns its faults, one line each.

They take a built-in name, a dotted name or a function, and the arguments to call it with. Laws that need no formula are
always checked. A function with a built-in name, or declared `like` one, is also compared with that formula in float64.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from roll.algorithms.objective import evaluate
from roll.algorithms.recipe import Objective
from roll.conformance import batch_laws, general_laws, loss_laws, oracle, oracle_advantages, oracle_rewards
from roll.conformance.batches import case
from roll.conformance.subject import SEEDS, Subject, examine, oracle_name, resolve
from roll.registry import ADVANTAGES, AGGREGATIONS, CORRECTIONS, ESTIMATORS, LOSSES, SHAPINGS


def check_loss(
    function: str | Callable[..., Any], *, like: str | None = None, seeds: Sequence[int] = SEEDS, **arguments: Any
) -> list[str]:
    """Faults of a loss and its gradient."""
    label, call = resolve(LOSSES, function)
    like = oracle_name(function, like, oracle.LOSSES)
    if text := loss_laws.one_value_per_token(call, arguments, case(seeds[0])):
        return [f"{label}: {text}"]
    measure = loss_laws.loss_measure(call, arguments)
    subject = Subject(label=label, measure=measure, like=like, arguments=arguments)
    known_laws = (loss_laws.agrees, loss_laws.homogeneous, loss_laws.zero_untrained_gradient) if like else ()
    return examine(subject, (*general_laws.ON_TOKENS, *known_laws), seeds)


def check_correction(
    function: str | Callable[..., Any], *, like: str | None = None, seeds: Sequence[int] = SEEDS, **arguments: Any
) -> list[str]:
    """Faults of a correction of the sampler's ratio."""
    label, call = resolve(CORRECTIONS, function)
    like = oracle_name(function, like, oracle.CORRECTIONS)
    if text := loss_laws.constant_factor(call, arguments, case(seeds[0])):
        return [f"{label}: {text}"]
    measure = loss_laws.correction_measure(call, arguments)
    subject = Subject(label=label, measure=measure, like=like, arguments=arguments)
    return examine(subject, (*general_laws.ON_TOKENS, *([loss_laws.factor_agrees] if like else [])), seeds)


def check_estimator(function: str | Callable[..., Any], *, like: str | None = None, **arguments: Any) -> list[str]:
    """Faults of a KL estimator."""
    label, call = resolve(ESTIMATORS, function)
    like = oracle_name(function, like, oracle.ESTIMATORS)
    return [f"{label}: {text}" for text in loss_laws.estimates(call, like, arguments)]


def check_objective(
    objective: Objective, *, function: Callable[..., Any] = evaluate, seeds: Sequence[int] = SEEDS
) -> list[str]:
    """Faults in how loss, correction, KL and entropy are combined."""
    label = f"objective of {objective.loss.name}"
    subject = Subject(label=label, measure=loss_laws.objective_measure(function, objective))
    laws = (*general_laws.ON_TOKENS, loss_laws.zero_untrained_gradient, loss_laws.agrees_with(objective))
    return examine(subject, laws, seeds)


def check_advantage(
    function: str | Callable[..., Any], *, like: str | None = None, seeds: Sequence[int] = SEEDS, **arguments: Any
) -> list[str]:
    """Faults of an advantage."""
    label, call = resolve(ADVANTAGES, function)
    like = oracle_name(function, like, oracle_advantages.ADVANTAGES)
    if text := batch_laws.one_value_per_token(call, arguments, case(seeds[0])):
        return [f"{label}: {text}"]
    measure = batch_laws.measure("advantage", call, arguments)
    subject = Subject(label=label, measure=measure, like=like, arguments=arguments)
    known_laws = batch_laws.OF_ADVANTAGES if like else ()
    return examine(subject, (*general_laws.ON_BATCHES, general_laws.num_rows, *known_laws), seeds)


def check_aggregation(
    function: str | Callable[..., Any], *, like: str | None = None, seeds: Sequence[int] = SEEDS, **arguments: Any
) -> list[str]:
    """Faults of the weights of an aggregation."""
    label, call = resolve(AGGREGATIONS, function)
    like = oracle_name(function, like, oracle_rewards.AGGREGATIONS)
    if text := batch_laws.one_value_per_token(call, arguments, case(seeds[0])):
        return [f"{label}: {text}"]
    measure = batch_laws.measure("weight", call, arguments)
    subject = Subject(label=label, measure=measure, like=like, arguments=arguments)
    known_laws = batch_laws.OF_KNOWN_AGGREGATIONS if like else ()
    return examine(subject, (*general_laws.ON_BATCHES, *batch_laws.OF_AGGREGATIONS, *known_laws), seeds)


def check_shaping(
    function: str | Callable[..., Any], *, like: str | None = None, seeds: Sequence[int] = SEEDS, **arguments: Any
) -> list[str]:
    """Faults of a reward shaping."""
    label, call = resolve(SHAPINGS, function)
    like = oracle_name(function, like, oracle_rewards.SHAPINGS)
    if text := batch_laws.one_value_per_trajectory(call, arguments, case(seeds[0])):
        return [f"{label}: {text}"]
    measure = batch_laws.shaping_measure(call, arguments)
    subject = Subject(label=label, measure=measure, like=like, arguments=arguments)
    known_laws = (batch_laws.shaping_agrees(call),) if like else ()
    return examine(subject, (*general_laws.ON_BATCHES, general_laws.num_rows, *known_laws), seeds)
