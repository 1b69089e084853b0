"""Detectors of entropy, KL, length, mismatch and gradients, on made-up series with numbers worked out by hand."""

from collections.abc import Callable

import pytest

Begins = Callable[..., list[tuple[int, str]]]


def test_an_entropy_that_vanishes_without_a_gain_is_reported_once(observe: Callable) -> None:
    """The mean of five steps is below 0.1 in the fifth step after the fall."""
    (notice,) = observe(loss__entropy=[1.0] * 10 + [0.05] * 20, reward__mean=[0.4, 0.42] * 15)
    assert (notice.kind, notice.step, notice.metric) == ("entropy_collapse", 15, "loss/entropy")
    assert notice.text == "the entropy fell from 1 nats at step 1 to 0.05; the reward went from 0.400 to 0.408"
    above = observe(loss__entropy=[1.0] * 10 + [0.11] * 20, reward__mean=[0.4, 0.42] * 15)
    assert above == []


def test_an_entropy_that_vanishes_because_the_tasks_are_solved_is_not_reported(observe: Callable) -> None:
    entropy, rewards = [1.0] * 10 + [0.05] * 20, [0.4] * 10 + [0.97] * 20
    assert observe(loss__entropy=entropy, reward__mean=rewards) == []
    solved = {"trained__uniform": [0.2] * 10 + [0.9] * 20, "reward__std": [0.49] * 10 + [0.17] * 20}
    assert observe(loss__entropy=entropy, reward__mean=rewards, **solved) == []


def test_an_entropy_that_vanishes_before_the_tasks_are_solved_is_reported(observe: Callable) -> None:
    stuck = {"trained__uniform": [0.2] * 10 + [0.85] * 20, "reward__std": [0.49] * 10 + [0.5] * 20}
    entropy, rewards = [1.0] * 10 + [0.05] * 20, [0.4] * 10 + [0.6] * 20
    (notice,) = observe(loss__entropy=entropy, reward__mean=rewards, **stuck)
    assert notice.step == 15 and notice.text.endswith("85% of the groups have equal rewards, at a mean reward of 0.600")


def test_each_policy_has_its_own_entropy(observe: Callable) -> None:
    fall = [1.0] * 10 + [0.05] * 10
    notices = observe(policy__x__loss__entropy=fall, policy__o__loss__entropy=[1.0] * 20, reward__mean=[0.5, 0.52] * 10)
    assert [each.metric for each in notices] == ["policy/x/loss/entropy"]


def test_a_kl_that_multiplies_is_reported_and_one_that_grows_steadily_is_not(begins: Begins, observe: Callable) -> None:
    assert begins(kl__reference=[0.05 * step for step in range(60)]) == [], "up to 2.95 nats"
    assert begins(kl__reference=[0.01] * 10 + [0.3] * 10) == [], "less than half a nat"
    assert begins(kl__reference=[0.2] * 10 + [0.9] * 10) == [], "less than five times"
    assert begins(kl__reference=[0.01] * 10 + [3.0, 3.0, 0.01] * 4) == [], "never three in a row"
    notices = observe(kl__reference=[0.1] * 10 + [2.0] * 30 + [0.2] * 6)
    assert [(each.kind, each.step, each.since) for each in notices] == [("kl_growth", 13, None), ("kl_growth", 45, 13)]
    assert notices[0].text == "the KL to the reference is 2 nats per token (mean of 3 steps), after a median of 0.1"


def test_the_kl_in_the_loss_is_used_if_there_is_no_other(begins: Begins) -> None:
    growth = [0.1] * 10 + [2.0] * 5
    assert begins(loss__kl=growth) == begins(kl__reference=growth, loss__kl=growth) == [(13, "kl_growth")]


def test_responses_that_become_longer_without_a_gain_are_reported(observe: Callable) -> None:
    """Twice the 40 tokens of before is 80; the mean of three steps is 60 in step 11, and 80 and 100 in the next two."""
    notices = observe(length__mean=[40.0] * 10 + [100.0] * 70, reward__mean=[0.4, 0.42] * 40)
    assert [(each.kind, each.step, each.since) for each in notices] == [("length_growth", 13, None)]
    text = "responses have 100.0 tokens on average, after 40.0 up to step 5, while the reward went from 0.408 to 0.407"
    assert notices[0].text == text


def test_length_that_pays_or_grows_over_hundreds_of_steps_is_not_reported(begins: Begins) -> None:
    grown = [40.0] * 10 + [100.0] * 20
    assert begins(length__mean=grown, reward__mean=[0.4] * 10 + [0.6] * 20) == []
    assert begins(length__mean=[200.0 + 2 * step for step in range(300)], reward__mean=[0.4, 0.42] * 150) == []
    assert begins(length__mean=[4.0] * 10 + [12.0] * 20, reward__mean=[0.4, 0.42] * 15) == [], "8 tokens more"
    assert begins(length__mean=[20.0, 80.0] * 10 + [80.0, 120.0] * 3, reward__mean=[0.4, 0.42] * 13) == [], "noise"


