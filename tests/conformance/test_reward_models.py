"""Every loss of reward models against its formula, and planted bugs that the comparison reports."""

from collections.abc import Callable
from typing import Any

import pytest

from benchmarks.built_ins import REWARD_LOSSES, describe
from roll import registry
from roll.config.preferences import FORM_OF
from roll.conformance.reward_models import FORMULAS, check_reward_loss
from roll.types import Spec
from tests.conformance.planted_rewards import LOSSES, STEPS


def test_every_loss_of_the_table_has_a_formula_and_a_form_of_data():
    names = set(registry.REWARD_LOSSES.targets)
    assert set(FORMULAS) == set(FORM_OF) == {each.name for each in REWARD_LOSSES} == names


@pytest.mark.parametrize("loss", REWARD_LOSSES, ids=describe)
def test_losses_and_gradients_are_those_of_the_formula(loss: Spec):
    assert check_reward_loss(loss.name, **loss.kwargs) == []


@pytest.mark.parametrize(("step", "loss"), STEPS, ids=lambda each: getattr(each, "__name__", None))
def test_a_faulty_step_is_reported(step: Any, loss: str):
    faults = check_reward_loss(loss, step=step)
    assert len(faults) == 1 and f"differs from the formula of {loss}" in faults[0]


@pytest.mark.parametrize(("function", "like", "arguments"), LOSSES, ids=lambda each: getattr(each, "__name__", None))
def test_a_faulty_loss_is_reported(function: Callable[..., Any], like: str, arguments: dict[str, Any]):
    faults = check_reward_loss(function, like=like, **arguments)
    assert len(faults) == 1 and f"differs from the formula of {like}" in faults[0]
