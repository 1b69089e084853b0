"""Every planted bug is reported by the kit, with a message that names it."""

import asyncio
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
from roll.conformance.trainers import check_trainer
from roll.types import Spec
from tests.conformance import bigram, planted

pytestmark = pytest.mark.slow

torch.set_num_threads(1)

CLIPPED = [Objective(loss=Spec("clipped"))]
CUT = "depends on how the batch is split into micro-batches"
ORDER = "depends on the order of sequences"
OBSERVED = "depends on observation tokens"
MASKED = "depends on empty or all-masked sequences"
GARBAGE = "reads values at untrained tokens"
ROWS = "depends on how many rows a trajectory has"


def formula(name: str, what: str = "") -> str:
    return f"differs from the formula of {name}: {what}"


def assert_reported(faults: list[str], *texts: str) -> None:
    for text in texts:
        assert any(text in fault for fault in faults), f"no fault says {text!r}: {faults}"


@pytest.mark.parametrize(
    ("bug", "like", "arguments", "texts"),
    [
        (planted.clipped_on_both_sides, "clipped", {}, [formula("clipped", "loss")]),
        (planted.clip_bounds_swapped, "clipped", {"clip_low": 0.1, "clip_high": 0.3}, [formula("clipped", "loss")]),
        (planted.dual_clip_for_positives, "clipped", {"dual_clip": 1.5}, [formula("clipped", "loss")]),
        (planted.dual_clip_by_minimum, "clipped", {"dual_clip": 1.5}, [formula("clipped", "loss")]),
        (planted.ratio_against_the_sampler, "clipped", {}, [formula("clipped", "loss")]),
        (planted.cispo_attached, "cispo", {}, [formula("cispo", "gradient")]),
        (planted.behaviour_ratio_attached, "decoupled", {}, [formula("decoupled", "gradient")]),
        (planted.sequence_ratio_by_sum, "sequence_clipped", {"clip_low": 0.3, "clip_high": 0.3}, ["sequence_clipped"]),
        (
            planted.sequence_ratio_over_observations,
            "sequence_clipped",
            {"clip_low": 0.3, "clip_high": 0.3},
            [OBSERVED, formula("sequence_clipped")],
        ),
        (planted.geometric_clip_on_both_sides, "geometric_clipped", {}, [formula("geometric_clipped")]),
        (planted.topr_signs_swapped, "topr", {}, [formula("topr", "loss")]),
        (planted.raft_learns_from_negatives, "raft", {}, [formula("raft", "loss")]),
        (planted.value_clip_by_minimum, "squared_value", {"clip": 0.3}, [formula("squared_value", "loss")]),
        (planted.mean_over_the_micro_batch, None, {}, [CUT]),
        (planted.advantages_whitened_in_the_loss, None, {}, [CUT, OBSERVED]),
        (planted.masked_by_multiplication, "policy_gradient", {}, [GARBAGE]),
        (planted.one_number_for_all, None, {}, ["the loss must be one value per token"]),
        (planted.without_a_gradient, None, {}, ["the loss has no gradient; compute it from logprobs"]),
        (
            planted.root_of_the_difference,
            None,
            {},
            ["returns gradient to logprobs nan", "reference logprobs are equal"],
        ),
        (planted.metric_of_the_batch, None, {}, ["metric 'mean' must be one value per token"]),
    ],
)
def test_a_wrong_loss_is_reported(bug: Any, like: str | None, arguments: dict[str, Any], texts: list[str]) -> None:
    assert_reported(check_loss(bug, like=like, seeds=[0, 4], **arguments), *texts)


@pytest.mark.parametrize(
    ("bug", "like", "arguments", "text"),
    [
        (planted.correction_attached, "truncate", {}, "is not detached"),
        (planted.correction_of_the_current_policy, "truncate", {}, "depends on the current policy"),
        (planted.geometric_by_sum, "truncate", {"level": "geometric", "cap": 1.2}, formula("truncate", "factor")),
        (
            planted.reject_single_tokens,
            "reject",
            {"level": "sequence", "low": 0.8, "high": 1.25},
            formula("reject", "factor"),
        ),
        (planted.truncate_instead_of_mask, "mask", {"low": 0.8, "high": 1.25}, formula("mask", "factor")),
    ],
)
def test_a_wrong_correction_is_reported(bug: Any, like: str, arguments: dict[str, Any], text: str) -> None:
    assert_reported(check_correction(bug, like=like, **arguments), text)


def test_a_wrong_estimator_of_kl_is_reported() -> None:
    assert_reported(check_estimator(planted.k3_reversed, like="k3"), "at d = 3, by the formula of k3", "slope")
    assert_reported(check_estimator(planted.k2_without_the_half, like="k2"), "value 9 instead of 4.5 at d = -3")


def test_a_wrong_objective_is_reported() -> None:
    pulled = Objective(loss=Spec("clipped"), kl=Spec("k3"), kl_coefficient=0.3)
    corrected = Objective(loss=Spec("clipped"), correction=Spec("truncate"), kl=Spec("k3"), kl_coefficient=0.3)
    lively = Objective(loss=Spec("clipped"), entropy=0.3)
    assert_reported(check_objective(pulled, function=planted.kl_twice), "differs from the formula: the sum")
    assert_reported(check_objective(corrected, function=planted.kl_under_the_correction), "differs from the formula")
    assert_reported(check_objective(lively, function=planted.entropy_as_a_penalty), "differs from the formula")


