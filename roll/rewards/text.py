"""Rewards of the text alone: equality, shared words, a pattern, tags, length, repetition."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from typing import cast

from roll.errors import ConfigError
from roll.rewards.patterns import matches
from roll.rewards.response import answer_text
from roll.types import Score, Task

_MAX_F1_CHARS = 10_000
"""A longer response scores 0: the cost of combining marks grows quadratically."""
_ARTICLES = frozenset({"a", "an", "the"})
_UNSPACED = re.compile(r"([\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff])")
_MAX_REGEX_CHARS = 1_000_000
"""A longer response matches nothing, which bounds the time per response."""
_MAX_N = 20
_MAX_WORD_CHARS = 30
"""A longer run without spaces is not one word."""
_CHARS_PER_WORD = 8
"""Characters of such a run that `length` counts as one word."""
_SPACELESS = re.compile(
    "["
    "\u0e00-\u0eff\u0f00-\u0fff\u1000-\u109f\u1780-\u17ff\u1950-\u19df\u1a20-\u1aaf"  # Thai to Khmer, Tai
    "\u2e80-\u2fdf\u3005-\u3007\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff66-\uff9f"
    "\U0001b000-\U0001b16f\U00020000-\U0003fffd"
    "][\u0300-\u036f\u0e31\u0e34-\u0e3a\u0e47-\u0e4e\u0eb1\u0eb4-\u0ebc\u0ec8-\u0ecd\u102b-\u103e\u17b4-\u17d3"
    "\u3099\u309a\ufe00-\ufe0f]*"
)
"""A character, with its combining marks, of a script that writes words without spaces between them."""


def exact(task: Task, response: str) -> Score:
    """1 if the response equals the task's answer, or one of them if it is a list of aliases; else 0."""
    if task.answer is None:
        raise ConfigError(f"task {task.id!r}: no answer to compare with; give it one, or choose another reward")
    if type(task.answer) is str:  # the usual case, on the path of every attempt
        return Score(float(response.strip() == task.answer.strip()))
    return Score(float(response.strip() in [alias.strip() for alias in _aliases(task)]))


def f1(task: Task, response: str, *, threshold: float | None = None) -> Score:
    """F1 of the response's words against the best-matching answer; with a threshold, 1 at or above it, else 0.

    Case, punctuation and articles are ignored; each Chinese or Japanese character counts as a word. Parts: `f1`, and
    `exact`, which is 1 if the words equal an answer's in order.
    """
    if threshold is not None and not 0 < threshold <= 1:
        raise ConfigError(f"reward 'f1': threshold is not above 0 and at most 1 (got {threshold}); change it")
    aliases = _aliases(task)
    if not aliases or not all(alias.strip() for alias in aliases):
        raise ConfigError(f"task {task.id!r}: no answer to compare with (got {task.answer!r}); give it one or several")
    text = answer_text(response).strip()
    words = _words(text) if len(text) <= _MAX_F1_CHARS else []
    answers = [_words(alias) for alias in aliases]
    best = max(_word_f1(words, answer) for answer in answers)
    parts = {"f1": best, "exact": float(bool(words) and words in answers)}
    return Score(best if threshold is None else float(best >= threshold), parts)


def regex(task: Task, response: str, *, pattern: str | None = None, whole: bool = False) -> Score:
    """1 if the pattern is found in the response, or matches all of it if `whole`; else 0.

    Without the option, the pattern is the task's field `pattern`. Lookarounds and backreferences are refused.
    """
    source: object = task.metadata.get("pattern") if pattern is None else pattern
    if not isinstance(source, str):
        raise ConfigError(f"task {task.id!r}: no pattern (got {source!r}); give the reward or the task a 'pattern'")
    short = len(response) <= _MAX_REGEX_CHARS
    return Score(float(matches(source, response if short else "", whole=whole) and short))


