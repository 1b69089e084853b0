"""An endless stream of malformed responses for text verifiers, and the time of the slowest call."""

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
    "math": (r"\frac{1}{2}", {}, {"timeout_s": 10.0}),  # its processes may be slow to start
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
"""By reward: the task's answer, its metadata, and the reward's options."""


PIECES = [
    "\\boxed{", "}", "{", "\\text{", "\\frac{1}{2}", "\\", "$", "####", "answer is ", "Answer: ", "The answer is (B).",
    "<think>", "</think>", "<answer>", "</answer>", "```json\n", "```", '{"a": "xxxx!"}', "[", "]", "(", ")", "B", "A.",
    "C)", "1,", "9" * 50, "1/0", ".", ",", "-", "1e999", "NaN", " ", "\n", "\t", "\r", "\x00", "\x1b", "\x85", "\u2028",
    "\ud800", "\udfff", "\ufeff", "\u202e", "\u0301", "\u0327", "é", "ß", "İ", "答案是", "東京", "हिन्दी", "עברית", "😀",
    "\U0001f469\u200d\U0001f467", "the ", "a ", "word ", "x", "*", "**", "_", "<<", ">>", "* ", "P.S. ", '"', "'", "%s",
    "{0}", "NULL", "\uff22",
]  # fmt: skip
"""Building blocks of the responses."""


def responses() -> Iterator[str]:
    """Fixed responses first, then endlessly mixtures of pieces, repeated pieces and random characters."""
    yield from ("", " ", "\n" * 1000, "\x00", "\ud800", "<think>", "</think>", "B", "{}", "[" * 5000, "((((" * 1000)
    yield from (piece * (100_000 // len(piece)) for piece in PIECES[::4])
    yield from ("a" * 10**6, "word " * 200_000, "\\boxed{" * 140_000)
    rng = random.Random(7)
    while True:
        yield "".join(rng.choices(PIECES, k=rng.randrange(40)))
        yield rng.choice(PIECES) * rng.randrange(200) + rng.choice(PIECES)
        yield "".join(chr(rng.randrange(0x110000)) for _ in range(rng.randrange(60)))
        yield "".join(chr(rng.randrange(128)) for _ in range(rng.randrange(120)))


def slowest_s(name: str, texts: Sequence[str], reward: Callable[..., Any] | None = None) -> float:
    """CPU seconds of the slowest call of the named verifier. Fails if a call raises or its score is outside [0, 1].

    If `reward` is given, it is called in place of the named one.
    """
    answer, metadata, options = CASES[name]
    task, slowest = Task(id="t", domain="d", answer=answer, metadata=metadata), 0.0
    score_fn = _bind(reward or REWARDS[name], options)
    for text in texts:
        start = time.process_time()
        score: Any = score_fn(task, text)
        slowest = max(slowest, time.process_time() - start)
        score = score if isinstance(score, Score) else Score(float(score))
        assert 0.0 <= score.value <= 1.0, (name, text[:200])
        assert all(map(math.isfinite, score.parts.values())), (name, text[:200])
    return slowest


def _bind(reward: Any, options: dict[str, Any]) -> Callable[..., Any]:
    """The reward as a function of task and response, with its options bound; a class is instantiated with them."""
    if not inspect.isclass(reward):
        return partial(reward, **options)
    instance: Any = reward(**options)
    return instance.score
