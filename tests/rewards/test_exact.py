"""The exact-match verifier."""

import pytest

from roll.errors import ConfigError
from roll.rewards.text import exact
from roll.types import Task


def test_only_the_stripped_answer_itself_is_right():
    task = Task(id="1", domain="d", answer="64")
    assert [exact(task, response).value for response in ("64", " 64\n", "46", "64.", "", "6 4")] == [1, 1, 0, 0, 0, 0]


def test_any_alias_is_right():
    task = Task(id="1", domain="d", answer=["Paris", " paris "])
    assert [exact(task, response).value for response in ("Paris", "paris", "PARIS")] == [1, 1, 0]


def test_a_task_without_an_answer_is_refused():
    with pytest.raises(ConfigError, match="'1': no answer"):
        exact(Task(id="1", domain="d"), "")
