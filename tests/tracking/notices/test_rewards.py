"""Detectors of rewards and validations, on made-up series with numbers worked out by hand."""

import math
from collections.abc import Callable

import pytest

from roll.tracking.notices.windows import Fall, error_of_mean, noise, noise_of_difference

Begins = Callable[..., list[tuple[int, str]]]


def test_noise_is_measured_by_the_differences_of_adjacent_steps() -> None:
    assert noise([1.0]) == noise([2.0, 2.0, 2.0]) == 0.0
    assert noise([0.0, 1.0, 0.0, 1.0]) == pytest.approx(math.sqrt(math.pi) / 2)
    assert noise([0.0, 0.1, 0.2, 0.3]) == pytest.approx(noise([5.0, 5.1, 5.0, 5.1])), "a trend is no more than a step"
    assert noise_of_difference(0.1, 4, 4) == pytest.approx(0.1 / math.sqrt(2))
    assert error_of_mean([0.3, 0.4]) == pytest.approx(0.25) and error_of_mean([]) == 0.0


def test_a_reward_that_falls_to_nothing_is_reported_once(begins: Begins) -> None:
    """The best is 0.4 and the limit 0.267. Three steps are below it in step 13, where the mean of five is 0.16."""
    assert begins(reward__mean=[0.4] * 10 + [0.0] * 20) == [(13, "reward_collapse")]


def test_a_fall_by_less_than_a_third_is_not_reported(begins: Begins) -> None:
    assert begins(reward__mean=[0.4] * 10 + [0.27] * 20) == []
    assert begins(reward__mean=[0.4] * 10 + [0.26] * 20) == [(15, "reward_collapse")], "all five have to be there"
    assert begins(reward__mean=[0.4] * 10 + [0.0, 0.0, 0.4] * 4) == [], "never three in a row"


def test_a_collapse_is_over_at_half_of_the_margin_and_may_come_again(observe: Callable) -> None:
    """The margin is 0.133, so a mean of 0.333 is a recovery; it has to last for three steps."""
    notices = observe(reward__mean=[0.4] * 5 + [0.0] * 5 + [0.4] * 10 + [0.0] * 5)
    assert [(each.step, each.since) for each in notices] == [(8, None), (17, 8), (23, None)]
    assert "the reward is 0.400 again" in notices[1].text
    partly = observe(reward__mean=[0.4] * 5 + [0.0] * 5 + [0.3] * 10 + [0.0] * 5)
    assert [each.step for each in partly] == [8]


def test_a_negative_reward_collapses_by_a_third_of_its_best(begins: Begins) -> None:
    assert begins(reward__mean=[-1.0] * 5 + [-1.3] * 5) == []
    assert begins(reward__mean=[-1.0] * 5 + [-1.4] * 5) == [(10, "reward_collapse")]


def test_half_of_the_gain_counts_where_the_best_is_near_zero(begins: Begins) -> None:
    """The jump from -2 to 0 is noise of 0.42 in a step, or 1.07 in the difference of two means, times four."""
    slowly = [-2.0 + 0.05 * step for step in range(40)] + [0.0] * 10
    assert begins(reward__mean=slowly + [-0.9] * 10) == []
    assert begins(reward__mean=slowly + [-1.1] * 10) == [(55, "reward_collapse")]


def test_noise_around_a_small_reward_is_no_collapse(begins: Begins) -> None:
    assert begins(reward__mean=[0.0, 0.02, 0.0, 0.0, 0.03, *[0.0] * 20]) == []


def test_one_good_step_is_enough_if_its_standard_error_is_known() -> None:
    """0.28 +- 0.05 is the best; the mean of five steps is 0.056 in step 5, and 0 in step 6."""
    known, unknown = Fall(), Fall()
    errors = [0.05] + [0.01] * 9
    values = [0.28] + [0.0] * 9
    falls = [known.observe(step, *pair) for step, pair in enumerate(zip(values, errors, strict=True), 1)]
    assert falls.index(True) + 1 == 5 and all(falls[4:])
    assert True not in [unknown.observe(step, value) for step, value in enumerate(values, 1)]
    wide = Fall()
    assert True not in [wide.observe(step, value, 0.3 if value else 0.0) for step, value in enumerate(values, 1)]


