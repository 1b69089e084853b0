"""A search for many parts of words in a short text, for all sets of parts at once.

Each different word is searched once and then looked up; so is each of the last texts.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable

_NO_LETTERS = "0123456789.,:;!?$%*+-=/()[]{}\\#"
"""Characters of numbers, which are too many to be remembered."""
_MAX_WORD, _MAX_WORDS = 40, 20_000
"""Length and number of words that are remembered."""
_MAX_TEXT, _MAX_TEXTS = 4_000, 32

_bits_of_parts: dict[str, int] = {}
_bits_of_words: dict[str, int] = {}


class WordParts:
    """Whether a text has one of many parts of words, in any case.

    A part with a space at an end is one end of a word. Of a phrase, its longest word counts.
    """

    _num_sets = 0

    def __init__(self, parts: Iterable[str]) -> None:
        self._bit = 1 << WordParts._num_sets
        WordParts._num_sets += 1
        for part in parts:
            word = part if len(part.split()) == 1 else max(part.split(), key=len)
            _bits_of_parts[word] = _bits_of_parts.get(word, 0) | self._bit
        _bits_of_words.clear()
        _remembered.cache_clear()

    def __call__(self, text: str) -> bool:
        bits = _remembered(text) if len(text) <= _MAX_TEXT else _bits(text)
        return bits & self._bit != 0


def _bits(text: str) -> int:
    """One bit for every set of which the text has a part."""
    bits, known = 0, _bits_of_words
    for word in text.lower().split():
        of_word = known.get(word)
        bits |= of_word if of_word is not None else _search(word)
    return bits


_remembered = functools.lru_cache(maxsize=_MAX_TEXTS)(_bits)


def _search(word: str) -> int:
    if not word.strip(_NO_LETTERS):
        return 0
    padded, bits = f" {word} ", 0
    for part, of_part in _bits_of_parts.items():
        if part in padded:
            bits |= of_part
    if len(word) <= _MAX_WORD:
        if len(_bits_of_words) >= _MAX_WORDS:
            _bits_of_words.clear()
        _bits_of_words[word] = bits
    return bits
