"""Open questions: F1 of the words shared by response and answer, ignoring case, punctuation and articles."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from typing import cast

from roll.errors import ConfigError
from roll.rewards.response import answer_text
from roll.types import Score, Task

_MAX_CHARS = 10_000
"""A longer response scores 0: the cost of combining marks grows quadratically."""

_ARTICLES = frozenset({"a", "an", "the"})
_UNSPACED = re.compile(r"([\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff])")


def score(task: Task, response: str, *, threshold: float | None = None) -> Score:
    """F1 of the response's words against the best-matching answer; with a threshold, 1 at or above it, else 0.

    Parts: `f1`, and `exact`, which is 1 if the words equal an answer's in order. Each Chinese or Japanese character
    counts as a word.
    """
    if threshold is not None and not 0 < threshold <= 1:
        raise ConfigError(f"reward 'f1': threshold is not above 0 and at most 1 (got {threshold}); change it")
    text = answer_text(response).strip()
    words = _words(text) if len(text) <= _MAX_CHARS else []
    answers = [_words(alias) for alias in _aliases(task)]
    best = max(_f1(words, answer) for answer in answers)
    exact = float(bool(words) and words in answers)
    return Score(best if threshold is None else float(best >= threshold), {"f1": best, "exact": exact})


def _aliases(task: Task) -> list[str]:
    answer: object = task.answer
    aliases = cast(list[object], answer) if isinstance(answer, list) else [] if answer is None else [answer]
    texts = [str(alias) for alias in aliases]
    if not texts or not all(text.strip() for text in texts):
        raise ConfigError(f"task {task.id!r}: no answer to compare with (got {answer!r}); give it one or several")
    return texts


def _words(text: str) -> list[str]:
    """Normalised words; articles and punctuation stay if there is nothing else."""
    text = unicodedata.normalize("NFKC", text).casefold()
    marks = {ord(char): None for char in set(text) if unicodedata.category(char)[0] in "PS"}
    words = _UNSPACED.sub(r" \1 ", text.translate(marks)).split()
    return [word for word in words if word not in _ARTICLES] or words or text.split()


def _f1(words: list[str], answer: list[str]) -> float:
    shared = (Counter(words) & Counter(answer)).total()
    return 2 * shared / (len(words) + len(answer)) if shared else 0.0
