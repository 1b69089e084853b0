"""Full-text search by Okapi BM25 over a fixed collection, and a tool that searches a corpus in a file.

The index is designed for some hundred thousand documents. The corpus of the tool is a `.jsonl` or `.jsonl.gz` file with
one object per line. The first attempt that needs it builds the index, once per process; all attempts there share it.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from roll.data.task_file import numbered_objects
from roll.errors import ConfigError
from roll.tools.base import text_tool

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


@dataclass(eq=False)
class Retrieval:
    """A `ToolSet` with one tool, `search`, that returns the best documents for a query by BM25."""

    corpus: str
    """Path of the file."""
    text: str = "text"
    """Field with the text to search and show."""
    title: str = "title"
    """Optional field that is searched too and shown above the text."""
    num: int = 3
    """Most documents per search."""
    most_chars: int = 1000
    """Most characters per document."""

    def __post_init__(self) -> None:
        if self.num < 1 or self.most_chars < 1:
            raise ConfigError(f"retrieval: num and most_chars must be 1 or more (got {self.num}, {self.most_chars})")
        self._corpus = _load_corpus(self.corpus, self.text, self.title)
        about = f"Finds up to {self.num} texts that have words of the query."
        self.tools = (text_tool("search", about, "query", "some words"),)

    async def start(self) -> None: ...

    async def call(self, name: str, arguments: dict[str, Any]) -> str:
        shown, index = self._corpus
        hits = index.search(split_words(arguments["query"]), self.num)
        texts = [f"[{rank}] {self._shorten(shown[position])}" for rank, position in enumerate(hits, 1)]
        return "\n\n".join(texts) or "nothing found"

    async def close(self) -> None: ...

    def _shorten(self, text: str) -> str:
        return text if len(text) <= self.most_chars else f"{text[: self.most_chars]}..."


@lru_cache(maxsize=8)
def _load_corpus(path: str, text: str, title: str) -> tuple[tuple[str, ...], BM25Index]:
    """The documents as shown, and their index."""
    shown = tuple(_parse_document(line, row, path, text, title) for line, row in numbered_objects(Path(path)))
    if not shown:
        raise ConfigError(f"{path}: no documents; put one object on each line")
    return shown, BM25Index(map(split_words, shown))


def _parse_document(line: int, row: Any, path: str, text: str, title: str) -> str:
    fields = cast(dict[str, Any], row) if isinstance(row, dict) else {}
    body, above = fields.get(text), fields.get(title)
    if not isinstance(body, str):
        raise ConfigError(f"{path}:{line}: no text in {text!r}; name the field with `text`, or fix the line")
    return f"{above}\n{body}" if isinstance(above, str) and above else body
