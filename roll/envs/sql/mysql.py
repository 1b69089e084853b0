"""Convert string literals from MySQL, the dialect of the reference answers, to SQLite.

In MySQL a backslash in a string escapes the next character, and double quotes delimit strings; in SQLite a backslash
is literal, and double quotes delimit names.
"""

from __future__ import annotations

import re

_ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", "b": "\b", "Z": "\x1a"}
_QUOTED = re.compile(r"`(?:[^`]|``)*`|'(?:[^'\\]|\\.|'')*'|\"(?:[^\"\\]|\\.|\"\")*\"", re.DOTALL)


def to_sqlite(statement: str) -> str:
    """The statement with SQLite string literals; names in backticks mean the same in both."""
    return _QUOTED.sub(lambda match: _convert_quoted(match[0]), statement)


def _convert_quoted(quoted: str) -> str:
    mark = quoted[0]
    if mark == "`":
        return quoted
    plain = re.sub(
        r"\\(.)", lambda match: _ESCAPED.get(match[1], match[1]), quoted[1:-1].replace(mark * 2, mark), flags=re.DOTALL
    )
    return "'" + plain.replace("'", "''") + "'"
