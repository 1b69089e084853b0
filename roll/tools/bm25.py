"""Full-text search by Okapi BM25 over a fixed collection; designed for some hundred thousand documents."""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

_WORD = re.compile(r"[^\W_]+")


def split_words(text: str) -> list[str]:
    """The runs of letters and digits in a text, in lower case."""
    return _WORD.findall(text.lower())


class BM25Index:
    """Precomputed weights of every term in every document; a search adds up those of its terms.

    A term t weighs `idf(t) * n * (k1 + 1) / (n + k1 * (1 - b + b * |d| / mean |d|))` in a document d that has it n
    times among its |d| terms, where `idf(t) = ln(1 + (N - df + 0.5) / (df + 0.5))` for the df of N documents that have
    it. A term that is twice in a query counts twice.
    """

    def __init__(self, documents: Iterable[Sequence[str]], *, k1: float = 1.2, b: float = 0.75) -> None:
        """`documents` are sequences of terms; they are read once and not kept."""
        self._numbers: dict[str, int] = {}
        numbers, lengths = array("q"), array("q")
        for terms in documents:
            lengths.append(len(terms))
            numbers.extend(self._numbers.setdefault(term, len(self._numbers)) for term in terms)
        self._num_documents = len(lengths)
        self._weigh(np.array(numbers, np.int64), np.array(lengths, np.int64), k1, b)

    def scores(self, query: Iterable[str]) -> NDArray[np.float64]:
        """The score of every document for the query's terms."""
        scores = np.zeros(self._num_documents)
        for term in query:
            number = self._numbers.get(term)
            if number is not None:
                part = slice(self._begins[number], self._begins[number + 1])
                scores[self._documents[part]] += self._weights[part]
        return scores

    def search(self, query: Iterable[str], most: int) -> list[int]:
        """Positions of up to `most` documents that share a term with the query, best first, ties by position."""
        scores = self.scores(query)
        num = min(most, int((scores > 0).sum()))
        if not num:
            return []
        least = np.partition(scores, -num)[-num]
        near = np.flatnonzero(scores >= least)
        return near[np.argsort(-scores[near], kind="stable")][:num].tolist()

    def _weigh(self, numbers: NDArray[np.int64], lengths: NDArray[np.int64], k1: float, b: float) -> None:
        """Sort by term, then by document: where each term begins, its documents, and its weight in each of them."""
        num_documents, num_terms = max(1, self._num_documents), len(self._numbers)
        pairs = numbers * num_documents + np.repeat(np.arange(self._num_documents), lengths)
        distinct, times = np.unique(pairs, return_counts=True)
        of_term = distinct // num_documents
        self._documents = (distinct % num_documents).astype(np.int32)
        self._begins = np.searchsorted(of_term, np.arange(num_terms + 1))
        df = np.diff(self._begins)
        idf = np.log(1 + (self._num_documents - df + 0.5) / (df + 0.5))
        mean = max(1.0, float(lengths.mean())) if self._num_documents else 1.0
        slack = k1 * (1 - b + b * lengths / mean)
        self._weights = idf[of_term] * times * (k1 + 1) / (times + slack[self._documents])
