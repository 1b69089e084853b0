"""The load on the reward pool, and what is said of how it was borne."""

import itertools

import pytest

from benchmarks.reward_pool import Load, Served, arrivals, described, timed_math
from roll.types import Score


def test_arrivals_are_poisson_at_their_rates_and_the_same_for_the_same_seed():
    rates = {"math": 64.0, "code": 20.0}
    found = arrivals(rates, 20.0)
    assert found == arrivals(rates, 20.0) and found != arrivals(rates, 20.0, seed=1)
    moments = [arrival.at_s for arrival in found]
    assert moments == sorted(moments) and moments[0] > 0 and moments[-1] < 20.0
    for reward, rate in rates.items():
        number = sum(arrival.reward == reward for arrival in found)
        assert number == pytest.approx(20.0 * rate, rel=0.15)  # its deviation is 3 % of 1280, 5 % of 400
    gaps = [later - earlier for earlier, later in itertools.pairwise(moments)]
    assert max(gaps) > 4 * sum(gaps) / len(gaps), "they do not come in step"


def test_the_load_is_what_the_pool_has_to_bear():
    assert (Load().math, Load().code, Load().duration_s) == (64.0, 20.0, 20.0)


def test_a_timed_reward_scores_as_the_reward_itself_and_says_how_long_it_took():
    for arrival in arrivals({"math": 64.0}, 2.0):
        if "sqrt" not in arrival.task.answer:  # that one needs another process
            score = timed_math(arrival.task, arrival.reply)
            assert score == Score(arrival.task.metadata["right"], score.parts) and score.parts["took_s"] > 0


def test_what_the_pool_adds_is_the_whole_time_less_the_scoring():
    served = [Served("math", total_s, 0.002) for total_s in (0.003, 0.004, 0.102)]
    # 1, 2 and 100 ms were added; of three the 95th percentile is the second
    assert described(served, 2.0) == {
        "per_s": 1.5,
        "added_median_ms": 2.0,
        "added_p95_ms": 2.0,
        "scoring_median_ms": 2.0,
    }
