"""The kit: `check_loss("my_lab.losses:mine", clip=0.1)` returns what is wrong with it, one line a fault.

Take a name of ours, a dotted name or a function, and the arguments it is called with. Laws that need no formula are
always checked. What has a name of ours, or is said to be `like` one and takes its arguments, is also held against that
formula in float64.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from roll.algorithms.objective import evaluate
from roll.algorithms.recipe import Objective
from roll.conformance import batch_laws, general_laws, loss_laws, oracle, oracle_advantages, oracle_rewards
from roll.conformance.batches import case
from roll.conformance.subject import SEEDS, Subject, examine, likeness, resolved
from roll.registry import ADVANTAGES, AGGREGATIONS, CORRECTIONS, ESTIMATORS, LOSSES, SHAPINGS


def check_loss(
    function: str | Callable[..., Any], *, like: str | None = None, seeds: Sequence[int] = SEEDS, **arguments: Any
) -> list[str]:
    """What is wrong with a loss, its gradient included."""
    label, call = resolved(LOSSES, function)
    like = likeness(function, like, oracle.LOSSES)
    if text := loss_laws.one_number_a_token(call, arguments, case(seeds[0])):
        return [f"{label}: {text}"]
    measure = loss_laws.loss_measure(call, arguments)
    subject = Subject(label=label, measure=measure, like=like, arguments=arguments)
    ours = (loss_laws.agrees, loss_laws.homogeneous, loss_laws.untouched) if like else ()
    return examine(subject, (*general_laws.ON_TOKENS, *ours), seeds)


def check_correction(
    function: str | Callable[..., Any], *, like: str | None = None, seeds: Sequence[int] = SEEDS, **arguments: Any
) -> list[str]:
    """What is wrong with a correction of the sampler's ratio."""
    label, call = resolved(CORRECTIONS, function)
    like = likeness(function, like, oracle.CORRECTIONS)
    if text := loss_laws.detached(call, arguments, case(seeds[0])):
        return [f"{label}: {text}"]
    measure = loss_laws.correction_measure(call, arguments)
    subject = Subject(label=label, measure=measure, like=like, arguments=arguments)
    return examine(subject, (*general_laws.ON_TOKENS, *([loss_laws.factor_agrees] if like else [])), seeds)


def check_estimator(function: str | Callable[..., Any], *, like: str | None = None, **arguments: Any) -> list[str]:
    """What is wrong with an estimator of KL."""
    label, call = resolved(ESTIMATORS, function)
    like = likeness(function, like, oracle.ESTIMATORS)
    return [f"{label}: {text}" for text in loss_laws.estimates(call, like, arguments)]


def check_objective(
    objective: Objective, *, function: Callable[..., Any] = evaluate, seeds: Sequence[int] = SEEDS
) -> list[str]:
    """What is wrong with how loss, correction, KL and entropy are put together."""
    label = f"objective of {objective.loss.name}"
    subject = Subject(label=label, measure=loss_laws.objective_measure(function, objective))
    laws = (*general_laws.ON_TOKENS, loss_laws.untouched, loss_laws.agrees_with(objective))
    return examine(subject, laws, seeds)


def check_advantage(
    function: str | Callable[..., Any], *, like: str | None = None, seeds: Sequence[int] = SEEDS, **arguments: Any
) -> list[str]:
    """What is wrong with an advantage."""
    label, call = resolved(ADVANTAGES, function)
    like = likeness(function, like, oracle_advantages.ADVANTAGES)
    if text := batch_laws.one_number_a_token(call, arguments, case(seeds[0])):
        return [f"{label}: {text}"]
    measure = batch_laws.measure("advantage", call, arguments)
    subject = Subject(label=label, measure=measure, like=like, arguments=arguments)
    ours = batch_laws.OF_ADVANTAGES if like else ()
    return examine(subject, (*general_laws.ON_BATCHES, general_laws.num_rows, *ours), seeds)


def check_aggregation(
    function: str | Callable[..., Any], *, like: str | None = None, seeds: Sequence[int] = SEEDS, **arguments: Any
) -> list[str]:
    """What is wrong with the weights of an aggregation."""
    label, call = resolved(AGGREGATIONS, function)
    like = likeness(function, like, oracle_rewards.AGGREGATIONS)
    if text := batch_laws.one_number_a_token(call, arguments, case(seeds[0])):
        return [f"{label}: {text}"]
    measure = batch_laws.measure("weight", call, arguments)
    subject = Subject(label=label, measure=measure, like=like, arguments=arguments)
    ours = batch_laws.OF_KNOWN_AGGREGATIONS if like else ()
    return examine(subject, (*general_laws.ON_BATCHES, *batch_laws.OF_AGGREGATIONS, *ours), seeds)


def check_shaping(
    function: str | Callable[..., Any], *, like: str | None = None, seeds: Sequence[int] = SEEDS, **arguments: Any
) -> list[str]:
    """What is wrong with a shaping of rewards."""
    label, call = resolved(SHAPINGS, function)
    like = likeness(function, like, oracle_rewards.SHAPINGS)
    if text := batch_laws.one_number_a_trajectory(call, arguments, case(seeds[0])):
        return [f"{label}: {text}"]
    measure = batch_laws.shaping_measure(call, arguments)
    subject = Subject(label=label, measure=measure, like=like, arguments=arguments)
    ours = (batch_laws.shaping_agrees(call),) if like else ()
    return examine(subject, (*general_laws.ON_BATCHES, general_laws.num_rows, *ours), seeds)
