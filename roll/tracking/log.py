"""The log of a run: `controller.log` in its directory, appended to by every process that continues the run.

All modules log with Python's `logging`. Warnings of any logger, and lines of `announce`, go to the terminal as well.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import logging
import os
import re
import sys
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TextIO, TypeAlias

_LOG = logging.getLogger("roll")
_ANNOUNCED = "announced"
"""Attribute of a record: true is printed to standard output, false is not printed; without it, warnings are printed."""
_SECRET = re.compile(r"(KEY|TOKEN|SECRET|PASSWORD|PASSWD)$", re.IGNORECASE)
_SHORTEST_SECRET = 8


LogFormat: TypeAlias = Literal["text", "json"]
LogLevel: TypeAlias = Literal["debug", "info", "warning", "error"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSettings:
    """Form and lowest level of the lines of a run."""

    format: LogFormat = "text"
    level: LogLevel = "info"
    run: str = ""
    """Name of the run, for lines in JSON."""


class LogOrigin:
    """What a line in JSON says of its process. A `Sink`, from which it has the newest finished step."""

    def __init__(self, run: str, role: str, rank: int) -> None:
        self._fields: dict[str, Any] = {"run": run, "role": role, "rank": rank}

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        self._fields = {**self._fields, "step": step}

    def close(self) -> None:
        """Nothing: later lines belong to the last step."""

    def as_json(self, record: logging.LogRecord, message: str) -> str:
        """The line as a JSON object."""
        entry = {"time": _time(record), "level": record.levelname, **self._fields, "message": message}
        return json.dumps(entry, ensure_ascii=False)


class Terminal(logging.Handler):
    """Shows warnings, and lines that are announced."""

    def __init__(self, form: LogFormat = "text", origin: LogOrigin | None = None) -> None:
        super().__init__()
        self.structured = form == "json"
        """Whether lines are printed as JSON objects, which leaves no room for a live view."""
        self.origin = origin or LogOrigin("", "controller", 0)
        """What lines in JSON say of this process."""
        self.show: Callable[[str], None] | None = None
        """Prints a line above a live view; None: standard output, and standard error for warnings."""
        self.quiet = False
        """Print warnings only: the lines of a run in the background would mix with those of the program."""

    def emit(self, record: logging.LogRecord) -> None:
        announced: bool | None = getattr(record, _ANNOUNCED, None)
        if announced and self.quiet:
            announced = None
        if announced is False or (announced is None and record.levelno < logging.WARNING):
            return
        if self.show is not None and not self.structured:
            self.show(record.getMessage())
            return
        message = record.getMessage()
        stream = sys.stdout if announced else sys.stderr
        stream.write(f"{self.origin.as_json(record, message) if self.structured else message}\n")
        stream.flush()

    @contextmanager
    def showing(self, show: Callable[[str], None]) -> Generator[None]:
        """Print with `show` inside the block, unless `quiet`."""
        self.show = None if self.quiet else show
        try:
            yield
        finally:
            self.show = None


def structured() -> bool:
    """Whether the terminal of this run gets JSON objects, so that everything on it has to be announced."""
    return any(isinstance(each, Terminal) and each.structured for each in logging.getLogger().handlers)


def announce(line: str, level: int = logging.INFO) -> None:
    """Log a line, and print it to standard output."""
    _LOG.log(level, "%s", line, extra={_ANNOUNCED: True})


def log_only(line: str, level: int) -> None:
    """Log a line that is printed elsewhere, such as the error that ends a run."""
    _LOG.log(level, "%s", line, extra={_ANNOUNCED: False})


@contextmanager
def controller_log(path: Path, settings: LogSettings | None = None) -> Generator[Terminal]:
    """Write everything that is logged inside the block to `path`, and show warnings on the terminal.

    If a fatal signal such as SIGSEGV or SIGABRT ends the process, the stacks of its threads are written there too.
    """
    settings = settings or LogSettings()
    form, threshold, origin = settings.format, settings.level.upper(), LogOrigin(settings.run, "controller", 0)
    file, terminal, root, level = _LogFile(path, form, origin), Terminal(form, origin), logging.getLogger(), _LOG.level
    _LOG.setLevel(threshold)
    for handler in (file, terminal):
        handler.setLevel(threshold)
        root.addHandler(handler)
    stacks, enabled = path.open("ab"), faulthandler.is_enabled()
    if not enabled:
        faulthandler.enable(stacks)
    try:
        yield terminal
    finally:
        if not enabled:
            faulthandler.disable()
        stacks.close()
        for handler in (file, terminal):
            root.removeHandler(handler)
            handler.close()
        _LOG.setLevel(level)


class _LogFile(logging.Handler):
    """Appends one line per record: time (UTC), level, message. Values of environment variables with keys are hidden.

    A line that cannot be written is dropped: on a full disk, the run itself stops with the reason.
    """

    def __init__(self, path: Path, form: LogFormat, origin: LogOrigin) -> None:
        super().__init__()
        self._json, self._path, self._origin = form == "json", path, origin
        self._file = path.open("ab", buffering=0)
        self._secrets = [
            value for name, value in os.environ.items() if _SECRET.search(name) and len(value) >= _SHORTEST_SECRET
        ]

    def emit(self, record: logging.LogRecord) -> None:
        message = " ".join(record.getMessage().splitlines())
        for secret in self._secrets:
            message = message.replace(secret, "***")
        line = self._origin.as_json(record, message) if self._json else _as_text(record, message)
        with contextlib.suppress(OSError):
            if self._file.closed:  # `logging.config.dictConfig`, which vLLM calls, closes all handlers
                self._file = self._path.open("ab", buffering=0)
            self._file.write(f"{line}\n".encode(errors="replace"))

    def close(self) -> None:
        self._file.close()
        super().close()


class _WorkerLines(logging.Handler):
    """Writes to a stream that goes to the log of a worker."""

    def __init__(self, stream: TextIO, form: LogFormat, origin: LogOrigin) -> None:
        super().__init__()
        self._json, self._stream, self._origin = form == "json", stream, origin

    def emit(self, record: logging.LogRecord) -> None:
        message = " ".join(record.getMessage().splitlines())
        if record.exc_info:
            message = f"{message}: {record.exc_info[1]!r}"
        line = self._origin.as_json(record, message) if self._json else _as_text(record, message)
        self._stream.write(f"{line}\n")
        self._stream.flush()


def log_worker(name: str, settings: LogSettings, stream: TextIO, opening: str) -> None:
    """Write what this process logs to `stream`, for good; `name` is role and rank, `opening` the first line."""
    role, _, rank = name.rpartition(" ")
    handler = _WorkerLines(stream, settings.format, LogOrigin(settings.run, role, int(rank)))
    handler.setLevel(settings.level.upper())
    logging.getLogger().addHandler(handler)
    _LOG.setLevel(settings.level.upper())
    if settings.format == "json":
        record = logging.LogRecord("roll", logging.INFO, "", 0, opening, (), None)
        opening = LogOrigin(settings.run, role, int(rank)).as_json(record, opening)
    stream.write(f"{opening}\n")


def _time(record: logging.LogRecord) -> str:
    seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
    return f"{seconds}.{int(record.msecs):03}Z"


def _as_text(record: logging.LogRecord, message: str) -> str:
    return f"{_time(record)} {record.levelname} {message}"
