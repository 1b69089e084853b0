"""Replies to mathematical tasks, made by rules, with the score that each must get."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from benchmarks.surface_forms.math_answers import FAMILIES, Case
from benchmarks.surface_forms.row import Row

_BOXED = (
    r"\boxed{@}",
    r"The answer is \boxed{@}.",
    r"Adding the parts gives $\boxed{@}$.",
    r"$$\boxed{@}$$",
    r"\[ \boxed{@} \]",
    r"**Final answer:** $\boxed{@}$",
    r"<answer>\boxed{@}</answer>",
    r"<think>Perhaps 5? No.</think> It is \boxed{@}.",
    r"My first idea was \boxed{1000001}. It does not fit the second condition, so the answer is \boxed{@}.",
    r"There is no other solution, so we report \boxed{@}.",
    r"It is not hard to see that the value is \boxed{@}.",
    r"\boxed{@} is the value we wanted, and 3 checks confirm it.",
    r"The number of cases that are not counted twice is \boxed{@}.",
    "We have two conditions.\n\nBoth hold for \\boxed{@}\n\nThis does not depend on the order.",
)
_FORMULAS = (
    "The answer is $@$.",
    r"The answer is \(@\).",
    "**Answer:** $@$",
    r"Final answer: \(@\)",
    "The final answer is:\n\\[\n@\n\\]",
    "The answer is **$@$**.",
    "The answer is $@$, because all other terms cancel in 2 steps.",
    "<answer>$@$</answer>",
    "<think>Is it 4?</think>\n<answer>@</answer>",
    "We simplify twice.\n#### $@$",
    "We simplify both sides.\n\nTherefore, the value is $@$.",
    "Hence we obtain **$@$**.",
    "So the result is $$@$$",
)
_TEXTS = (
    "The answer is @.",
    "The answer is **@**.",
    "**Answer:** @",
    "Final answer: @",
    "The final answer is @, after 3 steps.",
    "Answer: @\n\nThis uses the second condition.",
    "<answer>@</answer>",
    "<answer> @ </answer>",
    "We add both numbers.\n#### @",
    "So the answer is @, since the rest cancels.",
    "**The answer is @.**",
    "### Answer\n@",
)
_LAST_LINES = (
    "Both together have **@** in all.",
    "That makes @.",
    "First there are 3, then 4 more arrive.\nIn the end, @ remain.",
    "**@**",
    "So the total is @.",
    "x = @",
    "2 + 3 + (all the others) = @",
)
_DENIALS = (
    "The answer is not @.",
    "It is certainly not @.",
    "It cannot be @.",
    "It isn't @.",
    "The answer can't be @.",
    "I do not think that the answer is @.",
    "I doubt that the answer is @.",
    "It is false that the answer is @.",
    "@ is wrong.",
    "@ is not the answer.",
    "@ is incorrect.",
    "The answer is never @.",
    "The answer is anything but @.",
)
_CORRECTIONS = (
    "The answer is @. Wait, no, it is #.",
    "The answer is @. No wait, the answer is #.",
    "The answer is @. Scratch that: it is #.",
    "The answer is @. Correction: #.",
    "I get @. Oops, I made a mistake. The answer is #.",
    "The answer is @, sorry, #.",
)


def rows(count: int, seed: int = 0) -> Iterator[Row]:
    """The first `count` distinct replies of the seed."""
    rng, seen = Random(seed), set[tuple[str, str]]()
    while len(seen) < count:
        row = _row(rng, rng.choice(FAMILIES)(rng))
        if (row.answer, row.response) not in seen:
            seen.add((row.answer, row.response))
            yield row


def _row(rng: Random, case: Case) -> Row:
    draw = rng.random()
    if draw < 0.5:
        return _framed(rng, case, "boxed", _BOXED, text=False)
    if draw < 0.85:
        text = bool(case.right_text) and rng.random() < 0.6
        return _framed(rng, case, "unboxed", _TEXTS if text else _FORMULAS, text=text)
    if draw < 0.9 and case.answer.isdigit():
        number = case.answer if rng.random() < 0.5 else str(int(case.answer) + rng.randint(1, 9))
        response = rng.choice(_LAST_LINES).replace("@", number)
        return _made(case, "unboxed", response, float(number == case.answer), "in the last line")
    if draw < 0.95:
        boxed = rng.random() < 0.5
        value = rf"\boxed{{{case.answer}}}" if boxed else f"${case.answer}$"
        return _made(case, "negation", rng.choice(_DENIALS).replace("@", value), 0.0, "denied")
    return _corrected(rng, case)


def _framed(rng: Random, case: Case, kind: str, frames: tuple[str, ...], *, text: bool) -> Row:
    right = rng.random() < 0.5
    if text:
        notation, note = rng.choice(case.right_text if right else case.wrong_text)
    else:
        notation, note = rng.choice(case.right if right else case.wrong)
    return _made(case, kind, rng.choice(frames).replace("@", notation), float(right), note)


def _corrected(rng: Random, case: Case) -> Row:
    """Two values, of which the second counts."""
    other = str(rng.randint(10**7, 10**8))
    right = rng.random() < 0.5
    first, second = (other, case.answer) if right else (case.answer, other)
    boxed = rng.random() < 0.5
    first, second = (rf"\boxed{{{each}}}" if boxed else f"${each}$" for each in (first, second))
    response = rng.choice(_CORRECTIONS).replace("@", first).replace("#", second)
    return _made(case, "correction", response, float(right), "corrected")


def _made(case: Case, kind: str, response: str, expected: float, note: str) -> Row:
    return Row(verifier="math", kind=kind, answer=case.answer, response=response, expected=expected, note=note)
