"""When the trainer's devices are worth lending, in numbers worked out by hand."""

from roll.serving.lending_rule import LendingRule


def rule_of(*waits_s: float, factor: float = 2.0, lent: bool = False) -> LendingRule:
    """Moves cost 3 + 5 s."""
    rule = LendingRule(factor)
    rule.record_lend(3.0)
    rule.record_return(5.0)
    for seconds in waits_s:
        rule.record_wait(seconds, lent=lent)
    return rule


def test_the_expected_wait_has_to_exceed_the_factor_times_both_moves() -> None:
    assert rule_of(17.0).pays(0.0)
    assert not rule_of(15.0).pays(0.0)
    assert rule_of(15.0, factor=1.5).pays(0.0)


def test_the_rest_of_a_wait_is_the_mean_rest_of_the_longer_ones() -> None:
    rule = rule_of(2.0, 2.0, 2.0, 30.0)
    assert rule.expected_s(0.0) == 9.0 and not rule.pays(0.0)
    assert rule.expected_s(2.0) == 28.0 and rule.pays(2.0)
    assert rule.expected_s(20.0) == 10.0 and not rule.pays(20.0)


def test_a_wait_longer_than_all_is_expected_to_last_as_long_again() -> None:
    rule = rule_of(4.0)
    assert not rule.pays(15.0) and rule.pays(17.0)


def test_old_waits_are_forgotten() -> None:
    assert rule_of(100.0, *[4.0] * 8).expected_s(0.0) == 4.0


def test_waits_that_lending_shortened_go_on_being_lent_until_they_cost_more_than_the_moves() -> None:
    assert not rule_of(10.0).pays(0.0)
    assert rule_of(10.0, lent=True).pays(0.0)
    assert not rule_of(7.0, lent=True).pays(0.0)


def test_the_newest_moves_count_half_and_one_that_was_not_measured_as_much_as_the_other() -> None:
    rule = LendingRule(2.0)
    assert rule.cost_s == 0.0
    rule.record_return(4.0)
    assert rule.cost_s == 8.0
    rule.record_lend(1.0)
    assert rule.cost_s == 5.0
    rule.record_return(6.0)
    assert rule.cost_s == 6.0
