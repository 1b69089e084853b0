"""Listing, reading and editing a program's files: pure functions of their text."""

from __future__ import annotations

from collections.abc import Mapping

from roll.tools.base import ToolFailed

LONGEST = 100_000
"""Most characters per file."""


def list_files(files: Mapping[str, str]) -> str:
    """One line per file."""
    return "\n".join(f"{name} ({len(text.splitlines())} lines)" for name, text in sorted(files.items()))


def read_numbered(files: Mapping[str, str], name: str) -> str:
    """The lines of a file with line numbers."""
    lines = _text_of(files, name).splitlines()
    return "\n".join(f"{number:4}  {line}" for number, line in enumerate(lines, start=1)) or "(empty)"


def replace_text(files: Mapping[str, str], name: str, old: str, new: str) -> dict[str, str]:
    """The files with `old` replaced by `new` in one of them, where it must occur exactly once."""
    text = _text_of(files, name)
    count = text.count(old) if old else 0
    if count != 1:
        where = f"occurs {count} times in" if count else "is not in"
        raise ToolFailed(f"'old' {where} {name}; give text that occurs there exactly once, without line numbers")
    changed = text.replace(old, new)
    if len(changed) > LONGEST:
        raise ToolFailed(f"{name} would have more than {LONGEST} characters")
    try:
        changed.encode()
    except UnicodeEncodeError:
        raise ToolFailed("'new' contains half a character") from None
    return {**files, name: changed}


def _text_of(files: Mapping[str, str], name: str) -> str:
    if name not in files:
        raise ToolFailed(f"no file {name[:100]!r}; there are {', '.join(sorted(files))}")
    return files[name]
