"""Parts of words in texts."""

import pytest

from roll.rewards.math.word_parts import WordParts

DENIES = WordParts(("wrong", "n't", " out", "if ", "no sense"))
OTHER = WordParts(("half",))


@pytest.mark.parametrize(
    "text",
    [
        "That is WRONG.",
        "it isn't 5",
        "rule it out",
        "outside",
        "5 if x",
        "it makes no sense",
        "wrong" * 20,
        "x " * 5000 + "wrong",
    ],
)
def test_a_part_of_a_word_is_seen_in_any_case(text: str) -> None:
    assert DENIES(text) and not OTHER(text)


@pytest.mark.parametrize("text", ["", "5", "without", "different", "iffy 12.5%", "x" * 5000])
def test_other_words_are_not(text: str) -> None:
    assert not DENIES(text)


def test_a_set_that_is_added_later_sees_words_that_were_searched_before() -> None:
    assert not OTHER("a quarter")
    assert WordParts(("quarter",))("a quarter") and not OTHER("a quarter")
