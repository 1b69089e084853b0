"""Every planted bug is reported by the kit, with a message that names it."""

from typing import Any

import pytest
import torch

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
from tests.conformance.bugs import (
    ADVANTAGES,
    AGGREGATIONS,
    CORRECTIONS,
    ESTIMATORS,
    LOSSES,
    OBJECTIVES,
    SHAPINGS,
    TRAINERS,
    missing,
    trainer_faults,
)

pytestmark = pytest.mark.slow

torch.set_num_threads(1)


def assert_reported(faults: list[str], *texts: str) -> None:
    assert missing(faults, list(texts)) == [], faults


@pytest.mark.parametrize(("bug", "like", "arguments", "texts"), LOSSES)
def test_a_wrong_loss_is_reported(bug: Any, like: str | None, arguments: dict[str, Any], texts: list[str]) -> None:
    assert_reported(check_loss(bug, like=like, seeds=[0, 4], **arguments), *texts)


@pytest.mark.parametrize(("bug", "like", "arguments", "text"), CORRECTIONS)
def test_a_wrong_correction_is_reported(bug: Any, like: str, arguments: dict[str, Any], text: str) -> None:
    assert_reported(check_correction(bug, like=like, **arguments), text)


@pytest.mark.parametrize(("bug", "like", "texts"), ESTIMATORS)
def test_a_wrong_estimator_of_kl_is_reported(bug: Any, like: str, texts: list[str]) -> None:
    assert_reported(check_estimator(bug, like=like), *texts)


@pytest.mark.parametrize(("bug", "objective", "texts"), OBJECTIVES)
def test_a_wrong_objective_is_reported(bug: Any, objective: Objective, texts: list[str]) -> None:
    assert_reported(check_objective(objective, function=bug), *texts)


@pytest.mark.parametrize(("bug", "like", "arguments", "texts"), AGGREGATIONS)
def test_a_wrong_aggregation_is_reported(
    bug: Any, like: str | None, arguments: dict[str, Any], texts: list[str]
) -> None:
    assert_reported(check_aggregation(bug, like=like, **arguments), *texts)


@pytest.mark.parametrize(("bug", "like", "arguments", "texts"), ADVANTAGES)
def test_a_wrong_advantage_is_reported(bug: Any, like: str | None, arguments: dict[str, Any], texts: list[str]) -> None:
    assert_reported(check_advantage(bug, like=like, **arguments), *texts)


@pytest.mark.parametrize(("bug", "like", "arguments", "text"), SHAPINGS)
def test_a_wrong_shaping_is_reported(bug: Any, like: str, arguments: dict[str, Any], text: str) -> None:
    assert_reported(check_shaping(bug, like=like, **arguments), text)


@pytest.mark.parametrize(("trainer", "texts"), TRAINERS)
def test_a_wrong_trainer_is_reported(trainer: Any, texts: list[str]) -> None:
    assert_reported(trainer_faults(trainer), *texts)
