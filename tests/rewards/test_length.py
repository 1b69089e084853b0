"""Length within a range."""

from typing import Any

import pytest

from roll.errors import ConfigError
from roll.rewards.text import length
from roll.types import Score, Task

TASK = Task(id="t", domain="d")


def test_it_is_flat_within_the_range_and_falls_in_a_line_outside():
    responses = ["x " * count for count in (0, 1, 3, 5, 7, 9, 10, 14, 15, 99)]
    values = [length(TASK, response, low=5, high=9, margin=5).value for response in responses]
    assert values == pytest.approx([0.0, 0.2, 0.6, 1.0, 1.0, 1.0, 0.8, 0.0, 0.0, 0.0])


def test_without_a_margin_the_range_has_hard_edges():
    assert [length(TASK, "x " * count, low=1, high=2).value for count in (0, 1, 2, 3)] == [0, 1, 1, 0]


def test_characters_may_be_counted_and_the_count_is_a_part():
    assert length(TASK, "ab c", high=4, unit="characters") == Score(1.0, {"characters": 4.0})
    assert length(TASK, "ab c", high=1, margin=4) == Score(0.75, {"words": 2.0})


def test_each_character_of_a_script_without_spaces_counts_as_a_word():
    assert length(TASK, "我 like 学习", high=4).parts == {"words": 4.0}
    assert length(TASK, "我喜欢学习" * 100, high=200, margin=300) == Score(0.0, {"words": 500.0})
    assert length(TASK, "ที่นี่", high=9).parts == {"words": 2.0}  # two letters, each with its marks


def test_a_long_run_without_spaces_is_not_one_word():
    assert length(TASK, "x" * 30, high=9).parts == {"words": 1.0}
    assert length(TASK, "x" * 80, high=9).parts == {"words": 10.0}
    assert length(TASK, "abc" * 1_000, high=100).value == 0.0


@pytest.mark.parametrize(
    "options", [{"high": 1, "low": 2}, {"high": 1, "low": -1}, {"high": 1, "margin": -1}, {"high": 1, "unit": "tokens"}]
)
def test_a_range_that_is_none_is_refused(options: Any):
    with pytest.raises(ConfigError, match="reward 'length'"):
        length(TASK, "x", **options)