def tag_format(
    task: Task, response: str, *, thinking: str = "think", answer: str = "answer", thinking_opened: bool = False
) -> Score:
    """1 if the response is one <think>...</think> and then one non-empty <answer>...</answer>; else 0.

    Only whitespace may surround them. Set `thinking_opened` if the prompt ends with the opening thinking tag.
    Parts: `thinking` and `answer`, whether each pair of tags occurs exactly once, in order.
    """
    if not thinking.strip() or not answer.strip() or thinking == answer:
        raise ConfigError(
            f"reward 'format': tags are empty or the same (got {thinking!r} and {answer!r}); name two different ones"
        )
    text = (f"<{thinking}>" if thinking_opened else "") + response.strip()
    before, thought, rest = _split_at_tag(text, thinking)
    between, content, after = _split_at_tag(rest if thought is not None else text, answer)
    parts = {"thinking": float(thought is not None), "answer": float(content is not None and bool(content.strip()))}
    outside = before + between + after
    return Score(float(all(parts.values()) and not outside.strip()), parts)


def length(task: Task, response: str, *, high: int, low: int = 0, margin: int = 0, unit: str = "words") -> Score:
    """1 from `low` to `high` words or characters, inclusive; outside, it falls linearly to 0 at distance `margin`.

    In scripts without spaces, such as Chinese or Thai, each character counts as a word. A run of more than 30
    characters without a space counts as one word per 8 characters.
    """
    units = _units(response, unit, "length")
    count = len(units) if unit == "characters" else sum(_words_in_run(run) for run in units)
    if not 0 <= low <= high or margin < 0:
        raise ConfigError(
            f"reward 'length': not a range (got low {low}, high {high}, margin {margin}); order 0 <= low <= high"
        )
    outside = max(low - count, count - high, 0)
    value = max(0.0, 1.0 - outside / margin) if margin else float(outside == 0)
    return Score(value, {unit: float(count)})


def repetition(task: Task, response: str, *, n: int = 3, unit: str = "words") -> Score:
    """1 minus the share of n-grams of words or characters that occurred before; 1 with fewer than two n-grams.

    In scripts without spaces, such as Chinese or Thai, each character counts as a word; so does each character of a
    run of more than 30 without a space ("abcabcabc...").
    """
    units = _units(response, unit, "repetition")
    if unit == "words":
        units = [piece for run in units for piece in (run if len(run) > _MAX_WORD_CHARS else [run])]
    if not 1 <= n <= _MAX_N:
        raise ConfigError(f"reward 'repetition': n is not 1 to {_MAX_N} (got {n}); change it")
    num_ngrams = len(units) - n + 1
    if num_ngrams < 2:
        return Score(1.0)
    return Score(len(set(zip(*(units[start:] for start in range(n)), strict=False))) / num_ngrams)


def _aliases(task: Task) -> list[str]:
    answer: object = task.answer
    aliases = cast(list[object], answer) if isinstance(answer, list) else [] if answer is None else [answer]
    return [str(alias) for alias in aliases]


def _words(text: str) -> list[str]:
    """Normalised words; articles and punctuation stay if there is nothing else."""
    text = unicodedata.normalize("NFKC", text).casefold()
    marks = {ord(char): None for char in set(text) if unicodedata.category(char)[0] in "PS"}
    words = _UNSPACED.sub(r" \1 ", text.translate(marks)).split()
    return [word for word in words if word not in _ARTICLES] or words or text.split()


def _word_f1(words: list[str], answer: list[str]) -> float:
    shared = (Counter(words) & Counter(answer)).total()
    return 2 * shared / (len(words) + len(answer)) if shared else 0.0


def _split_at_tag(text: str, tag: str) -> tuple[str, str | None, str]:
    """Text before, inside and after a tag that occurs exactly once; else the whole text, None and an empty string."""
    opening, closing = f"<{tag}>", f"</{tag}>"
    before, opened, rest = text.partition(opening)
    inside, closed, after = rest.partition(closing)
    once = text.count(opening) == 1 and text.count(closing) == 1
    return (before, inside, after) if opened and closed and once else (text, None, "")


def _units(response: str, unit: str, reward: str) -> Sequence[str]:
    if unit not in ("words", "characters"):
        raise ConfigError(f"reward {reward!r}: no unit named {unit!r}; write 'words' or 'characters'")
    if unit == "characters":
        return response
    return (response if response.isascii() else _SPACELESS.sub(r" \g<0> ", response)).split()


def _words_in_run(run: str) -> int:
    return 1 if len(run) <= _MAX_WORD_CHARS else -(-len(run) // _CHARS_PER_WORD)
