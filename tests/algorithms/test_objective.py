"""The objective of an optimizer step, combined from its parts."""

import math
from typing import Any

import pytest
import torch

from roll.algorithms.objective import evaluate
from roll.algorithms.recipe import Objective
from roll.errors import ConfigError
from roll.types import Spec, Tokens
from tests.algorithms.build import tokens

GRADIENT = Spec("policy_gradient")


def careless(seen: Tokens) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """A plausible user loss that ignores the mask."""
    return -(seen.logprobs - seen.old_logprobs).exp() * seen.advantages * seen.sampler_logprobs.square(), {}


def total(seen: Tokens) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    return seen.logprobs.sum(), {}


def test_loss_kl_and_entropy_add_up_under_the_weights() -> None:
    seen = tokens([-1.0, -2.0], advantages=[1.0, 3.0], ref_logprobs=[-1.5, -2.0], entropies=[0.5, 0.25])
    objective = Objective(loss=GRADIENT, kl=Spec("k2"), kl_coefficient=2.0, entropy=4.0)
    result, metrics = evaluate(seen, torch.tensor([0.5, 0.25]), objective)
    # 0.5 (1 + 2 x 0.125 - 4 x 0.5) + 0.25 (6 + 0 - 4 x 0.25)
    assert result.item() == pytest.approx(0.5 * (1 + 0.25 - 2) + 0.25 * (6 - 1))
    assert metrics["kl"].tolist() == [0.125, 0.0]


def test_a_correction_weighs_the_loss_and_not_the_kl() -> None:
    seen = tokens([-1.0], advantages=[1.0], old_logprobs=[math.log(2)], sampler_logprobs=[0.0], ref_logprobs=[-2.0])
    objective = Objective(loss=GRADIENT, correction=Spec("truncate", {"cap": 5.0}), kl=Spec("k1"), kl_coefficient=1.0)
    result, metrics = evaluate(seen, torch.ones(1), objective)
    assert result.item() == pytest.approx(2.0 * 1.0 + 1.0)
    assert metrics["correction"].tolist() == pytest.approx([2.0])


def test_a_loss_without_a_mask_never_sees_values_at_untrained_tokens() -> None:
    nan = math.nan
    seen = tokens(
        [-1.0, nan, math.inf],
        trained=[1, 0, 0],
        advantages=[2.0, nan, 1.0],
        old_logprobs=[-1.0, 0.0, nan],
        sampler_logprobs=[-3.0, nan, nan],
    )
    result, _ = evaluate(seen, torch.tensor([1.0, 0.0, 0.0]), Objective(loss=Spec(f"{__name__}:careless")))
    result.backward()
    assert result.item() == pytest.approx(-18.0)
    assert seen.logprobs.grad is not None and seen.logprobs.grad.tolist() == pytest.approx([-18.0, 0.0, 0.0])


def test_a_loss_that_does_not_return_a_row_is_named() -> None:
    with pytest.raises(
        ConfigError, match=r"^loss '.*:total': must return one value per token, shape \(2,\) \(got \(\)\)"
    ):
        evaluate(tokens([-1.0, -2.0]), torch.ones(2), Objective(loss=Spec(f"{__name__}:total")))


def alone(seen: Tokens) -> torch.Tensor:
    return seen.logprobs


def logs_a_number(seen: Tokens) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    return seen.logprobs, {"mean": seen.logprobs.mean()}


def logs_a_float(seen: Tokens) -> tuple[torch.Tensor, Any]:
    return seen.logprobs, {"mean": float(seen.logprobs.detach().mean())}


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("alone", r"alone': must return the loss of each token and a dictionary of metrics \(got Tensor\); return"),
        (
            "logs_a_number",
            r"logs_a_number': metric 'mean' must have one value per token \(got shape \(\)\); return a row",
        ),
        ("logs_a_float", r"logs_a_float': metric 'mean' must have one value per token \(got float\); return a row"),
    ],
)
def test_a_loss_with_missing_or_wrong_metrics_is_named(name: str, fault: str) -> None:
    with pytest.raises(ConfigError, match=rf"^loss '.*:{fault}"):
        evaluate(tokens([-1.0, -2.0]), torch.ones(2), Objective(loss=Spec(f"{__name__}:{name}")))
