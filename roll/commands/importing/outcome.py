"""What became of one key of an imported configuration."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class Status(StrEnum):
    """The fate of a key."""

    TAKEN = "taken"
    RENAMED = "renamed"
    DIFFERS = "taken, differs"
    DEFAULT = "default here"
    UNUSED = "no effect"
    VARIABLE = "variable"
    UNSUPPORTED = "not supported"
    UNKNOWN = "unknown: not imported"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One key of the source, and the keys here that hold its value."""

    key: str
    status: Status
    value: Any = None
    """As the source gives it, with `${...}` replaced; secrets are left out."""
    becomes: tuple[str, ...] = ()
    note: str = ""
    absent: bool = False
    """Whether the file leaves the key out, and the value is the default of the other project."""
