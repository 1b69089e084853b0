"""Signs of reward hacking over the steps of a run, with numbers worked out by hand."""

from collections.abc import Iterable
from typing import Any

from roll.tracking.hacks import REPEAT, DomainHistory, DomainStep, HackMonitor, Sign, find_signs, metric


def steps(num: int, **values: Any) -> list[DomainStep]:
    return [DomainStep(**{"reward": 0.5, "std": 0.5, **values})] * num


def signs(history: Iterable[DomainStep]) -> set[Sign]:
    """The signs after the last of these steps."""
    window = DomainHistory()
    for step in history:
        window.add(step)
    return set(find_signs(window))


def test_identical_responses_are_a_sign_after_three_steps() -> None:
    assert signs(steps(2, identical=1.0)) == set()
    assert signs(steps(3, identical=0.2)) == {"identical"}
    assert signs(steps(3, identical=0.19)) == set()
    assert signs([*steps(2, identical=1.0), *steps(1, identical=0.0)]) == set(), "not in every step"
    assert signs([*steps(2, identical=1.0), *steps(1)]) == set(), "too few rewarded responses in the last"


def test_the_words_of_a_grader_are_a_sign_when_their_share_grows() -> None:
    normal = steps(20, vocabulary=0.04)
    assert signs(normal) == set()
    assert signs([*normal, *steps(5, vocabulary=0.13)]) == {"vocabulary"}, "three times 0.04 is 0.12"
    assert signs([*normal, *steps(5, vocabulary=0.11)]) == set()
    assert signs([*steps(20, vocabulary=0.0), *steps(5, vocabulary=0.1)]) == {"vocabulary"}
    assert signs([*steps(20, vocabulary=0.0), *steps(5, vocabulary=0.09)]) == set()


def test_a_policy_that_always_used_these_words_is_reported_only_where_it_is_in_its_first_steps() -> None:
    assert signs(steps(3, vocabulary=0.3)) == {"vocabulary"}
    assert signs(steps(5, vocabulary=0.29)) == set()
    assert signs(steps(20, vocabulary=0.3)) == set(), "nothing has changed since the first steps"


def test_a_rise_with_shorter_responses_is_a_sign() -> None:
    before, after = steps(5, reward=0.3, length=100.0), steps(5, reward=0.55, length=60.0)
    assert signs([*before, *after]) == {"rise"}
    assert signs([*before, *steps(5, reward=0.54, length=60.0)]) == set(), "half of the deviation is 0.25"
    assert signs([*before, *steps(5, reward=0.55, length=61.0)]) == set(), "less than 40 % shorter"
    assert signs([*before, *steps(5, reward=0.05, length=10.0)]) == set(), "the reward falls"
    assert signs(after) == set(), "nothing to compare with"


def test_a_rise_with_less_diverse_responses_is_a_sign() -> None:
    before = steps(5, reward=-3.0, std=0.8, length=100.0, distinct=0.9)
    assert signs([*before, *steps(5, reward=-2.5, std=0.4, length=150.0, distinct=0.5)]) == {"rise"}
    assert signs([*before, *steps(5, reward=-2.5, std=0.4, length=150.0, distinct=0.8)]) == set()


def test_learning_from_no_reward_at_all_is_no_sign() -> None:
    """Without rewarded responses before the rise, there is no length to compare."""
    assert signs([*steps(5, reward=0.0, std=0.0), *steps(5, reward=0.9, std=0.3, length=5.0, distinct=0.1)]) == set()


def test_slow_learning_of_short_answers_is_no_sign() -> None:
    curve = [
        DomainStep(reward=index / 100, std=0.5, length=100.0 - index / 2, distinct=0.9 - index / 200, identical=0.05)
        for index in range(100)
    ]
    assert all(signs(curve[:index]) == set() for index in range(100))


def observe(monitor: HackMonitor, steps: range, **values: float) -> list[int]:
    """The steps with a report."""
    metrics = {metric("math", name): value for name, value in {"reward": 0.5, "std": 0.5, **values}.items()}
    return [step for step in steps if monitor.observe(step, metrics)]


def test_a_sign_is_repeated_after_fifty_steps() -> None:
    assert observe(HackMonitor(), range(1, 110), identical=1.0) == [3, 3 + REPEAT, 3 + 2 * REPEAT]


def test_domains_are_told_apart() -> None:
    monitor = HackMonitor()
    metrics: dict[str, float | None] = {"domain/a/reward": 1.0, "domain/a/std": 0.1, "rewarded/a/identical": 1.0}
    metrics |= {"domain/b/reward": 1.0, "domain/b/std": 0.1, "rewarded/b/identical": 0.0}
    metrics |= {"domain/c/reward": 1.0, "rewarded/a/length": None}
    assert [[domain for domain, _, _ in monitor.observe(step, metrics)] for step in (1, 2, 3)] == [[], [], ["a"]]


def test_a_resumed_monitor_continues_with_the_metrics_of_earlier_steps() -> None:
    monitor = HackMonitor()
    assert observe(monitor, range(1, 20), vocabulary=0.02) == []
    assert observe(monitor, range(20, 40), vocabulary=0.2) == [22], "the mean of five is (2 * 0.02 + 3 * 0.2) / 5"
