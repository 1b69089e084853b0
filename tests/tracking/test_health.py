"""Warnings about a reward that collapses and about stale tokens, with numbers worked out by hand."""

from collections.abc import Iterable

from roll.tracking.health import HealthMonitor, RewardMonitor


def collapses(rewards: Iterable[float]) -> list[int]:
    """The steps that report a collapse; the first is 1."""
    monitor = RewardMonitor()
    return [step for step, reward in enumerate(rewards, 1) if monitor.observe(step, reward)]


def test_a_reward_that_falls_to_nothing_is_reported_once() -> None:
    assert collapses([0.4] * 10 + [0.0] * 20) == [15], "the limit is 0.2, and five steps are below it"


def test_a_fall_by_less_than_half_is_not_reported() -> None:
    assert collapses([0.4] * 10 + [0.21] * 20) == []
    assert collapses([0.4] * 10 + [0.0] * 4 + [0.4] + [0.0] * 4 + [0.4]) == [], "never five in a row"


def test_a_second_collapse_is_reported_after_a_recovery() -> None:
    assert collapses([0.4] * 5 + [0.0] * 5 + [0.4] * 5 + [0.0] * 5) == [10, 20]
    assert collapses([0.4] * 5 + [0.0] * 5 + [0.25] * 5 + [0.0] * 5) == [10], "0.25 is below 0.4 - 0.1"


def test_a_negative_reward_collapses_by_half_of_its_best() -> None:
    assert collapses([-1.0] * 5 + [-1.4] * 5) == [] and collapses([-1.0] * 5 + [-1.6] * 5) == [10]


def test_a_gain_counts_where_the_best_is_near_zero() -> None:
    assert collapses([-2.0] * 5 + [0.0] * 5 + [-0.9] * 5) == []
    assert collapses([-2.0] * 5 + [0.0] * 5 + [-1.1] * 5) == [15], "half of the gain of 2 is lost"


def test_noise_around_a_small_reward_is_no_collapse() -> None:
    noisy = [0.0, 0.02, 0.0, 0.0, 0.03, *[0.0] * 20]  # mean 0.01, two standard deviations are 0.025
    assert collapses(noisy) == []


def observed(monitor: HealthMonitor, steps: range, **metrics: float) -> list[str]:
    return [
        line for step in steps for line in monitor.observe(step, {n.replace("__", "/"): v for n, v in metrics.items()})
    ]


def test_the_warning_names_what_changed_and_what_to_try() -> None:
    monitor = HealthMonitor(uncorrected=False)
    assert not observed(monitor, range(1, 6), reward__mean=0.4, loss__entropy=1.5, loss__lr=0.01)
    (line,) = observed(monitor, range(6, 30), reward__mean=0.0, loss__entropy=0.02, loss__lr=0.01, staleness__mean=1.0)
    assert line.startswith("step 10: the reward has fallen to 0.000, from 0.400 at step 5 (means of 5 steps); ")
    assert "loss/entropy 1.5 -> 0.02, loss/lr 0.01 -> 0.01;" in line
    assert "actor_train.optimizer.lr" in line and "algorithm.correction" not in line


def test_a_collapse_with_stale_tokens_and_no_correction_names_the_key_that_corrects() -> None:
    monitor = HealthMonitor(uncorrected=True)
    observed(monitor, range(1, 6), reward__mean=0.4)
    (line,) = observed(monitor, range(6, 30), reward__mean=0.0, staleness__mean=1.0)
    assert "tokens are stale and uncorrected: set algorithm.correction;" in line


def test_stale_tokens_far_from_the_policy_are_reported_once_unless_they_are_corrected() -> None:
    far = {"staleness__mean": 1.0, "sampler_mismatch__mean": 0.25}
    (line,) = observed(HealthMonitor(uncorrected=True), range(1, 20), **far)
    assert line.startswith("step 5: tokens are 1.00 steps old and 0.25 nats from the trained policy on average")
    assert "set algorithm.correction" in line
    assert not observed(HealthMonitor(uncorrected=False), range(1, 20), **far)
    assert not observed(HealthMonitor(uncorrected=True), range(1, 20), staleness__mean=1.0, sampler_mismatch__mean=0.15)
    assert not observed(HealthMonitor(uncorrected=True), range(1, 20), staleness__mean=0.0, sampler_mismatch__mean=0.3)


def test_steps_without_a_reward_and_values_that_are_not_finite_are_left_out() -> None:
    monitor = HealthMonitor(uncorrected=True)
    assert not monitor.observe(0, {"validation/accuracy": 0.5}) and not monitor.observe(1, {"reward/mean": None})
