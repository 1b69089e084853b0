"""What counts as an action, whatever a policy writes."""

import pytest

from roll.envs.actions import MOVES, Tally, chosen, inside

UNCLOSED = ["<answer>", "</answer>", "</answer><answer>"]
HOSTILE = ["", " ", "\x00", "u" * 100_000, "up down", "upp", "ùp", "\ud800", *UNCLOSED]


@pytest.mark.parametrize(
    ("reply", "move"),
    [("up", "up"), (" Down\n", "down"), ("L", "left"), ("r", "right"), ("UP", "up")],
)
def test_words_and_letters_are_moves_in_any_case(reply: str, move: str):
    assert chosen(reply, MOVES) == move


@pytest.mark.parametrize("reply", HOSTILE)
@pytest.mark.parametrize("tag", ["", "answer"])
def test_what_cannot_be_read_is_no_action_and_no_error(reply: str, tag: str):
    assert chosen(reply, MOVES, tag) is None


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
    assert inside(reply, "answer") == text


def test_rates_are_parts_of_all_turns():
    tally = Tally()
    for valid, effective in ((True, True), (True, False), (False, False), (True, True)):
        tally.add(valid=valid, effective=effective)
    wanted = {"success": 1.0, "turns": 4.0, "valid_actions": 0.75, "effective_actions": 0.5}
    assert tally.metrics(success=True) == wanted
