"""Per-token losses, worked by hand."""

import math

import torch

from roll.algorithms.losses import clipped, policy_gradient
from roll.types import Tokens


def tokens(ratios: list[float], advantages: list[float]) -> Tokens:
    size = len(ratios)
    return Tokens(
        logprobs=torch.tensor([math.log(ratio) for ratio in ratios], requires_grad=True),
        old_logprobs=torch.zeros(size),
        sampler_logprobs=torch.zeros(size),
        advantages=torch.tensor(advantages),
        trained=torch.ones(size, dtype=torch.bool),
        row=torch.zeros(size, dtype=torch.int64),
        trajectory=torch.zeros(size, dtype=torch.int64),
    )


def test_the_clip_bounds_gains_and_leaves_losses_alone():
    given = tokens([1.0, 2.0, 2.0, 0.5, 0.5], [1.0, 1.0, -1.0, 1.0, -1.0])
    loss, _ = clipped(given, clip_low=0.2, clip_high=0.3)
    torch.testing.assert_close(loss.detach(), torch.tensor([-1.0, -1.3, 2.0, -0.5, 0.8]))


def test_a_clipped_token_has_no_gradient_and_is_counted():
    given = tokens([1.0, 2.0, 2.0, 0.5, 0.5], [1.0, 1.0, -1.0, 1.0, -1.0])
    loss, metrics = clipped(given)
    loss.sum().backward()
    assert given.logprobs.grad is not None
    assert (given.logprobs.grad == 0).tolist() == [False, True, False, False, True]
    assert metrics["clip_fraction"].tolist() == [0.0, 1.0, 0.0, 0.0, 1.0]
    torch.testing.assert_close(metrics["ratio"], torch.tensor([1.0, 2.0, 2.0, 0.5, 0.5]))
    assert not metrics["ratio"].requires_grad


def test_at_ratio_one_the_clipped_gradient_is_the_policy_gradient():
    for loss_of in (clipped, policy_gradient):
        given = tokens([1.0, 1.0], [2.0, -3.0])
        loss_of(given)[0].sum().backward()
        assert given.logprobs.grad is not None
        assert given.logprobs.grad.tolist() == [-2.0, 3.0]


def test_policy_gradient_is_minus_advantage_times_logprob():
    loss, metrics = policy_gradient(tokens([math.e, 1.0], [2.0, 5.0]))
    torch.testing.assert_close(loss.detach(), torch.tensor([-2.0, 0.0]))
    assert metrics == {}
