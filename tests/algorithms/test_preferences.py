"""Preference losses and the batch that carries their gradient, computed by hand."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from roll.algorithms import preferences
from roll.algorithms.objective import evaluate
from roll.algorithms.preferences import (
    OBJECTIVE,
    Labelled,
    Pairs,
    Responses,
    compare,
    losses_of,
    preference_metrics,
    response_sums,
    with_preference_gradient,
)
from roll.data.collate import supervised
from roll.errors import ConfigError
from roll.registry import PREFERENCE_LOSSES
from roll.types import Batch, Spec, Tokens


def responses(logprobs: Sequence[float], ref: Sequence[float], num_tokens: Sequence[float]) -> Responses:
    numbers = [torch.tensor(row, dtype=torch.float64) for row in (logprobs, ref, num_tokens)]
    return Responses(logprobs=numbers[0].requires_grad_(), ref_logprobs=numbers[1], num_tokens=numbers[2])


def pair() -> Pairs:
    """Log-ratio 2 over 2 tokens against -2 over 4 tokens; mean logprobs -2 and -1.25."""
    return Pairs(chosen=responses([-4.0], [-6.0], [2.0]), rejected=responses([-5.0], [-3.0], [4.0]))


def labelled(baseline: float = 1.0) -> Labelled:
    """A desirable response with log-ratio 2 and an undesirable one with -2."""
    both = responses([-4.0, -5.0], [-6.0, -3.0], [2.0, 4.0])
    return Labelled(responses=both, desirable=torch.tensor([True, False]), baseline=torch.tensor(baseline).double())


def slopes(loss: torch.Tensor, *of: torch.Tensor) -> list[float]:
    return [float(each) for row in torch.autograd.grad(loss.sum(), of) for each in row]


def test_dpo_is_the_log_loss_of_the_scaled_margin():
    example = pair()
    loss = preferences.dpo(example, beta=0.5)  # margin 4, logit 2
    assert loss.tolist() == pytest.approx([0.1269280])
    # -0.5 sigmoid(-2) to the chosen side, the opposite to the rejected one
    assert slopes(loss, example.chosen.logprobs, example.rejected.logprobs) == pytest.approx([-0.0596015, 0.0596015])


def test_dpo_per_token_divides_log_ratios_and_slopes_by_lengths():
    example = pair()
    loss = preferences.dpo(example, beta=0.5, per_token=True)  # 1 against -0.5, logit 0.75
    assert loss.tolist() == pytest.approx([0.3868710], abs=1e-6)
    # 0.5 sigmoid(-0.75) = 0.1604107, over 2 and 4 tokens
    assert slopes(loss, example.chosen.logprobs, example.rejected.logprobs) == pytest.approx([-0.0802053, 0.0401027])


def test_cdpo_mixes_both_labels_and_is_smallest_at_a_finite_margin():
    assert preferences.cdpo(pair(), beta=0.5, noise=0.25).tolist() == pytest.approx(
        [0.75 * 0.1269280 + 0.25 * 2.1269280]
    )
    assert preferences.cdpo(pair(), beta=0.5, noise=0.0).tolist() == preferences.dpo(pair(), beta=0.5).tolist()
    example = pair()
    logit = math.log(3)  # the odds of a right label at noise 0.25
    assert slopes(preferences.cdpo(example, beta=logit / 4, noise=0.25), example.chosen.logprobs) == pytest.approx(
        [0.0]
    )


def test_cdpo_refuses_noise_from_one_half():
    with pytest.raises(ConfigError, match=r"cdpo: noise must be at least 0 and below 0\.5 \(got 0\.5\); lower it"):
        preferences.cdpo(pair(), noise=0.5)


def test_ipo_is_the_squared_distance_of_the_margin_from_its_target():
    example = pair()
    loss = preferences.ipo(example, beta=0.5)  # (4 - 1)^2
    assert loss.tolist() == [9.0]
    assert slopes(loss, example.chosen.logprobs, example.rejected.logprobs) == [6.0, -6.0]
    assert preferences.ipo(pair(), beta=0.5, per_token=True).tolist() == [0.25]  # (1.5 - 1)^2


def test_apo_zero_raises_the_chosen_response_and_lowers_the_rejected_one():
    example = pair()
    loss = preferences.apo_zero(example, beta=0.5)  # sigmoid(-1) twice
    assert loss.tolist() == pytest.approx([2 * 0.2689414])
    assert slopes(loss, example.chosen.logprobs, example.rejected.logprobs) == pytest.approx([-0.0983060, 0.0983060])


def test_apo_down_lowers_both_responses_where_the_margin_is_large():
    example = pair()
    loss = preferences.apo_down(example, beta=0.5)  # sigmoid(1) + sigmoid(-2)
    assert loss.tolist() == pytest.approx([0.7310586 + 0.1192029])
    # 0.5 (0.1966119 - 0.1049936) and 0.5 0.1049936
    assert slopes(loss, example.chosen.logprobs, example.rejected.logprobs) == pytest.approx([0.0458092, 0.0524968])


def test_orpo_adds_the_mean_logprob_to_the_log_odds():
    sure = math.log(0.5)  # odds 1
    example = Pairs(chosen=responses([2 * sure], [0.0], [2.0]), rejected=responses([math.log(0.25)], [0.0], [1.0]))
    loss = preferences.orpo(example, beta=2.0)  # odds 1 against 1/3: sigmoid(log 3) is 3/4
    assert loss.tolist() == pytest.approx([math.log(2) - 2 * math.log(0.75)])
    # to the chosen mean: -1 - 2 (1/4) (1 + 1); over two tokens
    assert slopes(loss, example.chosen.logprobs) == pytest.approx([-1.0])


def test_orpo_is_finite_for_a_response_that_is_certain():
    example = Pairs(chosen=responses([0.0], [0.0], [3.0]), rejected=responses([0.0], [0.0], [2.0]))
    loss = preferences.orpo(example)
    assert loss.tolist() == pytest.approx([0.1 * math.log(2)])
    assert all(math.isfinite(slope) for slope in slopes(loss, example.chosen.logprobs, example.rejected.logprobs))


def test_simpo_compares_mean_logprobs_with_a_margin_and_reads_no_reference():
    loss = preferences.simpo(pair(), beta=2.0, margin=0.5)  # 2 (-2 + 1.25) - 0.5 = -2
    assert loss.tolist() == pytest.approx([2.1269280])
    other = Pairs(chosen=responses([-4.0], [9.0], [2.0]), rejected=responses([-5.0], [7.0], [4.0]))
    assert preferences.simpo(other, beta=2.0, margin=0.5).tolist() == loss.tolist()


def test_kto_measures_each_response_against_the_baseline():
    example = labelled(baseline=1.0)
    loss = preferences.kto(example, beta=1.0, desirable_weight=2.0)  # 2 sigmoid(-1), sigmoid(-3)
    assert loss.tolist() == pytest.approx([2 * 0.2689414, 0.0474259], abs=1e-6)
    # -2 sigmoid'(1) and sigmoid'(3)
    assert slopes(loss, example.responses.logprobs) == pytest.approx([-2 * 0.1966119, 0.0451767], abs=1e-6)


def test_a_negative_baseline_counts_as_0_and_carries_no_gradient():
    both = responses([-4.0, -5.0], [-6.0, -3.0], [2.0, 4.0])
    baseline = torch.tensor(-3.0, dtype=torch.float64, requires_grad=True)
    compared = compare(both, torch.tensor([True, False]), baseline)
    assert isinstance(compared, Labelled)
    assert float(compared.baseline) == 0.0 and not compared.baseline.requires_grad


@pytest.mark.parametrize("name", sorted(set(PREFERENCE_LOSSES.targets) - {"kto"}))
def test_a_larger_chosen_logprob_lowers_the_loss_of_a_wrong_pair(name: str):
    example = Pairs(chosen=responses([-6.0], [-4.0], [3.0]), rejected=responses([-3.0], [-5.0], [3.0]))
    chosen, rejected = slopes(PREFERENCE_LOSSES[name](example), example.chosen.logprobs, example.rejected.logprobs)
    assert rejected > 0
    assert chosen < rejected if name == "apo_down" else chosen < 0


def batch_of_two_pairs() -> Batch:
    return supervised([[[1, 2], [3, 4]], [[1, 2], [5]], [[6], [7]], [[6], [8, 9, 3]]])


def test_sums_cover_responses_alone():
    batch = supervised([[[1, 2], [3, 4]], [[1], [5]]])
    row = torch.tensor([9.0, 9.0, -1.0, -2.0, torch.nan, -4.0])
    assert response_sums(batch, row).tolist() == [-3.0, -4.0]


def gradient_by_engine(batch: Batch, row: torch.Tensor, parts: Sequence[Sequence[int]]) -> torch.Tensor:
    """The gradient to every logprob that an engine accumulates over micro-batches of these rows."""
    for rows in parts:
        part, positions = batch.select(rows), torch.as_tensor(batch.positions(rows))
        assert part.advantages is not None and part.weights is not None
        logprobs = row[positions]
        tokens = Tokens(
            logprobs=logprobs,
            old_logprobs=logprobs.detach(),
            sampler_logprobs=part.sampler_logprobs,
            advantages=part.advantages,
            trained=part.trained,
            row=part.turn,
            trajectory=part.turn,
            turn=part.turn,
        )
        evaluate(tokens, part.weights, OBJECTIVE)[0].backward()
    assert row.grad is not None
    return row.grad


@pytest.mark.parametrize("loss", [Spec("dpo", {"beta": 0.7}), Spec("orpo"), Spec("ipo", {"per_token": True})])
@pytest.mark.parametrize("parts", [[[0, 1, 2, 3]], [[0], [1], [2], [3]], [[3, 0], [2, 1]]])
def test_the_gradient_is_that_of_the_mean_loss_however_pairs_are_split(loss: Spec, parts: list[list[int]]):
    batch, row = batch_of_two_pairs(), -torch.rand(13, generator=torch.Generator().manual_seed(3))
    ref = response_sums(batch, -torch.rand(13, generator=torch.Generator().manual_seed(4)))
    lengths = response_sums(batch, torch.ones(13))

    direct = row.clone().requires_grad_()
    whole = Responses(logprobs=response_sums(batch, direct), ref_logprobs=ref, num_tokens=lengths)
    losses_of(loss, compare(whole, None)).mean().backward()

    sums = Responses(logprobs=response_sums(batch, row), ref_logprobs=ref, num_tokens=lengths)
    weighed, _ = with_preference_gradient(batch, loss, sums, desirable=None, baseline=None)
    assert direct.grad is not None
    torch.testing.assert_close(gradient_by_engine(weighed, row.clone().requires_grad_(), parts), direct.grad)


def test_metrics_of_pairs_are_means_over_both_sides():
    both = responses([-4.0, -5.0, -9.0, -2.0], [-6.0, -3.0, -6.0, -2.0], [2.0, 4.0, 3.0, 2.0])
    compared = compare(both, None)  # 2 against -2, -3 against 0
    metrics = preference_metrics(Spec("dpo"), torch.tensor([1.0, 3.0]), compared)
    assert metrics == {
        "preference/loss": 2.0,
        "preference/accuracy": 0.5,
        "preference/chosen": -0.5,
        "preference/rejected": -1.0,
        "preference/margin": 0.5,
    }


def test_accuracy_without_a_reference_compares_mean_logprobs():
    both = responses([-4.0, -5.0], [0.0, 0.0], [4.0, 2.0])  # -1 against -2.5 per token
    assert preference_metrics(Spec("simpo"), torch.zeros(1), compare(both, None))["preference/accuracy"] == 1.0
    longer = responses([-8.0, -5.0], [0.0, 0.0], [2.0, 2.0])
    assert preference_metrics(Spec("simpo"), torch.zeros(1), compare(longer, None))["preference/accuracy"] == 0.0


def test_labelled_responses_are_right_on_their_side_of_the_baseline():
    metrics = preference_metrics(Spec("kto"), torch.zeros(2), labelled(baseline=3.0))  # 2 and -2 are both below
    assert metrics["preference/accuracy"] == 0.5
    assert "preference/rejected" in metrics and metrics["preference/margin"] == 4.0


def detached(pairs: Pairs) -> torch.Tensor:
    return pairs.chosen.logprobs.detach()


def one_number(pairs: Pairs) -> torch.Tensor:
    return pairs.chosen.logprobs.sum()


@pytest.mark.parametrize(
    ("function", "message"), [(detached, "its result has no gradient"), (one_number, "must return one value per pair")]
)
def test_a_loss_of_the_users_with_a_wrong_result_is_one_line(function: Callable[..., Any], message: str):
    batch = batch_of_two_pairs()
    both = responses([-1.0, -1.0, -1.0, -1.0], [0.0] * 4, [1.0] * 4)
    name = f"{__name__}:{function.__name__}"
    with pytest.raises(ConfigError, match=message) as caught:
        with_preference_gradient(batch, Spec(name), both, desirable=None, baseline=None)
    assert "\n" not in str(caught.value)
