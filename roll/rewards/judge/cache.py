"""A cache of verdicts: in memory, and optionally in a file that outlives the run."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections import OrderedDict
from pathlib import Path
from typing import Any

from roll.errors import ConfigError

_MAX_IN_MEMORY = 100_000
"""Verdicts; the least recently used is evicted first."""
_LOCK_TIMEOUT_S = 30.0
"""Longest wait for another process's write."""


def cache_key(*parts: Any) -> str:
    """A hash of JSON values; equal only for equal parts."""
    return hashlib.sha256(json.dumps(parts).encode("ascii")).hexdigest()


class VerdictCache:
    """Verdicts by key. With a path, a SQLite file that several processes may share."""

    def __init__(self, path: str | None = None) -> None:
        self._path, self._recent = path, OrderedDict[str, str]()
        self._file: sqlite3.Connection | None = None

    def open(self) -> None:
        """Open the file, if there is one. `get` and `put` do so when needed."""
        if self._path is None or self._file is not None:
            return
        try:
            Path(self._path).parent.mkdir(parents=True, exist_ok=True)
            self._file = sqlite3.connect(self._path, timeout=_LOCK_TIMEOUT_S, isolation_level=None)
            self._file.execute("PRAGMA journal_mode = WAL")
            self._file.execute("PRAGMA synchronous = NORMAL")
            self._file.execute("CREATE TABLE IF NOT EXISTS verdicts (key TEXT PRIMARY KEY, verdict TEXT) WITHOUT ROWID")
        except (sqlite3.DatabaseError, OSError) as error:
            self.close()
            raise ConfigError(
                f"reward 'judge': cache {self._path!r} cannot be opened ({error}); give the path of a separate file"
            ) from error

    def get(self, key: str) -> str | None:
        self.open()
        if key in self._recent:
            self._recent.move_to_end(key)
            return self._recent[key]
        if self._file is None:
            return None
        row = self._file.execute("SELECT verdict FROM verdicts WHERE key = ?", (key,)).fetchone()
        return None if row is None else self._remember(key, row[0])

    def put(self, key: str, verdict: str) -> None:
        self.open()
        self._remember(key, verdict)
        if self._file is not None:
            self._file.execute("INSERT OR REPLACE INTO verdicts VALUES (?, ?)", (key, verdict))

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _remember(self, key: str, verdict: str) -> str:
        self._recent[key] = verdict
        if len(self._recent) > _MAX_IN_MEMORY:
            self._recent.popitem(last=False)
        return verdict
