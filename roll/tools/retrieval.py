"""Search over a corpus of one's own.

The corpus is a `.jsonl` or `.jsonl.gz` file with an object a line. Its index is built once in a process, by the first
attempt that needs it, and all attempts there share it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

from roll.data.tasks import numbered_objects
from roll.data.tools import Tool
from roll.errors import ConfigError
from roll.tools.bm25 import Index


@dataclass(frozen=True, slots=True)
class _Corpus:
    """What can be found, as it is shown, and where."""

    shown: tuple[str, ...]
    index: Index


@dataclass(eq=False)
class Retrieval:
    """A `ToolSet` with one tool, `search`, that gives the texts nearest to a query by BM25."""

    corpus: str
    """The file."""
    text: str = "text"
    """The field that is searched and shown."""
    title: str = "title"
    """A field that is searched and shown above it, where an object has one."""
    num: int = 3
    """How many texts a search gives at most."""
    most_chars: int = 1000
    """Of each text that is shown."""

    def __post_init__(self) -> None:
        if self.num < 1 or self.most_chars < 1:
            raise ConfigError(f"retrieval: num and most_chars must be 1 or more (got {self.num}, {self.most_chars})")
        self._found = _corpus(self.corpus, self.text, self.title)
        about = {"query": {"type": "string", "description": "some words"}}
        schema = {"type": "object", "properties": about, "required": ["query"]}
        self.tools = (Tool("search", f"Finds up to {self.num} texts that have words of the query.", schema),)

    async def start(self) -> None: ...

    async def call(self, name: str, arguments: dict[str, Any]) -> str:
        found = self._found.index.search(arguments["query"], self.num)
        if not found:
            return "nothing found"
        return "\n\n".join(f"[{rank}] {self._cut(self._found.shown[place])}" for rank, place in enumerate(found, 1))

    async def close(self) -> None: ...

    def _cut(self, text: str) -> str:
        return text if len(text) <= self.most_chars else f"{text[: self.most_chars]}..."


@lru_cache(maxsize=8)
def _corpus(path: str, text: str, title: str) -> _Corpus:
    shown = tuple(_shown(line, found, path, text, title) for line, found in numbered_objects(Path(path)))
    if not shown:
        raise ConfigError(f"{path}: no texts in it; put one object on each line")
    return _Corpus(shown, Index(shown))


def _shown(line: int, found: Any, path: str, text: str, title: str) -> str:
    fields = cast(dict[str, Any], found) if isinstance(found, dict) else {}
    body, above = fields.get(text), fields.get(title)
    if not isinstance(body, str):
        raise ConfigError(f"{path}:{line}: no text in {text!r}; name the field with `text`, or mend the line")
    return f"{above}\n{body}" if isinstance(above, str) and above else body
