"""Every error this library raises on purpose, by what becomes of it.

RollError
├── ConfigError        the user can fix it by editing a file or a flag; exit code 2, no traceback
│   └── UnknownName    a name that is in no table
├── RolloutError       one trajectory is lost; recorded on it, the run goes on
│   ├── EnvFailed      environment code raised
│   ├── RewardFailed   reward code raised, or returned something that is not a finite number
│   └── EngineFailed   the inference engine refused or lost the request
├── RunStopped         the run cannot go on; what existed on disk is intact, exit code 3
└── WorkerDied         one worker is gone; replaced within a budget, past it the run stops
"""

from __future__ import annotations

import difflib
import sys
import traceback
from collections.abc import Iterable
from typing import Any, cast

_LONGEST = 500
"""Most characters of an error that someone else wrote."""


class RollError(Exception):
    """Catch this to catch anything the library raises on purpose."""


class ConfigError(RollError, ValueError):
    """The user's input is wrong; the message says where, what, and what to do. One line per fault."""


class UnknownName(ConfigError):
    """`name` is not one of `known`; the message offers the nearest."""

    def __init__(self, kind: str, name: str, known: Iterable[str]) -> None:
        self.kind, self.name, self.known = kind, name, tuple(sorted(known))
        super().__init__(kind, name, self.known)  # args carry the fields, so the error pickles

    def __str__(self) -> str:
        return f"no {self.kind} named {self.name!r}{did_you_mean(self.name, self.known)}"


class RolloutError(RollError):
    """One trajectory failed. It is data, not a crash."""


class EnvFailed(RolloutError):
    """Environment code raised."""


class RewardFailed(RolloutError):
    """Reward code raised, or returned something that is not a finite number."""


class EngineFailed(RolloutError):
    """The inference engine refused or lost the request."""


class RunStopped(RollError):
    """The run cannot go on. Nothing that was on disk is lost; the message says why and how to continue."""


class WorkerDied(RollError):
    """One worker is gone; the message names it and its log."""


class blame:  # noqa: N801 - used like a function
    """Attribute whatever escapes this block to the layer that owns it; the parts of `what` are joined only then."""

    __slots__ = ("_error", "_what")

    def __init__(self, error: type[RolloutError], *what: object) -> None:
        self._error, self._what = error, what

    def __enter__(self) -> None: ...

    def __exit__(self, _: object, cause: BaseException | None, __: object) -> None:
        if isinstance(cause, Exception) and not isinstance(cause, RolloutError):  # else attributed closer to the cause
            place = "".join(map(str, self._what))
            raise self._error(f"{place}: {type(cause).__name__}: {cause}") from cause


def described(error: BaseException, source: str | None = None) -> str:
    """A caught error in one line, with the last line of the file `source` that led to it, or where it was raised."""
    frames = traceback.extract_tb(error.__traceback__)[1:]  # the first is whoever caught it
    files = [frame for frame in frames if not frame.filename.startswith("<")]  # nor the machinery of imports
    theirs = [frame for frame in frames if frame.filename == source] or files
    where = f" ({theirs[-1].filename}:{theirs[-1].lineno})" if theirs else ""
    return one_line("".join(traceback.format_exception_only(error))) + where


def one_line(text: str) -> str:
    """What someone else wrote, without line breaks and not too long."""
    line = " ".join(text.split())
    return line if len(line) <= _LONGEST else f"{line[:_LONGEST]}..."


def source_of(found: Any) -> str | None:
    """The file of the module that a function or class is defined in."""
    return getattr(sys.modules.get(getattr(found, "__module__", None) or ""), "__file__", None)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The tail of an error about an unknown name: the nearest known one, or all of them."""
    choices = sorted(known)
    near = difflib.get_close_matches(name, choices, n=1)
    if near:
        return f"; did you mean {near[0]!r}?"
    return f"; known: {', '.join(choices)}" if choices else ""


def leaf(group: BaseExceptionGroup[Any]) -> BaseException:
    """What a group of errors is about: the first that was raised on purpose, else the group itself."""
    for error in group.exceptions:
        nested = isinstance(error, BaseExceptionGroup)
        found = leaf(cast(BaseExceptionGroup[Any], error)) if nested else error
        if isinstance(found, RollError | KeyboardInterrupt):
            return found
    return group
