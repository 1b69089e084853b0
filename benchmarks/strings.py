"""Replies made to break verifiers that read a reply as text, without end, and how long a verifier takes over them."""

from __future__ import annotations

import inspect
import math
import random
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from roll.registry import REWARDS
from roll.types import Score, Task

CASES: dict[str, tuple[Any, dict[str, Any], dict[str, Any]]] = {
    "exact": ("64", {}, {}),
    "math": (r"\frac{1}{2}", {}, {"timeout_s": 10.0}),  # its processes may start slowly
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


PIECES = [
    "\\boxed{", "}", "{", "\\text{", "\\frac{1}{2}", "\\", "$", "####", "answer is ", "Answer: ", "The answer is (B).",
    "<think>", "</think>", "<answer>", "</answer>", "```json\n", "```", '{"a": "xxxx!"}', "[", "]", "(", ")", "B", "A.",
    "C)", "1,", "9" * 50, "1/0", ".", ",", "-", "1e999", "NaN", " ", "\n", "\t", "\r", "\x00", "\x1b", "\x85", "\u2028",
    "\ud800", "\udfff", "\ufeff", "\u202e", "\u0301", "\u0327", "é", "ß", "İ", "答案是", "東京", "हिन्दी", "עברית", "😀",
    "\U0001f469\u200d\U0001f467", "the ", "a ", "word ", "x", "*", "**", "_", "<<", ">>", "* ", "P.S. ", '"', "'", "%s",
    "{0}", "NULL", "\uff22",
]  # fmt: skip
"""What the replies are made of."""


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


def slowest_s(name: str, texts: Sequence[str], reward: Callable[..., Any] | None = None) -> float:
    """Processor seconds of the longest call of the named verifier; fails where one raises or leaves [0, 1].

    A `reward` is called in place of the one of that name, on its task.
    """
    answer, metadata, options = CASES[name]
    task, slowest = Task(id="t", domain="d", answer=answer, metadata=metadata), 0.0
    ask = _asked(reward or REWARDS[name], options)
    for text in texts:
        start = time.process_time()
        found: Any = ask(task, text)
        slowest = max(slowest, time.process_time() - start)
        found = found if isinstance(found, Score) else Score(float(found))
        assert 0.0 <= found.value <= 1.0, (name, text[:200])
        assert all(map(math.isfinite, found.parts.values())), (name, text[:200])
    return slowest


def _asked(reward: Any, options: dict[str, Any]) -> Callable[..., Any]:
    """What scores a reply to a task: a function with its options, or the method of an instance made with them."""
    if not inspect.isclass(reward):
        return partial(reward, **options)
    made: Any = reward(**options)
    return made.score
