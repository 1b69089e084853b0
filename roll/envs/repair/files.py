"""The files of a program as a policy sees and changes them: pure functions of their text."""

from __future__ import annotations

from collections.abc import Mapping

from roll.tools.base import ToolFailed

LONGEST = 100_000
"""Characters of a file."""


def listed(files: Mapping[str, str]) -> str:
    """A line for each file."""
    return "\n".join(f"{name} ({len(text.splitlines())} lines)" for name, text in sorted(files.items()))


def numbered(files: Mapping[str, str], name: str) -> str:
    """The lines of a file, each after its number."""
    lines = _found(files, name).splitlines()
    return "\n".join(f"{number:4}  {line}" for number, line in enumerate(lines, start=1)) or "(empty)"


def edited(files: Mapping[str, str], name: str, old: str, new: str) -> dict[str, str]:
    """The files with `old` replaced by `new` in one of them, where it has to stand exactly once."""
    text = _found(files, name)
    count = text.count(old) if old else 0
    if count != 1:
        where = f"stands {count} times in" if count else "is not in"
        raise ToolFailed(f"'old' {where} {name}; give text that stands there exactly once, without line numbers")
    changed = text.replace(old, new)
    if len(changed) > LONGEST:
        raise ToolFailed(f"{name} would have more than {LONGEST} characters")
    try:
        changed.encode()
    except UnicodeEncodeError:
        raise ToolFailed("'new' holds half a character") from None
    return {**files, name: changed}


def _found(files: Mapping[str, str], name: str) -> str:
    if name not in files:
        raise ToolFailed(f"no file {name[:100]!r}; there are {', '.join(sorted(files))}")
    return files[name]
