"""Device lists as ROLL writes them: `[0, 1]`, `list(range(0, 8))`, sums of both. Nothing is evaluated."""

from __future__ import annotations

import re
from typing import Any, cast

_MOST_DEVICES = 65_536
_RANGE = re.compile(r"list\(range\((\d{1,6})(?:,(\d{1,6}))?(?:,(\d{1,6}))?\)\)")
_LIST = re.compile(r"\[((?:\d{1,6},)*\d{1,6}),?\]")
_NUMBER = re.compile(r"\d{1,6}")
_HOW = "write [0, 1] or list(range(0, 8))"


def parse_devices(value: Any) -> tuple[int, ...]:
    """The device numbers; ValueError with advice for anything outside the grammar."""
    if isinstance(value, list):
        value = f"[{','.join(map(str, cast('list[Any]', value)))}]"
    text = re.sub(r"\s", "", str(value))
    ids = tuple(number for term in text.split("+") for number in _parse_term(term, value))
    if len(set(ids)) != len(ids):
        raise ValueError(f"a device is named twice (got {value!r}); name each once")
    return ids


def format_devices(ids: tuple[int, ...]) -> str | list[int]:
    """Device numbers as a run file writes them: a range such as `0-7` where they are one, else a list."""
    first, last = ids[0], ids[-1]
    return f"{first}-{last}" if len(ids) > 1 and ids == tuple(range(first, last + 1)) else list(ids)


def _parse_term(term: str, value: Any) -> range | list[int]:
    if _NUMBER.fullmatch(term):
        return [int(term)]
    if match := _LIST.fullmatch(term):
        return [int(number) for number in match[1].split(",")]
    match = _RANGE.fullmatch(term)
    numbers = range(*(int(number) for number in match.groups() if number)) if match and match[3] != "0" else range(0)
    if not 0 < len(numbers) <= _MOST_DEVICES:
        raise ValueError(f"no such devices (got {value!r}); {_HOW}")
    return numbers
