"""Full-text search by BM25 over short texts that do not change."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

_SATURATION, _LENGTH = 1.2, 0.75
"""BM25's k1 and b."""


class Index:
    """Weights of every term in every text, worked out beforehand; a search adds some of them up.

    A term t in a text d weighs `idf(t) * n * (k1 + 1) / (n + k1 * (1 - b + b * |d| / mean |d|))`, where n is how often
    t is in d and `idf(t) = ln(1 + (N - df + 0.5) / (df + 0.5))` for the df texts of N that have t.
    """

    def __init__(self, texts: Sequence[str]) -> None:
        counts = [Counter(terms(text)) for text in texts]
        lengths = np.array([count.total() for count in counts], np.float64)
        self._num_texts = len(texts)
        self._slack = _SATURATION * (1 - _LENGTH + _LENGTH * lengths / max(1.0, float(lengths.mean())))
        found: dict[str, tuple[list[int], list[int]]] = {}
        for number, count in enumerate(counts):
            for term, times in count.items():
                where, often = found.setdefault(term, ([], []))
                where.append(number)
                often.append(times)
        self._weights = {term: self._weighed(where, often) for term, (where, often) in found.items()}

    def search(self, query: str, most: int) -> tuple[int, ...]:
        """The texts that share a term with the query, best first; equal ones in their own order."""
        scores = np.zeros(self._num_texts)
        for term in set(terms(query)):
            if term in self._weights:
                where, weights = self._weights[term]
                scores[where] += weights
        best = np.argsort(-scores, kind="stable")[:most]
        return tuple(int(number) for number in best if scores[number] > 0)

    def _weighed(self, where: list[int], often: list[int]) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        rarity = math.log(1 + (self._num_texts - len(where) + 0.5) / (len(where) + 0.5))
        places, times = np.array(where, np.int64), np.array(often, np.float64)
        return places, rarity * times * (_SATURATION + 1) / (times + self._slack[places])


def terms(text: str) -> list[str]:
    """Lower-case words of letters and digits, a plural's s taken off."""
    return [
        word[:-1] if len(word) > 3 and word.endswith("s") and not word.endswith("ss") else word
        for word in re.findall(r"[^\W_]+", text.lower())
    ]
