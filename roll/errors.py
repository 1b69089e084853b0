"""All errors that this library raises, by their consequence.

RollError
├── ConfigError        the user can fix it by editing a file or a flag; exit code 2, no traceback
│   ├── UnknownName    a name that is in no table
│   ├── NoCluster      no Ray cluster can be reached, or it has no room; a supervised run tries again
│   └── JournalDamaged a journal of which some pages or rows cannot be read
├── RolloutError       one trajectory is lost; recorded on it, the run continues
│   ├── EnvFailed      environment code raised
│   ├── RewardFailed   reward code raised, or returned something that is not a finite number
│   └── EngineFailed   the inference engine refused or lost the request
├── RunStopped         the run cannot continue; all files on disk are intact, exit code 3
│   └── ClusterLost    Ray is gone; a supervised run starts again when it is back
└── WorkerDied         one worker has died; it is replaced, or the run stops if too many have died
    ├── NodeLost       its node is lost or being drained; not counted as a failure of the worker
    ├── NoRoom         its replacement cannot start, since no node that is left has room
    ├── PeerLost       a worker lost the connection to another one, whose own error names the cause
    └── StateLost      a worker died with what the call refers to; its replacement cannot repeat the call
"""

from __future__ import annotations

import difflib
import io
import sys
import traceback
from collections.abc import Iterable
from typing import Any, cast

_LONGEST = 500
"""Most characters of an error from user code or other libraries."""


class RollError(Exception):
    """Base class of all errors that the library raises."""


class ConfigError(RollError, ValueError):
    """Invalid user input. The message has one line per fault: where it is, what is wrong, what to do."""


class UnknownName(ConfigError):
    """`name` is not one of `known`; the message suggests the most similar one."""

    def __init__(self, kind: str, name: str, known: Iterable[str]) -> None:
        self.kind, self.name, self.known = kind, name, tuple(sorted(known))
        super().__init__(kind, name, self.known)  # the fields are args, so that the error pickles

    def __str__(self) -> str:
        return f"no {self.kind} named {self.name!r}{did_you_mean(self.name, self.known)}"


class NoCluster(ConfigError):
    """No Ray cluster can be reached, or it has no room for the workers."""


class JournalDamaged(ConfigError):
    """Part of a journal cannot be read; nothing in it was changed."""

    def __init__(self, path: str, cause: str) -> None:
        self.path, self.cause = path, cause
        super().__init__(path, cause)  # the fields are args, so that the error pickles

    def __str__(self) -> str:
        return (
            f"{self.path}: the journal is damaged ({self.cause}); nothing was changed: copy it back from a backup; "
            "`roll report` and `roll samples` show what can be read"
        )


class RolloutError(RollError):
    """One trajectory failed, which is recorded as data and does not stop the run."""


class EnvFailed(RolloutError):
    """Environment code raised."""


class RewardFailed(RolloutError):
    """Reward code raised, or returned something that is not a finite number."""


class EngineFailed(RolloutError):
    """The inference engine refused or lost the request."""


class AttemptStopped(RolloutError):
    """The run stopped the attempt before its end, and samples another one."""


class RunStopped(RollError):
    """The run cannot continue. Nothing on disk is lost; the message has the reason and how to continue."""


class ClusterLost(RunStopped):
    """The Ray cluster of a run is gone."""


class WorkerDied(RollError):
    """One worker has died; `what` names it and its log, and `fix` says how to continue if it is not replaced."""

    def __init__(self, what: str, fix: str = "") -> None:
        self.what, self.fix = what, fix
        super().__init__(what, fix)  # the fields are args, so that the error pickles

    def __str__(self) -> str:
        return f"{self.what}; {self.fix}" if self.fix else self.what


class NodeLost(WorkerDied):
    """The node of a worker is lost or being drained, which says nothing about the worker."""


class NoRoom(WorkerDied):
    """No node that is left has room for the replacement of a worker."""


class PeerLost(WorkerDied):
    """A rank lost its connection to another one. That one's `WorkerDied`, if it has one, names the cause."""


class StateLost(WorkerDied):
    """A worker died with what the call refers to, such as a save in progress; the next call gets its replacement."""


class blame:  # noqa: N801 - used like a function
    """Raises exceptions of this block as `error`, with `where` before the message; `where` is joined only then."""

    __slots__ = ("_error", "_where")

    def __init__(self, error: type[RolloutError], *where: object) -> None:
        self._error, self._where = error, where

    def __enter__(self) -> None: ...

    def __exit__(self, _: object, cause: BaseException | None, __: object) -> None:
        if isinstance(cause, Exception) and not isinstance(cause, RolloutError):  # an inner block has attributed it
            where = "".join(map(str, self._where))
            raise self._error(f"{where}: {type(cause).__name__}: {cause}") from cause


def describe_error(error: BaseException, source: str | None = None) -> str:
    """A caught error in one line, with its last traceback line in the file `source`, else its last line anywhere."""
    frames = traceback.extract_tb(error.__traceback__)[1:]  # the first frame caught it
    files = [frame for frame in frames if not frame.filename.startswith("<")]  # without frames of the import system
    relevant = [frame for frame in frames if frame.filename == source] or files
    where = f" ({relevant[-1].filename}:{relevant[-1].lineno})" if relevant else ""
    return one_line("".join(traceback.format_exception_only(error))) + where


def one_line(text: str) -> str:
    """`text` without line breaks, cut to a maximum length."""
    line = " ".join(text.split())
    return line if len(line) <= _LONGEST else f"{line[:_LONGEST]}..."


def source_of(target: Any) -> str | None:
    """The file in which a function or class is defined."""
    return getattr(sys.modules.get(getattr(target, "__module__", None) or ""), "__file__", None)


def did_you_mean(name: object, known: Iterable[str]) -> str:
    """End of an error about an unknown name, which may be no text: the most similar known name, or all of them.

    Case counts only between names that are equal without it.
    """
    choices, written = sorted(known), str(name)
    by_lower: dict[str, list[str]] = {}
    for choice in choices:
        by_lower.setdefault(choice.lower(), []).append(choice)
    lower = difflib.get_close_matches(written.lower(), by_lower, n=max(1, len(by_lower)))
    close = [choice for each in lower for choice in _by_similarity(written, by_lower[each])]
    near = [
        choice for choice in close if sorted(choice.lower()) == sorted(written.lower())
    ] or close  # first those with swapped letters
    if near:
        return f"; did you mean {near[0]!r}?"
    return f"; known: {', '.join(choices)}" if choices else ""


def _by_similarity(written: str, choices: list[str]) -> list[str]:
    """Names that differ only in case, the most similar first."""
    return difflib.get_close_matches(written, choices, n=len(choices), cutoff=0.0)


def root_cause(group: BaseExceptionGroup[Any]) -> BaseException:
    """The first error of this library or of the system, or interrupt, in a group; the group itself if it has none."""
    for error in group.exceptions:
        nested = isinstance(error, BaseExceptionGroup)
        cause = root_cause(cast(BaseExceptionGroup[Any], error)) if nested else error
        if isinstance(cause, RollError | OSError | KeyboardInterrupt):
            return cause
    return group


def escape_output() -> None:
    """Print text that UTF-8 cannot encode, half of a surrogate pair, as its escape, which JSON reads."""
    stream: object = sys.stdout
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(errors="backslashreplace")
