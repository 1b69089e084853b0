"""Parsing of actions from arbitrary responses."""

import pytest

from roll.envs.actions import MOVES, ActionCounts, extract_action, parse_choice

UNCLOSED = ["<answer>", "</answer>", "</answer><answer>"]
HOSTILE = ["", " ", "\x00", "u" * 100_000, "up down", "upp", "ùp", "\ud800", *UNCLOSED]


@pytest.mark.parametrize(
    ("reply", "move"),
    [("up", "up"), (" Down\n", "down"), ("L", "left"), ("r", "right"), ("UP", "up")],
)
def test_words_and_letters_are_moves_in_any_case(reply: str, move: str):
    assert parse_choice(reply, MOVES) == move


@pytest.mark.parametrize("reply", HOSTILE)
@pytest.mark.parametrize("tag", ["", "answer"])
def test_an_unparsable_response_is_no_action_and_no_error(reply: str, tag: str):
    assert parse_choice(reply, MOVES, tag) is None


@pytest.mark.parametrize(
    ("reply", "text"),
    [
        ("I go <answer> up </answer>.", "up"),
        ("<answer>up</answer> no, <answer>down</answer>", "down"),
        ("<answer><answer>up</answer>", "up"),
        ("<answer>up</answer><answer>", "up"),
        ("up", None),
        ("<answer>up", None),
        ("up</answer>", None),
        ("</answer>up<answer>", None),
    ],
)
def test_within_a_tag_the_last_one_that_is_closed_counts(reply: str, text: str | None):
    assert extract_action(reply, "answer") == text


def test_rates_are_parts_of_all_turns():
    tally = ActionCounts()
    for valid, effective in ((True, True), (True, False), (False, False), (True, True)):
        tally.add(valid=valid, effective=effective)
    wanted = {"success": 1.0, "turns": 4.0, "valid_actions": 0.75, "effective_actions": 0.5}
    assert tally.metrics(success=True) == wanted
