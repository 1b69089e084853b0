"""KL estimators and the adaptive coefficient, computed by hand."""

import math

import pytest
import torch

from roll.algorithms.kl import k1, k2, k3, next_coefficient
from roll.algorithms.objective import kl_row
from roll.errors import UnknownName
from roll.registry import ESTIMATORS
from roll.types import Spec

LN2 = math.log(2)


def estimate(logprobs: torch.Tensor, ref: torch.Tensor, estimator: str) -> torch.Tensor:
    return kl_row(logprobs, ref, torch.ones_like(ref, dtype=torch.bool), Spec(estimator))


def test_the_three_estimators_by_hand():
    logprobs, ref = torch.tensor([-1.0, LN2 - 1, -2.0]), torch.full((3,), -1.0)  # d = 0, ln 2, -1
    torch.testing.assert_close(estimate(logprobs, ref, "k1"), torch.tensor([0.0, LN2, -1.0]))
    torch.testing.assert_close(estimate(logprobs, ref, "k2"), torch.tensor([0.0, LN2**2 / 2, 0.5]))
    torch.testing.assert_close(estimate(logprobs, ref, "k3"), torch.tensor([0.0, LN2 - 0.5, math.e - 2]))


def test_names_in_a_recipe_are_these_functions():
    assert (ESTIMATORS["k1"], ESTIMATORS["k2"], ESTIMATORS["k3"]) == (k1, k2, k3)
    with pytest.raises(UnknownName, match="k4"):
        estimate(torch.zeros(1), torch.zeros(1), "k4")


def test_k3_is_right_close_to_the_reference_where_its_terms_cancel():
    torch.testing.assert_close(k3(torch.tensor([1e-4, -1e-4])), torch.tensor([5e-9, 5e-9]), rtol=1e-3, atol=0)


def test_k2_and_k3_are_never_negative():
    d = torch.linspace(-3, 3, 601)
    assert (k2(d) >= 0).all() and (k3(d) >= 0).all()


def test_over_all_tokens_k1_and_k3_average_to_the_divergence():
    policy, ref = torch.tensor([0.5, 0.3, 0.2]).log(), torch.tensor([0.2, 0.2, 0.6]).log()
    divergence = 0.5 * math.log(2.5) + 0.3 * math.log(1.5) - 0.2 * math.log(3)
    for estimator in (k1, k3):
        assert math.isclose((policy.exp() * estimator(policy - ref)).sum().item(), divergence, rel_tol=1e-5)


def test_in_a_loss_k1_has_no_mean_gradient_k2_that_of_the_divergence_and_k3_that_of_its_reverse():
    ref = torch.tensor([0.2, 0.2, 0.6]).log()

    def pull(estimator: str) -> torch.Tensor:
        logits = torch.tensor([0.5, 0.3, 0.2]).log().requires_grad_()
        logprobs = logits.log_softmax(0)
        sampled = logprobs.detach().exp()  # how often each token is met; not part of the gradient
        return torch.autograd.grad((sampled * estimate(logprobs, ref, estimator)).sum(), logits)[0]

    logits = torch.tensor([0.5, 0.3, 0.2]).log().requires_grad_()
    logprobs = logits.log_softmax(0)
    forward = torch.autograd.grad((logprobs.exp() * (logprobs - ref)).sum(), logits, retain_graph=True)[0]
    torch.testing.assert_close(pull("k1"), torch.zeros(3))
    torch.testing.assert_close(pull("k2"), forward)
    torch.testing.assert_close(pull("k3"), torch.tensor([0.3, 0.1, -0.4]))  # policy less reference


def test_the_coefficient_follows_the_error_in_proportion():
    # 10 % above the target, a quarter of the horizon: 1 + 0.1 * 0.25
    assert math.isclose(next_coefficient(0.5, 0.11, target=0.1, horizon=1024, num_samples=256), 0.5 * 1.025)
    assert math.isclose(next_coefficient(0.5, 0.09, target=0.1, horizon=1024, num_samples=256), 0.5 * 0.975)
    assert next_coefficient(0.5, 0.1, target=0.1, horizon=1024, num_samples=256) == 0.5


def test_the_relative_error_is_clipped_to_a_fifth():
    assert math.isclose(next_coefficient(1.0, 50.0, target=0.1, horizon=1000, num_samples=500), 1.1)
    assert math.isclose(next_coefficient(1.0, -3.0, target=0.1, horizon=1000, num_samples=500), 0.9)


def test_a_batch_larger_than_the_horizon_cannot_turn_the_coefficient_negative():
    assert math.isclose(next_coefficient(1.0, 0.0, target=0.1, horizon=10, num_samples=1000), 0.8)


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_untrained_tokens_reach_neither_the_row_nor_its_gradient(estimator: str):
    logprobs = torch.tensor([-1.0, math.nan, -1.0], requires_grad=True)
    trained = torch.tensor([True, False, False])
    row = kl_row(logprobs, torch.tensor([-2.0, -1.0, math.inf]), trained, Spec(estimator))
    assert row[1:].tolist() == [0.0, 0.0]
    row.sum().backward()
    assert logprobs.grad is not None and logprobs.grad[1:].tolist() == [0.0, 0.0]
