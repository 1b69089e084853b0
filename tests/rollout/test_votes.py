"""The majority over replies that reason before they answer, as `math` and `choice` read them."""

import pytest

from roll.rewards.choice import reward as choice
from roll.rewards.math import reward as math
from roll.rollout.validation import answer_of, majority
from roll.types import Spec

HALVES = [
    "<think>0.5? or 2</think>One of two parts, so the answer is 1/2.",
    "First I add: 1 + 1 = 2. Then I divide.\n\n\\boxed{\\frac{1}{2}}",
    "Half of it remains.\n#### 0.50",
]
TWOS = ["It must be \\boxed{2}.", "So 1 + 1 = 2"]
THINKING = "<think>It may be 7, or \\boxed{7}"

BLUES = [
    "Option A is red, and C is not even a colour. The answer is (B).",
    "<think>A? No: C.</think>It has the shortest wave.\n\\boxed{\\text{B}}",
    "Let me see.\nA is too warm.\nB. blue",
]
REDS = ["**Answer:** A", "Red is the warmest.\n\\boxed{A}"]


def chosen(reward: str, replies: list[str]) -> str | None:
    """The reply that speaks for the majority."""
    read = answer_of(Spec(reward))
    place = majority([read(reply) for reply in replies])
    return None if place is None else replies[place]


def test_responses_with_different_reasoning_and_the_same_answer_agree():
    # No two of these are the same text, so that by the whole reply the first, a 2 or an A, would win.
    assert chosen("math", [TWOS[0], *HALVES, TWOS[1]]) == HALVES[0]
    assert chosen("choice", [REDS[0], *BLUES, REDS[1]]) == BLUES[0]


def test_a_response_that_is_unfinished_or_claims_two_options_has_no_vote():
    assert chosen("math", [THINKING, THINKING, TWOS[0]]) == TWOS[0]
    assert chosen("math", [THINKING]) is None
    assert chosen("choice", ["The answer is A or B.", "The answer is A and B.", BLUES[0]]) == BLUES[0]


def test_the_first_of_several_rewards_with_answer_of_is_used():
    reward = Spec("weighted", {"rewards": [{"kind": "length"}, {"kind": "math"}]})
    assert [answer_of(reward)(reply) for reply in HALVES] == ["1/2"] * 3


@pytest.mark.parametrize(
    ("reply", "answer"),
    [
        ("\\boxed{12.0}", "12"),
        ("The answer is **1,200** apples", "1200"),
        ("x = -\\frac{10}{4}", "-5/2"),
        ("\\boxed{+007}", "7"),
        ("\\boxed{\\frac{1}{0}}", "1/0"),
        ("\\boxed{2\\sqrt{3}}", "2\\sqrt{3}"),
        ("\\boxed{" + "9" * 5000 + "}", "9" * 5000),
        ("", None),
        ("\\boxed{}", None),
    ],
)
def test_numbers_are_normalised_and_other_answers_stay_unchanged(reply: str, answer: str | None):
    assert math.answer_of(reply) == answer


@pytest.mark.parametrize(
    ("reply", "answer"),
    [
        ("b", "B"),
        ("The answer is 6,000 m. A is smaller.", "6000 m"),
        ("\\boxed{Six thousand}", "six thousand"),
        ("so it is\nvitamin c1.", "vitamin c1"),
        ("A or B", None),
        ("<think>B", None),
        ("", None),
    ],
)
def test_a_letter_is_the_answer_and_without_one_the_text_is(reply: str, answer: str | None):
    assert choice.answer_of(reply) == answer
