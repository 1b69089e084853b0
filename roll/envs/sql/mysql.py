"""From the SQL that reference answers are written in, MySQL's, to SQLite's, as far as strings are concerned.

In MySQL a backslash in a string escapes what follows it, and double quotes make strings too; in SQLite a backslash is a
backslash, and double quotes make names.
"""

from __future__ import annotations

import re

_ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", "b": "\b", "Z": "\x1a"}
_QUOTED = re.compile(r"`(?:[^`]|``)*`|'(?:[^'\\]|\\.|'')*'|\"(?:[^\"\\]|\\.|\"\")*\"", re.DOTALL)


def in_sqlite(statement: str) -> str:
    """The statement with its strings as SQLite writes them; names in backticks mean the same in both."""
    return _QUOTED.sub(lambda found: _written(found[0]), statement)


def _written(quoted: str) -> str:
    mark = quoted[0]
    if mark == "`":
        return quoted
    plain = re.sub(
        r"\\(.)", lambda found: _ESCAPED.get(found[1], found[1]), quoted[1:-1].replace(mark * 2, mark), flags=re.DOTALL
    )
    return "'" + plain.replace("'", "''") + "'"
