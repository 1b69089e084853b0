"""One reward a trajectory becomes one advantage and one weight a token."""

import pytest
import torch

from roll.algorithms.credit import assign_credit
from roll.errors import ConfigError, UnknownName
from roll.types import Batch, Call

TOKEN_MEAN = Call("token_mean")


def batch() -> Batch:
    # trajectory 0 has two segments (rows 0 and 2), trajectory 1 has one (row 1); both are siblings
    return Batch(
        ids=torch.arange(7),
        trained=torch.tensor([0, 1, 0, 1, 1, 0, 1], dtype=torch.bool),
        sampler_logprobs=torch.zeros(7),
        versions=torch.zeros(7, dtype=torch.int32),
        lengths=(2, 3, 2),
        trajectory=torch.tensor([0, 1, 0]),
        group=torch.tensor([5, 5]),
        rewards=torch.tensor([3.0, 1.0]),
    )


def test_an_advantage_lies_on_the_trained_tokens_of_its_trajectory_only():
    found = assign_credit(batch(), Call("group_normalised", {"scale": False}), TOKEN_MEAN)
    assert found.advantages is not None and found.weights is not None
    assert found.advantages.tolist() == [0.0, 1.0, 0.0, -1.0, -1.0, 0.0, 1.0]
    assert found.weights.tolist() == [0.0, 0.25, 0.0, 0.25, 0.25, 0.0, 0.25]


def test_a_trajectory_counts_once_however_many_segments_it_has():
    found = assign_credit(batch(), Call("batch_centred"), TOKEN_MEAN)
    assert found.advantages is not None
    assert found.advantages[1].item() == 1.0  # 3 - (3 + 1) / 2, not 3 - (3 + 3 + 1) / 3


def test_weights_of_a_careless_aggregation_are_masked():
    found = assign_credit(batch(), Call("batch_centred"), Call(f"{__name__}:careless"))
    assert found.weights is not None
    assert found.weights.tolist() == [0.0, 1.0, 0.0, 1.0, 1.0, 0.0, 1.0]


def test_a_function_that_returns_the_wrong_shape_is_named():
    with pytest.raises(ConfigError, match=r"scalar.*shape \(2,\).*got \(\)"):
        assign_credit(batch(), Call(f"{__name__}:scalar"), TOKEN_MEAN)


def test_an_unknown_advantage_is_a_config_error():
    with pytest.raises(UnknownName, match="group_normalised"):
        assign_credit(batch(), Call("group_normalized"), TOKEN_MEAN)


def careless(batch: Batch) -> torch.Tensor:
    return torch.ones(batch.num_tokens)


def scalar(rewards: torch.Tensor, group: torch.Tensor) -> torch.Tensor:
    return rewards.mean()