def test_the_notice_of_a_collapse_has_the_numbers_that_changed(observe: Callable) -> None:
    rewards, entropies = [0.4] * 5 + [0.0] * 5, [1.5] * 5 + [0.5] * 5
    (notice,) = observe(
        reward__mean=rewards, loss__entropy=entropies, domain__a__reward=rewards, domain__b__reward=rewards
    )
    start = (
        "the reward fell to 0.160, from 0.400 at step 5 (means of up to 5 steps); since then loss/entropy 1.5 -> 0.5"
    )
    assert notice.text == f"{start}, domain/a/reward 0.4 -> 0, domain/b/reward 0.4 -> 0"


@pytest.mark.parametrize(("after", "verb"), [(0.0, "fell from 0.500 to 0.000"), (1.0, "jumped from 0.500 to 1.000")])
def test_a_domain_that_changes_within_a_step_while_others_go_on_is_reported(
    observe: Callable, after: float, verb: str
) -> None:
    going_on = [0.40, 0.42] * 10
    notices = observe(domain__math__reward=[0.5] * 12 + [after] * 8, domain__code__reward=going_on)
    ((notice,),) = [[each for each in notices if each.kind == "domain_break"]]
    assert (notice.step, notice.domain, notice.metric, notice.since) == (15, "math", "domain/math/reward", None)
    assert verb in notice.text and "since about step 13" in notice.text and "other domains is 0.407" in notice.text


def test_a_domain_that_breaks_and_is_repaired_is_reported_as_over(observe: Callable) -> None:
    broken = [0.5] * 12 + [0.0] * 8 + [0.5] * 8
    notices = observe(domain__math__reward=broken, domain__code__reward=[0.4] * 28)
    assert [(each.kind, each.step, each.since) for each in notices] == [
        ("domain_break", 15, None),
        ("domain_break", 26, 15),
    ]


def test_domains_that_change_together_or_slowly_do_not_break(begins: Begins) -> None:
    fall, rise = [0.5] * 12 + [0.0] * 8, [0.05 * step for step in range(20)]
    assert begins(domain__a__reward=fall, domain__b__reward=fall) == []
    assert begins(domain__a__reward=rise, domain__b__reward=[0.4] * 20) == [], "learning takes more than one step"
    assert begins(domain__a__reward=fall) == [], "alone it is the reward of the run"
    little = [0.5] * 12 + [0.36] * 8
    assert begins(domain__a__reward=little, domain__b__reward=[0.4] * 20) == [], "less than a third"


def test_a_domain_with_few_groups_may_jump(begins: Begins) -> None:
    """The difference of 10 and 3 steps has 0.66 times the error of a step: 0.35 with 2 groups, 0.0625 with 64."""
    fall = {"domain__a__reward": [0.5] * 12 + [0.0] * 4, "domain__a__std": [0.5] * 12 + [0.0] * 4}
    others = {"domain__b__reward": [0.4] * 16}
    assert begins(**fall, **others, domain__a__groups=[2.0] * 16) == []
    assert begins(**fall, **others, domain__a__groups=[64.0] * 16) == [(15, "domain_break")]


def test_a_domain_that_falls_slowly_is_reported_if_no_other_falls(begins: Begins) -> None:
    slow = [0.6] * 5 + [0.6 - 0.02 * step for step in range(1, 21)]
    assert begins(domain__a__reward=slow, domain__b__reward=[0.4] * 25) == [(18, "domain_break")], "a mean of 0.38"
    assert begins(domain__a__reward=slow, domain__b__reward=slow) == []