@pytest.mark.parametrize(
    ("bug", "like", "arguments", "texts"),
    [
        (planted.mean_over_all_tokens, "token_mean", {}, [OBSERVED, MASKED, "weights sum to 0.607143 instead of 1"]),
        (planted.mask_only_in_the_advantage, None, {}, ["weighs untrained tokens"]),
        (planted.mean_over_empty_rows_too, None, {}, [MASKED]),
        (planted.nan_when_nothing_is_trained, None, {}, ["returns nan where no token is trained"]),
        (planted.constant_by_the_longest_row, "constant", {"tokens": 7}, [OBSERVED, formula("constant", "weight")]),
    ],
)
def test_a_wrong_aggregation_is_reported(
    bug: Any, like: str | None, arguments: dict[str, Any], texts: list[str]
) -> None:
    assert_reported(check_aggregation(bug, like=like, **arguments), *texts)


@pytest.mark.parametrize(
    ("bug", "like", "arguments", "texts"),
    [
        (planted.groups_by_row_order, None, {}, [ORDER]),
        (planted.normalised_after_duplication, None, {}, [MASKED, ROWS]),
        (planted.biased_for_unbiased, "group_normalised", {"unbiased": True}, [formula("group_normalised")]),
        (
            planted.nan_in_a_group_of_one,
            "group_normalised",
            {"unbiased": True},
            ["returns advantage nan", "group of 1"],
        ),
        (planted.equal_rewards_amplified, "group_normalised", {}, ["with equal rewards, not 0"]),
        (planted.rewards_in_half_precision, "group_normalised", {}, ["8 added to all rewards", "the formula"]),
        (planted.leave_one_out_with_itself, "leave_one_out", {}, [formula("leave_one_out")]),
        (planted.batch_deviation_of_each_group, "group_centred_batch_scaled", {}, ["group_centred_batch_scaled"]),
        (planted.whitened_over_all_tokens, "batch_normalised", {}, [OBSERVED, formula("batch_normalised")]),
        (planted.gae_past_the_last_trained_token, "gae", {}, [GARBAGE, OBSERVED, "although lam is 1"]),
        (planted.gae_anew_in_every_row, "gae", {}, [ROWS, "although lam is 1"]),
        (planted.gae_bootstraps_unasked, "gae", {}, [formula("gae"), "although lam is 1"]),
        (planted.outcome_on_an_observation, "discounted", {"per": "token"}, [OBSERVED, formula("discounted")]),
        (planted.discount_per_token, "discounted", {"gamma": 0.9}, [formula("discounted")]),
        (planted.states_across_tasks, "gigpo", {}, [formula("gigpo")]),
        (planted.distilled_the_other_way, "distilled", {}, [formula("distilled")]),
    ],
)
def test_a_wrong_advantage_is_reported(bug: Any, like: str | None, arguments: dict[str, Any], texts: list[str]) -> None:
    assert_reported(check_advantage(bug, like=like, **arguments), *texts)


@pytest.mark.parametrize(
    ("bug", "like", "arguments", "text"),
    [
        (planted.deviation_of_the_batch, "normalised", {"mean": "group", "std": "group"}, formula("normalised")),
        (planted.overlong_by_all_tokens, "overlong", {"max_tokens": 12, "buffer": 6}, OBSERVED),
        (planted.no_part_is_no_format, "format", {}, formula("format", "reward")),
    ],
)
def test_a_wrong_shaping_is_reported(bug: Any, like: str, arguments: dict[str, Any], text: str) -> None:
    assert_reported(check_shaping(bug, like=like, **arguments), text)


@pytest.mark.parametrize(
    ("trainer", "texts"),
    [
        (bigram.NoShift, ["wrong shift: the probabilities of all tokens at one position sum to"]),
        (bigram.ShiftedTwice, ["wrong shift: a token's logprob does not change with the token before it"]),
        (bigram.ScoresTheFirst, ["the first token of a sequence has"]),
        (bigram.ReadsItsNeighbours, ["logprobs: depend on the sequences packed together"]),
        (bigram.EosUntrained, ["the last token of a sequence has no gradient"]),
        (bigram.DenominatorOfTheMicroBatch, ["clipped: the gradient depends on the micro-batch"]),
        (bigram.MeanOfMicroBatches, ["clipped: the gradient depends on the micro-batch"]),
        (bigram.DenominatorOfTheShard, ["the gradient depends on the data-parallel split: with 2 shards"]),
        (bigram.CountsMaskedRows, ["the gradient depends on all-masked sequences"]),
        (bigram.CountsPadding, ["the gradient depends on observation tokens after the last trained one"]),
        (
            bigram.WhitensUntrainedAdvantages,
            ["depends on values at untrained tokens", "on the order of sequences"],
        ),
        (bigram.ForgetsOldLogprobs, ["clipped: the objective falls"]),
    ],
)
def test_a_wrong_trainer_is_reported(trainer: Any, texts: list[str]) -> None:
    assert_reported(asyncio.run(check_trainer(trainer, vocab=bigram.VOCAB, objectives=CLIPPED)), *texts)
