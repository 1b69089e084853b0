"""Full-text search by Okapi BM25 over texts that do not change; made for some hundred thousand of them."""

from __future__ import annotations

import re
from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

_WORD = re.compile(r"[^\W_]+")


def words(text: str) -> list[str]:
    """Its runs of letters and digits, in lower case."""
    return _WORD.findall(text.lower())


class Index:
    """The weight of every word in every text, worked out beforehand; a search adds some of them up.

    A word w weighs `idf(w) * n * (k1 + 1) / (n + k1 * (1 - b + b * |d| / mean |d|))` in a text d that has it n times
    among its |d| words, where `idf(w) = ln(1 + (N - df + 0.5) / (df + 0.5))` for the df texts of N that have it. A word
    that a query has twice counts twice.
    """

    def __init__(self, texts: Sequence[str], *, k1: float = 1.2, b: float = 0.75) -> None:
        self._num_texts = len(texts)
        self._numbers: dict[str, int] = {}
        numbers, lengths = array("q"), np.zeros(len(texts), np.int64)
        for place, text in enumerate(texts):
            found = words(text)
            lengths[place] = len(found)
            numbers.extend(self._numbers.setdefault(word, len(self._numbers)) for word in found)
        self._weigh(np.frombuffer(numbers, np.int64) if len(numbers) else np.zeros(0, np.int64), lengths, k1, b)

    def scores(self, query: str) -> NDArray[np.float64]:
        """Of every text."""
        found = np.zeros(self._num_texts)
        for word in words(query):
            number = self._numbers.get(word)
            if number is not None:
                part = slice(self._begins[number], self._begins[number + 1])
                found[self._texts[part]] += self._weights[part]
        return found

    def search(self, query: str, most: int) -> list[int]:
        """The texts that share a word with the query, best first; equal ones in their own order."""
        scores = self.scores(query)
        num = min(most, int((scores > 0).sum()))
        if not num:
            return []
        least = np.partition(scores, -num)[-num]
        near = np.flatnonzero(scores >= least)
        return near[np.argsort(-scores[near], kind="stable")][:num].tolist()

    def _weigh(self, numbers: NDArray[np.int64], lengths: NDArray[np.int64], k1: float, b: float) -> None:
        """Sorted by word, then by text: where each word begins, the texts that have it, and what it weighs there."""
        num_texts, num_words = max(1, self._num_texts), len(self._numbers)
        pairs = numbers * num_texts + np.repeat(np.arange(self._num_texts), lengths)
        found, times = np.unique(pairs, return_counts=True)
        of_word = found // num_texts
        self._texts = (found % num_texts).astype(np.int32)
        self._begins = np.searchsorted(of_word, np.arange(num_words + 1))
        df = np.diff(self._begins)
        idf = np.log(1 + (self._num_texts - df + 0.5) / (df + 0.5))
        mean = max(1.0, float(lengths.mean())) if self._num_texts else 1.0
        slack = k1 * (1 - b + b * lengths / mean)
        self._weights = idf[of_word] * times * (k1 + 1) / (times + slack[self._texts])
