"""One reply with the score that a verifier must give it; a corpus file holds one JSON object per line."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One reply, the task's answer, and the score that the verifier must give."""

    verifier: str
    """The reward's name: `math` or `choice`."""
    kind: str
    """The family of the surface form: `boxed`, `unboxed`, `negation` ..."""
    answer: str
    """The task's answer."""
    response: str
    expected: float
    options: tuple[str, ...] = ()
    """The options of a multiple-choice task, in order; empty for other tasks."""
    note: str = ""
    """The rule that made the row."""


def read_rows(path: Path) -> list[Row]:
    """The rows of a corpus file."""
    with path.open(encoding="utf-8") as lines:
        records = [json.loads(line) for line in lines]
    return [Row(**{**record, "options": tuple(record.get("options", ()))}) for record in records]


def write_rows(path: Path, rows: Iterable[Row]) -> None:
    """Write a corpus file; fields that are empty are left out."""
    with path.open("w", encoding="utf-8") as file:
        for row in rows:
            record = {name: value for name, value in dataclasses.asdict(row).items() if value not in ("", ())}
            record.setdefault("answer", row.answer)
            record.setdefault("response", row.response)
            file.write(json.dumps(record, ensure_ascii=False) + "\n")
