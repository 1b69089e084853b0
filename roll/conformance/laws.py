"""Checks for users: `check_loss("my_lab.losses:mine", clip=0.1)` returns its faults, one line each.

They take a built-in name, a dotted name or a function, and the arguments to call it with. Laws that need no formula are
always checked. A function with a built-in name, or declared `like` one, is also compared with that formula in float64.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from roll.algorithms.objective import evaluate
from roll.algorithms.recipe import Objective
from roll.conformance import batch_laws, general_laws, loss_laws, oracle
from roll.conformance.batches import case
from roll.conformance.subject import SEEDS, Law, Measure, Subject, examine, oracle_name, resolve
from roll.registry import ADVANTAGES, AGGREGATIONS, CORRECTIONS, ESTIMATORS, LOSSES, SHAPINGS, Table


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _FunctionKind:
    """Laws of one kind of function, and how it is measured."""

    table: Table[Any]
    formulas: Mapping[str, Callable[..., Any]]
    form: Law
    """Describes a result of a wrong form, on which nothing else can be checked."""
    measure: Measure
    laws: tuple[Law, ...]
    known_laws: tuple[Law, ...]
    """Further laws of functions with a known formula."""

    def check(
        self,
        function: str | Callable[..., Any],
        *,
        like: str | None = None,
        seeds: Sequence[int] = SEEDS,
        **arguments: Any,
    ) -> list[str]:
        """Faults of a function of this kind, called with `arguments`."""
        label, call = resolve(self.table, function)
        like = oracle_name(function, like, self.formulas)
        subject = Subject(label=label, function=call, arguments=arguments, measure_rows=self.measure, like=like)
        if text := self.form(subject, case(seeds[0])):
            return [f"{label}: {text}"]
        return examine(subject, (*self.laws, *(self.known_laws if like else ())), seeds)


check_loss = _FunctionKind(
    table=LOSSES,
    formulas=oracle.LOSSES,
    form=loss_laws.one_value_per_token,
    measure=loss_laws.loss_measure,
    laws=(*general_laws.ON_TOKENS, loss_laws.finite_on_policy),
    known_laws=(loss_laws.agrees, loss_laws.homogeneous, loss_laws.zero_untrained_gradient),
).check
check_correction = _FunctionKind(
    table=CORRECTIONS,
    formulas=oracle.CORRECTIONS,
    form=loss_laws.constant_factor,
    measure=loss_laws.correction_measure,
    laws=general_laws.ON_TOKENS,
    known_laws=(loss_laws.factor_agrees,),
).check
check_advantage = _FunctionKind(
    table=ADVANTAGES,
    formulas=oracle.ADVANTAGES,
    form=batch_laws.one_value_per_token,
    measure=partial(batch_laws.measure, "advantage"),
    laws=(*general_laws.ON_BATCHES, general_laws.num_rows),
    known_laws=batch_laws.OF_ADVANTAGES,
).check
check_aggregation = _FunctionKind(
    table=AGGREGATIONS,
    formulas=oracle.AGGREGATIONS,
    form=batch_laws.one_value_per_token,
    measure=partial(batch_laws.measure, "weight"),
    laws=(*general_laws.ON_BATCHES, *batch_laws.OF_AGGREGATIONS),
    known_laws=batch_laws.OF_KNOWN_AGGREGATIONS,
).check
check_shaping = _FunctionKind(
    table=SHAPINGS,
    formulas=oracle.SHAPINGS,
    form=batch_laws.one_value_per_trajectory,
    measure=batch_laws.shaping_measure,
    laws=(*general_laws.ON_BATCHES, general_laws.num_rows),
    known_laws=(batch_laws.shaping_agrees,),
).check


def check_estimator(function: str | Callable[..., Any], *, like: str | None = None, **arguments: Any) -> list[str]:
    """Faults of a KL estimator."""
    label, call = resolve(ESTIMATORS, function)
    like = oracle_name(function, like, oracle.ESTIMATORS)
    return [f"{label}: {text}" for text in loss_laws.estimates(call, like, arguments)]


def check_objective(
    objective: Objective, *, function: Callable[..., Any] = evaluate, seeds: Sequence[int] = SEEDS
) -> list[str]:
    """Faults in how loss, correction, KL and entropy are combined."""
    subject = Subject(
        label=f"objective of {objective.loss.name}",
        function=function,
        arguments={"objective": objective},
        measure_rows=loss_laws.objective_measure,
    )
    laws = (*general_laws.ON_TOKENS, loss_laws.zero_untrained_gradient, loss_laws.is_sum_of_parts)
    return examine(subject, laws, seeds)
