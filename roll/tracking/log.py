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
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

_LOG = logging.getLogger("roll")
_ANNOUNCED = "announced"
"""Attribute of a record: true is printed to standard output, false is not printed; without it, warnings are printed."""
_SECRET = re.compile(r"(KEY|TOKEN|SECRET|PASSWORD|PASSWD)$", re.IGNORECASE)
_SHORTEST_SECRET = 8


class Terminal(logging.Handler):
    """Shows warnings, and lines that are announced."""

    def __init__(self) -> None:
        super().__init__()
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
        if self.show is not None:
            self.show(record.getMessage())
            return
        stream = sys.stdout if announced else sys.stderr
        stream.write(f"{record.getMessage()}\n")
        stream.flush()

    @contextmanager
    def showing(self, show: Callable[[str], None]) -> Generator[None]:
        """Print with `show` inside the block, unless `quiet`."""
        self.show = None if self.quiet else show
        try:
            yield
        finally:
            self.show = None


def announce(line: str, level: int = logging.INFO) -> None:
    """Log a line, and print it to standard output."""
    _LOG.log(level, "%s", line, extra={_ANNOUNCED: True})


def log_only(line: str, level: int) -> None:
    """Log a line that is printed elsewhere, such as the error that ends a run."""
    _LOG.log(level, "%s", line, extra={_ANNOUNCED: False})


@contextmanager
def controller_log(path: Path, form: Literal["text", "json"] = "text") -> Generator[Terminal]:
    """Write everything that is logged inside the block to `path`, and show warnings on the terminal.

    If a fatal signal such as SIGSEGV or SIGABRT ends the process, the stacks of its threads are written there too.
    """
    file, terminal, root, level = _LogFile(path, form), Terminal(), logging.getLogger(), _LOG.level
    _LOG.setLevel(logging.INFO)
    for handler in (file, terminal):
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

    def __init__(self, path: Path, form: Literal["text", "json"]) -> None:
        super().__init__()
        self._json, self._path = form == "json", path
        self._file = path.open("ab", buffering=0)
        self._secrets = [
            value for name, value in os.environ.items() if _SECRET.search(name) and len(value) >= _SHORTEST_SECRET
        ]

    def emit(self, record: logging.LogRecord) -> None:
        seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        message = " ".join(record.getMessage().splitlines())
        for secret in self._secrets:
            message = message.replace(secret, "***")
        entry = {"time": f"{seconds}.{int(record.msecs):03}Z", "level": record.levelname, "message": message}
        line = json.dumps(entry, ensure_ascii=False) if self._json else " ".join(entry.values())
        with contextlib.suppress(OSError):
            if self._file.closed:  # `logging.config.dictConfig`, which vLLM calls, closes all handlers
                self._file = self._path.open("ab", buffering=0)
            self._file.write(f"{line}\n".encode(errors="replace"))

    def close(self) -> None:
        self._file.close()
        super().close()
