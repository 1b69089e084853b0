"""All planted bugs: what is wrong, what the kit checks, and texts that its faults contain."""

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

from roll.algorithms.recipe import Objective
from roll.conformance.divergences import check_divergence
from roll.conformance.laws import (
    check_advantage,
    check_aggregation,
    check_correction,
    check_estimator,
    check_loss,
    check_objective,
    check_shaping,
)
from roll.conformance.preferences import check_preference_loss
from roll.conformance.reward_models import check_reward_loss
from roll.conformance.trainers import check_trainer
from roll.types import Spec
from tests.conformance import bigram, planted, planted_divergences, planted_preferences, planted_rewards

CLIPPED = [Objective(loss=Spec("clipped"))]
CUT = "depends on how the batch is split into micro-batches"
ORDER = "depends on the order of sequences"
OBSERVED = "depends on observation tokens"
MASKED = "depends on empty or all-masked sequences"
GARBAGE = "reads values at untrained tokens"
ROWS = "depends on how many rows a trajectory has"


def formula(name: str, what: str = "") -> str:
    return f"differs from the formula of {name}: {what}"


LOSSES: list[tuple[Any, ...]] = [
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
]
CORRECTIONS: list[tuple[Any, ...]] = [
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
]
AGGREGATIONS: list[tuple[Any, ...]] = [
    (planted.mean_over_all_tokens, "token_mean", {}, [OBSERVED, MASKED, "weights sum to 0.607143 instead of 1"]),
    (planted.mask_only_in_the_advantage, None, {}, ["weighs untrained tokens"]),
    (planted.mean_over_empty_rows_too, None, {}, [MASKED]),
    (planted.nan_when_nothing_is_trained, None, {}, ["returns nan where no token is trained"]),
    (planted.constant_by_the_longest_row, "constant", {"tokens": 7}, [OBSERVED, formula("constant", "weight")]),
]
ADVANTAGES: list[tuple[Any, ...]] = [
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
]
SHAPINGS: list[tuple[Any, ...]] = [
    (planted.deviation_of_the_batch, "normalised", {"mean": "group", "std": "group"}, formula("normalised")),
    (planted.overlong_by_all_tokens, "overlong", {"max_tokens": 12, "buffer": 6}, OBSERVED),
    (planted.no_part_is_no_format, "format", {}, formula("format", "reward")),
]
TRAINERS: list[tuple[Any, ...]] = [
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
    (bigram.IgnoresTemperature, ["logprobs: wrong temperature"]),
    (bigram.IgnoresTopP, ["logprobs: wrong top_p"]),
    (bigram.EntropyDetached, ["an entropy bonus has no gradient"]),
    (bigram.ClipsMicroBatches, ["the gradient of several micro-batches is not clipped to norm 1"]),
    (bigram.NeverClips, ["the gradient of one micro-batch is not clipped to norm 1"]),
    (bigram.NeverRefuses, ["a non-finite update changes the weights", "is not reported"]),
    (bigram.MovesOnRefusal, ["a non-finite update changes the weights"]),
]
ESTIMATORS = [
    (planted.k3_reversed, "k3", ["at d = 3, by the formula of k3", "slope"]),
    (planted.k2_without_the_half, "k2", ["value 9 instead of 4.5 at d = -3"]),
]
_KL: dict[str, Any] = {"kl": Spec("k3"), "kl_coefficient": 0.3}
OBJECTIVES = [
    (planted.kl_twice, Objective(loss=Spec("clipped"), **_KL), ["differs from the formula: the sum"]),
    (
        planted.kl_under_the_correction,
        Objective(loss=Spec("clipped"), correction=Spec("truncate"), **_KL),
        ["differs from the formula"],
    ),
    (planted.entropy_as_a_penalty, Objective(loss=Spec("clipped"), entropy=0.3), ["differs from the formula"]),
]


def missing(faults: list[str], texts: str | list[str]) -> list[str]:
    """The texts that no fault contains."""
    return [text for text in ([texts] if isinstance(texts, str) else texts) if not any(text in each for each in faults)]


def trainer_faults(trainer: Any) -> list[str]:
    """Faults of a trainer, with clipping."""
    return asyncio.run(
        check_trainer(
            trainer, vocab=bigram.VOCAB, objectives=CLIPPED, make_clipped=lambda budget: trainer(budget, max_norm=1.0)
        )
    )


def all_bugs() -> Iterator[tuple[str, list[str], str | list[str]]]:
    """Every planted bug by name, with the faults that the kit reports and the texts it has to report."""
    tables: list[tuple[list[tuple[Any, ...]], Callable[..., list[str]]]] = [
        (LOSSES, lambda bug, like, kwargs: check_loss(bug, like=like, seeds=[0, 4], **kwargs)),
        (CORRECTIONS, lambda bug, like, kwargs: check_correction(bug, like=like, **kwargs)),
        (ESTIMATORS, lambda bug, like: check_estimator(bug, like=like)),
        (OBJECTIVES, lambda bug, objective: check_objective(objective, function=bug)),
        (AGGREGATIONS, lambda bug, like, kwargs: check_aggregation(bug, like=like, **kwargs)),
        (ADVANTAGES, lambda bug, like, kwargs: check_advantage(bug, like=like, **kwargs)),
        (SHAPINGS, lambda bug, like, kwargs: check_shaping(bug, like=like, **kwargs)),
        (TRAINERS, trainer_faults),
    ]
    for bugs, check in tables:
        for bug, *arguments, texts in bugs:
            yield bug.__name__, check(bug, *arguments), texts
    for step in planted_preferences.STEPS:
        yield step.__name__, check_preference_loss("dpo", step=step, beta=0.5), formula("dpo")
    for bug, like, kwargs in planted_preferences.LOSSES:
        yield bug.__name__, check_preference_loss(bug, like=like, **kwargs), formula(like)
    for step, loss in planted_rewards.STEPS:
        yield f"{step.__name__} {loss}", check_reward_loss(loss, step=step), formula(loss)
    for bug, like, kwargs in planted_rewards.LOSSES:
        yield bug.__name__, check_reward_loss(bug, like=like, **kwargs), formula(like)
    for step in planted_divergences.STEPS:
        faults = check_divergence("forward_kl", step=step, **planted_divergences.OPTIONS)
        yield f"distillation with {step.__name__}", faults, formula("forward_kl")
