"""Generated addition problems, which a small model can learn in minutes.

A quarter of all numbers is held out, selected by a hash of the number alone: for any size and seed, they are never an
operand of a training problem, and both operands of every held-out problem.
"""

from __future__ import annotations

import hashlib
import random

from roll.data.preferences import Preference
from roll.errors import ConfigError, UnknownName
from roll.types import Message, Task

_DEFAULT_COUNT = {"train": 10_000, "held_out": 500}


def sums(
    split: str = "train",
    digits: int = 2,
    reverse: bool = True,
    pad: bool = False,
    count: int | None = None,
    seed: int = 0,
) -> list[Task]:
    """Distinct additions such as `12+34=` of numbers with at most `digits` digits, in random order.

    With `reverse` the digits of an answer are reversed (`64` for 46), so that each digit comes after the carry it
    needs. With `pad` all operands have `digits` digits and all answers one more (`07+05=` is `210`, reversed). Without
    `count`: 500 held-out or 10,000 training problems, or all if there are fewer.
    """
    if split not in _DEFAULT_COUNT:
        raise UnknownName("split of arithmetic", split, _DEFAULT_COUNT)
    if not 1 <= digits <= 6:
        raise ConfigError(f"arithmetic: digits must be between 1 and 6 (got {digits}); change it")
    operands = [number for number in range(10**digits) if held_out(number) == (split == "held_out")]
    num_pairs = len(operands) ** 2
    num_problems = min(_DEFAULT_COUNT[split], num_pairs) if count is None else count
    if not 1 <= num_problems <= num_pairs:
        raise ConfigError(
            f"arithmetic: count must be between 1 and {num_pairs} for {split} problems with {digits} "
            f"digits (got {count}); change count or digits"
        )
    drawn = random.Random(seed).sample(range(num_pairs), num_problems)
    width = digits if pad else 0
    pairs = [(operands[pair // len(operands)], operands[pair % len(operands)]) for pair in drawn]
    return [_addition(left, right, width=width, reverse=reverse) for left, right in pairs]


def answer_pairs(
    split: str = "train", digits: int = 2, pad: bool = False, wrong: int = 1, near: float = 0.0, seed: int = 0
) -> list[Preference]:
    """The additions of `sums`, each with `wrong` pairs: the right answer is chosen, one with a wrong digit rejected.

    `near` is the share of pairs whose wrong digit is the next or the previous one, as after a wrong carry.
    """
    if wrong < 1:
        raise ConfigError(f"arithmetic: wrong must be 1 or more (got {wrong}); it is the number of pairs per problem")
    if not 0 <= near <= 1:
        raise ConfigError(f"arithmetic: near must be between 0 and 1 (got {near}); it is a share of the pairs")
    draw = random.Random(f"wrong {seed}")
    return [
        Preference(
            where=f"arithmetic {task.id}",
            messages=task.messages,
            replies=(Message("assistant", task.answer), Message("assistant", _wrong_answer(task.answer, draw, near))),
        )
        for task in sums(split=split, digits=digits, pad=pad, seed=seed)
        for _ in range(wrong)
    ]


def held_out(number: int) -> bool:
    """Whether `number` is held out of all training problems."""
    digest = hashlib.blake2b(f"operand-{number}".encode(), digest_size=8).digest()
    return digest[0] < 64  # a quarter of 256; this prefix reserves exactly 25 of the numbers below 100


def _addition(left: int, right: int, *, width: int, reverse: bool) -> Task:
    answer = f"{left + right:0{width + 1}d}"
    return Task(
        id=f"{left}+{right}",
        domain="arithmetic",
        messages=(Message("user", f"{left:0{width}d}+{right:0{width}d}="),),
        answer=answer[::-1] if reverse else answer,
    )


def _wrong_answer(answer: str, draw: random.Random, near: float) -> str:
    """The answer with another digit at one place."""
    position = draw.randrange(len(answer))
    by = draw.choice((1, 9)) if near and draw.random() < near else draw.randrange(1, 10)
    digit = (int(answer[position]) + by) % 10
    return f"{answer[:position]}{digit}{answer[position + 1 :]}"
