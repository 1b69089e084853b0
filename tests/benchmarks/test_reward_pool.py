"""The load on the reward pool, and the summary of its timings."""

import itertools

import pytest

from benchmarks.reward_pool import Load, ScoreTiming, arrivals, score_math, summarise
from roll.types import Score

pytestmark = pytest.mark.slow


def test_arrivals_are_poisson_at_their_rates_and_the_same_for_the_same_seed():
    rates = {"math": 64.0, "code": 20.0}
    merged = arrivals(rates, 20.0)
    assert merged == arrivals(rates, 20.0) and merged != arrivals(rates, 20.0, seed=1)
    moments = [arrival.at_s for arrival in merged]
    assert moments == sorted(moments) and moments[0] > 0 and moments[-1] < 20.0
    for reward, rate in rates.items():
        number = sum(arrival.reward == reward for arrival in merged)
        assert number == pytest.approx(20.0 * rate, rel=0.15)  # the standard deviation is 3 % of 1280, 5 % of 400
    gaps = [later - earlier for earlier, later in itertools.pairwise(moments)]
    assert max(gaps) > 4 * sum(gaps) / len(gaps), "arrivals are not periodic"


def test_the_default_load_is_64_math_and_20_code_per_second():
    assert (Load().math, Load().code, Load().duration_s) == (64.0, 20.0, 20.0)


def test_a_timed_reward_has_the_same_score_and_its_seconds_as_a_part():
    for arrival in arrivals({"math": 64.0}, 2.0):
        if "sqrt" not in arrival.task.answer:  # roots need another process
            score = score_math(arrival.task, arrival.response)
            assert score == Score(arrival.task.metadata["right"], score.parts) and score.parts["took_s"] > 0


def test_added_latency_is_the_total_time_minus_the_scoring_time():
    timings = [ScoreTiming("math", total_s, 0.002) for total_s in (0.003, 0.004, 0.102)]
    # 1, 2 and 100 ms were added; of three the 95th percentile is the second
    assert summarise(timings, 2.0) == {
        "per_s": 1.5,
        "added_median_ms": 2.0,
        "added_p95_ms": 2.0,
        "scoring_median_ms": 2.0,
    }