def test_a_length_that_returns_is_reported_as_over(observe: Callable) -> None:
    """Half of the growth from 40 to 100 is left at 70; with three steps at 40 it is over in the fifth."""
    notices = observe(length__mean=[40.0] * 10 + [100.0] * 10 + [40.0] * 10, reward__mean=[0.4] * 30)
    assert [(each.step, each.since) for each in notices] == [(13, None), (24, 13)]


def test_responses_that_become_very_short_without_a_gain_are_reported(begins: Begins) -> None:
    short = [200.0] * 10 + [20.0] * 10
    assert begins(length__mean=short, reward__mean=[0.4] * 20) == [(13, "length_collapse")]
    assert begins(length__mean=short, reward__mean=[0.4] * 10 + [0.6] * 10) == []
    assert begins(length__mean=[200.0] * 10 + [90.0] * 10, reward__mean=[0.4] * 20) == [], "45 % are left"


def test_a_growing_share_of_truncated_responses_is_reported(begins: Begins) -> None:
    more, rewards = [0.1] * 10 + [0.6] * 10, [0.4] * 20
    assert begins(length__truncated=more, reward__mean=rewards) == [(13, "truncation")]
    assert begins(length__truncated=[0.9] * 20, reward__mean=rewards) == [], "as many as from the start"
    assert begins(length__truncated=[0.1] * 10 + [0.45] * 10, reward__mean=rewards) == []
    few = {"trained__groups": [4.0] * 20}
    assert begins(length__truncated=[0.3] * 10 + [0.6] * 10, reward__mean=rewards, **few) == [], "chance in 4 groups"


def test_a_mismatch_that_grows_is_reported(begins: Begins, observe: Callable) -> None:
    """The mean of five steps is above 0.02, and above three times 0.004, once two of them have 0.05."""
    assert begins(sampler_mismatch__mean=[0.004] * 20 + [0.05] * 10) == [(22, "sampler_mismatch")]
    assert begins(sampler_mismatch__mean=[0.001] * 20 + [0.015] * 10) == [], "as different as engines are"
    assert begins(sampler_mismatch__mean=[0.03] * 20 + [0.08] * 10) == [], "less than three times"
    notices = observe(sampler_mismatch__mean=[0.004] * 20 + [0.05] * 10 + [0.004] * 12)
    assert [(each.step, each.since) for each in notices] == [(22, None), (39, 22)], "five calm steps after five without"


def test_stale_tokens_have_a_mismatch_of_their_own(begins: Begins) -> None:
    mismatch, stale = [0.0] * 5 + [0.15] * 20, [0.0] * 5 + [1.0] * 20
    assert begins(sampler_mismatch__mean=mismatch, staleness__mean=stale) == []
    growing = [0.0] * 5 + [0.05] * 10 + [0.4] * 10
    assert begins(sampler_mismatch__mean=growing, staleness__mean=stale) == [(18, "sampler_mismatch")]


@pytest.mark.parametrize("policy", ["", "policy__x__"])
def test_stale_tokens_far_from_the_policy_are_reported_unless_they_are_corrected(
    observe: Callable, policy: str
) -> None:
    far = {f"{policy}sampler_mismatch__mean": [0.25] * 20, "staleness__mean": [1.0] * 20}
    (notice,) = observe(uncorrected=True, **far)
    assert (notice.kind, notice.step) == ("stale_tokens", 5)
    assert notice.text.startswith("tokens are 1.00 steps old and 0.25 nats from the trained policy on average")
    assert not observe(uncorrected=False, **far)
    assert not observe(uncorrected=True, **{**far, f"{policy}sampler_mismatch__mean": [0.15] * 20})
    assert not observe(uncorrected=True, **{**far, "staleness__mean": [0.0] * 20})


def test_a_gradient_norm_of_ten_times_its_median_is_reported_once(observe: Callable, begins: Begins) -> None:
    notices = observe(loss__grad_norm=[1.0] * 20 + [12.0] * 40 + [2.0] * 10)
    assert [(each.kind, each.step, each.since) for each in notices] == [
        ("gradient_growth", 23, None),
        ("gradient_growth", 63, 23),
    ]
    assert begins(loss__grad_norm=[1.0] * 20 + [50.0, 50.0, 1.0] * 5) == [], "never three in a row"
    assert begins(loss__grad_norm=[1.0] * 20 + [9.0] * 20) == []
    assert begins(loss__grad_norm=[0.0] * 30 + [0.5] * 20) == [], "steps without a signal are left out"


def test_refused_updates_are_reported_until_ten_steps_are_without(observe: Callable) -> None:
    notices = observe(loss__refused=[0.0] * 3 + [1.0, 0.0, 2.0] + [0.0] * 12)
    assert [(each.kind, each.step, each.since) for each in notices] == [
        ("refused_updates", 4, None),
        ("refused_updates", 16, 4),
    ]