def test_equal_rewards_of_all_siblings_are_reported_after_ten_steps(observe: Callable) -> None:
    notices = observe(domain__a__uniform=[1.0] * 15 + [0.5] * 2, domain__a__reward=[0.5] * 17)
    assert [(each.step, each.domain, each.since) for each in notices] == [(10, "a", None), (16, "a", 10)]
    assert notices[0].text == "every attempt got 0.5 in 10 steps in a row"
    (by_task,) = observe(domain__a__uniform=[1.0] * 12, domain__a__reward=[0.4, 0.6] * 6)
    assert "attempts at one task always get equal rewards (0.4 to 0.6 on average)" in by_task.text
    assert observe(domain__a__uniform=[1.0] * 9 + [0.9], domain__a__reward=[0.0] * 10) == []


def test_a_domain_that_is_solved_is_no_constant_reward(begins: Begins) -> None:
    rewards = [0.2, 0.6, 0.9] + [1.0] * 20
    assert begins(domain__a__uniform=[0.1, 0.3, 0.8] + [1.0] * 20, domain__a__reward=rewards) == []
    lost = [0.2, 0.6, 0.9] + [0.0] * 20
    assert begins(domain__a__uniform=[0.1, 0.3, 0.8] + [1.0] * 20, domain__a__reward=lost) == [(13, "constant_reward")]


def test_steps_without_signal_are_reported_if_groups_are_filtered(observe: Callable) -> None:
    """Of 80 complete groups 8 are trained on: a tenth."""
    notices = observe(trained__groups=[8.0] * 12, trained__uniform=[0.0] * 12, filtered__groups=[72.0] * 6 + [8.0] * 6)
    assert [(each.kind, each.step, each.since) for each in notices] == [("no_signal", 5, None), ("no_signal", 11, 5)]
    assert notices[0].text.endswith("differ in at most 10% of the complete groups (360 of 400 were filtered)")


def test_steps_without_signal_are_reported_if_no_filter_removes_them(begins: Begins) -> None:
    groups, rewards = [16.0] * 20, [0.5] * 5 + [0.4] * 15
    assert begins(trained__groups=groups, trained__uniform=[0.5] * 10 + [0.95] * 10, reward__mean=rewards) == [
        (15, "no_signal")
    ]
    assert begins(trained__groups=groups, trained__uniform=[0.5] * 10 + [0.85] * 10, reward__mean=rewards) == []
    assert begins(trained__groups=groups, trained__uniform=[0.95] * 20, reward__mean=rewards) == [], "from the start"
    learned = [0.05 * step for step in range(20)]
    assert begins(trained__groups=groups, trained__uniform=[0.5] * 10 + [0.95] * 10, reward__mean=learned) == []


def test_a_validation_falls_by_four_standard_errors(begins: Begins) -> None:
    """Of 400 tasks half are right: the error is 0.025, that of a difference 0.035, so that 0.141 is four times that."""
    common = {"validation__std": [0.5] * 3, "validation__tasks": [400.0] * 3}
    assert begins(validation__reward=[0.5, 0.35, 0.5], **common) == [(2, "validation_fall")]
    assert begins(validation__reward=[0.5, 0.37, 0.5], **common) == [], "3.7 times, and only once"
    assert begins(validation__reward=[0.5, 0.37, 0.37], **common) == [(3, "validation_fall")]
    assert begins(validation__reward=[0.5, 0.35, 0.35]) == [], "the error is unknown"
    few = {"validation__std": [0.5] * 3, "validation__tasks": [20.0] * 3}
    assert begins(validation__reward=[0.5, 0.25, 0.25], **few) == []
    many = {"validation__std": [0.5] * 3, "validation__tasks": [1e6] * 3}
    assert begins(validation__reward=[0.5, 0.46, 0.46], **many) == [], "less than a tenth of the best"


def test_the_validation_of_one_source_falls_and_recovers(observe: Callable) -> None:
    rewards: list[float | None] = [0.5, None, 0.2, None, 0.2, None, 0.5]
    known = {"validation__math__std": [0.5] * 7, "validation__math__tasks": [400.0] * 7}
    notices = observe(validation__math__reward=rewards, **known)
    assert [(each.step, each.domain, each.since) for each in notices] == [(3, "math", None), (7, "math", 3)]
    assert notices[0].text == "the held-out reward is 0.200, after 0.500 at step 1 (standard error 0.025)"
