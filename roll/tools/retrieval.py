"""Search over a corpus in a file.

The corpus is a `.jsonl` or `.jsonl.gz` file with one object per line. The first attempt that needs it builds the index,
once per process; all attempts there share it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

from roll.data.tasks import numbered_objects
from roll.data.tools import Tool
from roll.errors import ConfigError
from roll.tools.bm25 import BM25Index, split_words


@dataclass(frozen=True, slots=True)
class _Corpus:
    """The documents as shown, and their index."""

    shown: tuple[str, ...]
    index: BM25Index


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
        about = {"query": {"type": "string", "description": "some words"}}
        schema = {"type": "object", "properties": about, "required": ["query"]}
        self.tools = (Tool("search", f"Finds up to {self.num} texts that have words of the query.", schema),)

    async def start(self) -> None: ...

    async def call(self, name: str, arguments: dict[str, Any]) -> str:
        hits = self._corpus.index.search(split_words(arguments["query"]), self.num)
        if not hits:
            return "nothing found"
        return "\n\n".join(
            f"[{rank}] {self._shorten(self._corpus.shown[position])}" for rank, position in enumerate(hits, 1)
        )

    async def close(self) -> None: ...

    def _shorten(self, text: str) -> str:
        return text if len(text) <= self.most_chars else f"{text[: self.most_chars]}..."


@lru_cache(maxsize=8)
def _load_corpus(path: str, text: str, title: str) -> _Corpus:
    shown = tuple(_parse_document(line, row, path, text, title) for line, row in numbered_objects(Path(path)))
    if not shown:
        raise ConfigError(f"{path}: no documents; put one object on each line")
    return _Corpus(shown, BM25Index(map(split_words, shown)))


def _parse_document(line: int, row: Any, path: str, text: str, title: str) -> str:
    fields = cast(dict[str, Any], row) if isinstance(row, dict) else {}
    body, above = fields.get(text), fields.get(title)
    if not isinstance(body, str):
        raise ConfigError(f"{path}:{line}: no text in {text!r}; name the field with `text`, or fix the line")
    return f"{above}\n{body}" if isinstance(above, str) and above else body
