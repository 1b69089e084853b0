"""Every preference loss against its formula, and planted bugs that the comparison reports."""

from collections.abc import Callable
from typing import Any

import pytest

from benchmarks.built_ins import PREFERENCE_LOSSES, describe
from roll import registry
from roll.conformance.preferences import PAIRED, check_preference_loss
from roll.types import Spec
from tests.conformance.planted_preferences import LOSSES, STEPS


def test_every_loss_of_the_table_has_a_formula():
    assert set(PAIRED) | {"kto"} == set(registry.PREFERENCE_LOSSES.targets)
    assert {each.name for each in PREFERENCE_LOSSES} == set(registry.PREFERENCE_LOSSES.targets)


@pytest.mark.parametrize("loss", PREFERENCE_LOSSES, ids=describe)
def test_losses_and_gradients_are_those_of_the_formula(loss: Spec):
    assert check_preference_loss(loss.name, **loss.kwargs) == []


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.__name__)
def test_a_faulty_step_is_reported(step: Any):
    faults = check_preference_loss("dpo", step=step, beta=0.5)
    assert len(faults) == 1 and "differs from the formula of dpo" in faults[0]


@pytest.mark.parametrize(("function", "like", "arguments"), LOSSES, ids=lambda each: getattr(each, "__name__", None))
def test_a_faulty_loss_is_reported(function: Callable[..., Any], like: str, arguments: dict[str, Any]):
    faults = check_preference_loss(function, like=like, **arguments)
    assert len(faults) == 1 and f"differs from the formula of {like}" in faults[0]
