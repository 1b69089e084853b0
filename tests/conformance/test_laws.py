"""All built-in functions obey the laws on random batches; a user function is checked in one line."""

from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from benchmarks import built_ins
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
from roll.registry import ADVANTAGES, AGGREGATIONS, CORRECTIONS, ESTIMATORS, LOSSES, SHAPINGS
from roll.types import Batch, Spec, Tokens

pytestmark = pytest.mark.slow

torch.set_num_threads(1)
FEW = settings(derandomize=True, max_examples=2, deadline=None, suppress_health_check=list(HealthCheck), database=None)
SEEDS = st.integers(min_value=0, max_value=2**32)


def each(calls: tuple[Spec, ...]) -> Any:
    return pytest.mark.parametrize("call", calls, ids=built_ins.describe)


@each(built_ins.LOSSES)
@FEW
@given(seed=SEEDS)
def test_losses_obey_the_laws_and_equal_their_formulas(call: Spec, seed: int) -> None:
    assert check_loss(call.name, seeds=[seed], **call.kwargs) == []


@each(built_ins.CORRECTIONS)
@FEW
@given(seed=SEEDS)
def test_corrections_obey_the_laws_and_equal_their_formulas(call: Spec, seed: int) -> None:
    assert check_correction(call.name, seeds=[seed], **call.kwargs) == []


@each(built_ins.ADVANTAGES)
@FEW
@given(seed=SEEDS)
def test_advantages_obey_the_laws_and_equal_their_formulas(call: Spec, seed: int) -> None:
    assert check_advantage(call.name, seeds=[seed], **call.kwargs) == []


@each(built_ins.AGGREGATIONS)
@FEW
@given(seed=SEEDS)
def test_aggregations_obey_the_laws_and_equal_their_formulas(call: Spec, seed: int) -> None:
    assert check_aggregation(call.name, seeds=[seed], **call.kwargs) == []


@each(built_ins.SHAPINGS)
@FEW
@given(seed=SEEDS)
def test_shapings_obey_the_laws_and_equal_their_formulas(call: Spec, seed: int) -> None:
    assert check_shaping(call.name, seeds=[seed], **call.kwargs) == []


@pytest.mark.parametrize("objective", built_ins.OBJECTIVES, ids=built_ins.describe_objective)
@FEW
@given(seed=SEEDS)
def test_objectives_are_the_sum_of_their_parts(objective: Objective, seed: int) -> None:
    assert check_objective(objective, seeds=[seed]) == []


@each(built_ins.ESTIMATORS)
def test_estimators_equal_their_formulas(call: Spec) -> None:
    assert check_estimator(call.name, **call.kwargs) == []


@pytest.mark.parametrize(
    ("table", "calls"),
    [
        (LOSSES, built_ins.LOSSES),
        (CORRECTIONS, built_ins.CORRECTIONS),
        (ESTIMATORS, built_ins.ESTIMATORS),
        (AGGREGATIONS, built_ins.AGGREGATIONS),
        (ADVANTAGES, built_ins.ADVANTAGES),
        (SHAPINGS, built_ins.SHAPINGS),
    ],
)
def test_every_registered_name_is_checked(table: Any, calls: tuple[Spec, ...]) -> None:
    assert {call.name for call in calls} == set(table.targets)


def doubled(tokens: Tokens, *, factor: float = 2.0) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """A loss as a user would write it."""
    return -factor * tokens.advantages * tokens.logprobs, {}


def best_of_group(batch: Batch) -> torch.Tensor:
    """An advantage as a user would write it: 1 for the best sibling."""
    best = torch.zeros(1000).scatter_reduce(0, batch.group, batch.rewards, "amax", include_self=False)
    won = (batch.rewards == best[batch.group]).float()
    row = torch.repeat_interleave(torch.arange(len(batch.lengths)), torch.tensor(batch.lengths))
    return torch.where(batch.trained, won[batch.trajectory][row], 0.0)


def uncertain(batch: Batch) -> torch.Tensor:
    """An advantage that reads entropies."""
    assert batch.entropies is not None
    return torch.where(batch.trained, best_of_group(batch) * batch.entropies, 0.0)


def test_a_user_function_is_checked_by_dotted_name_or_directly() -> None:
    assert check_advantage(uncertain, seeds=[0, 4]) == []
    assert check_loss(f"{__name__}:doubled", factor=3.0) == []
    assert check_loss(doubled) == []
    assert check_advantage(best_of_group, seeds=[0, 4]) == []


def test_a_user_function_can_be_compared_with_a_built_in_formula() -> None:
    (doubling,) = [fault for fault in check_loss(doubled, like="policy_gradient") if "the formula" in fault]
    assert doubling.startswith("doubled: differs from the formula of policy_gradient: loss")
    (fault,) = [fault for fault in check_advantage(best_of_group, like="leave_one_out") if "the formula" in fault]
    assert fault.startswith("best_of_group: differs from the formula of leave_one_out: advantage")


def test_the_error_for_an_unknown_formula_lists_the_known_ones() -> None:
    with pytest.raises(AssertionError, match="no formula is known for 'clip'; known: clipped, policy_gradient"):
        check_loss(doubled, like="clip")


def test_a_wrong_return_type_is_reported_with_the_right_one() -> None:
    assert check_loss(lambda tokens: tokens.logprobs) == [
        "<lambda>: must return the loss of each token and a dictionary of metrics (got Tensor)"
    ]
    (fault,) = check_advantage(lambda batch: batch.trained.double())
    assert "must return one value per token: float32, shape (84,) (got torch.float64 (84,))" in fault
