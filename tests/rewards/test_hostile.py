"""Every verifier that reads a reply as text, against thousands of replies made to break it."""

import itertools
import math
import random
import time
from collections.abc import Iterator
from typing import Any

from roll.registry import REWARDS
from roll.types import Score, Task

NUM_REPLIES = 5_000
LIMIT_S = 20.0
SLOW_S = 3.0

CASES: dict[str, tuple[Any, dict[str, Any], dict[str, Any]]] = {
    "exact": ("64", {}, {}),
    "math": (r"\frac{1}{2}", {}, {}),
    "choice": ("B", {"options": ["A) red", "B) blue", "C) 1/2"]}, {}),
    "f1": (["Andrew Johnson", "東京"], {}, {}),
    "regex": (None, {"pattern": r"(?s)<think>(.*)</think>\s*<answer>(\w+|\d+)*</answer>$"}, {}),
    "json_schema": (None, {"schema": {"type": "object", "properties": {"a": {"pattern": "(x+)+$"}}}}, {}),
    "format": (None, {}, {}),
    "length": (None, {}, {"low": 5, "high": 50, "margin": 10}),
    "repetition": (None, {}, {}),
    "ifeval": (
        None,
        {
            "instruction_id_list": ["punctuation:no_comma", "length_constraints:number_sentences"],
            "kwargs": [{}, {"relation": "at least", "num_sentences": 3}],
        },
        {},
    ),
}
"""By reward: a task's answer, its metadata, and the reward's options."""

NOT_TEXT = {"code", "judge", "model", "remote", "reasoning_gym", "test_cases"}
"""Rewards that need more than a task and a reply: a sandbox, another model, a service, a package."""

PIECES = [
    "\\boxed{", "}", "{", "\\text{", "\\frac{1}{2}", "\\", "$", "####", "answer is ", "Answer: ", "The answer is (B).",
    "<think>", "</think>", "<answer>", "</answer>", "```json\n", "```", '{"a": "xxxx!"}', "[", "]", "(", ")", "B", "A.",
    "C)", "1,", "9" * 50, "1/0", ".", ",", "-", "1e999", "NaN", " ", "\n", "\t", "\r", "\x00", "\x1b", "\x85", "\u2028",
    "\ud800", "\udfff", "\ufeff", "\u202e", "\u0301", "\u0327", "é", "ß", "İ", "答案是", "東京", "हिन्दी", "עברית", "😀",
    "\U0001f469\u200d\U0001f467", "the ", "a ", "word ", "x", "*", "**", "_", "<<", ">>", "* ", "P.S. ", '"', "'", "%s",
    "{0}", "NULL", "\uff22",
]  # fmt: skip


def replies() -> Iterator[str]:
    """Handmade ones first, then mixtures of pieces, repeated pieces and random characters."""
    yield from ("", " ", "\n" * 1000, "\x00", "\ud800", "<think>", "</think>", "B", "{}", "[" * 5000, "((((" * 1000)
    yield from (piece * (100_000 // len(piece)) for piece in PIECES[::4])
    yield from ("a" * 10**6, "word " * 200_000, "\\boxed{" * 140_000)
    source = random.Random(7)
    while True:
        yield "".join(source.choices(PIECES, k=source.randrange(40)))
        yield source.choice(PIECES) * source.randrange(200) + source.choice(PIECES)
        yield "".join(chr(source.randrange(0x110000)) for _ in range(source.randrange(60)))
        yield "".join(chr(source.randrange(128)) for _ in range(source.randrange(120)))


def test_every_reward_is_tried_here_or_needs_more_than_a_reply():
    assert set(REWARDS.targets) <= CASES.keys() | NOT_TEXT


def slowest_s(name: str, texts: list[str]) -> float:
    """The longest that the named reward takes over one of the texts; fails where it raises or leaves [0, 1]."""
    answer, metadata, options = CASES[name]
    task, reward, slowest = Task(id="t", domain="d", answer=answer, metadata=metadata), REWARDS[name], 0.0
    for text in texts:
        start = time.process_time()
        found = reward(task, text, **options)
        slowest = max(slowest, time.process_time() - start)
        found = found if isinstance(found, Score) else Score(float(found))
        assert 0.0 <= found.value <= 1.0, (name, text[:200])
        assert all(map(math.isfinite, found.parts.values())), (name, text[:200])
    return slowest


def test_no_reply_crashes_or_hangs_a_verifier():
    texts = list(itertools.islice(replies(), NUM_REPLIES))
    start = time.process_time()
    slow = {name: took for name in CASES if name in REWARDS.targets if (took := slowest_s(name, texts)) > SLOW_S}
    assert slow == {}
    assert time.process_time() - start < LIMIT_S
