"""A pattern that a response is to match."""

import pytest

from roll.errors import ConfigError
from roll.rewards.text import regex
from roll.types import Task

TASK = Task(id="t", domain="d", metadata={"pattern": r"\d{4}"})


def test_the_pattern_is_found_anywhere_or_must_be_all():
    responses = ("in 1998.", "1998", "199", "")
    assert [regex(TASK, response).value for response in responses] == [1, 1, 0, 0]
    assert [regex(TASK, response, whole=True).value for response in responses] == [0, 1, 0, 0]


def test_a_pattern_that_is_given_goes_before_the_tasks_own():
    assert regex(TASK, "yes", pattern="(?i)YES").value == 1.0


def test_a_response_beyond_a_million_characters_matches_nothing():
    assert regex(TASK, "a" * 10**6, pattern="a").value == 1.0
    assert regex(TASK, "a" * (10**6 + 1), pattern="").value == 0.0


def test_without_a_pattern_or_with_a_broken_one_it_is_refused():
    with pytest.raises(ConfigError, match="'t': no pattern"):
        regex(Task(id="t", domain="d"), "x")
    with pytest.raises(ConfigError, match="Python cannot read it"):
        regex(TASK, "x", pattern="(")
