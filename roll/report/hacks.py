"""Notices about possible reward hacking, with the command that shows their examples."""

from __future__ import annotations

import shlex
from pathlib import Path

from roll.journal.events import HackSuspected


def notice(event: HackSuspected, directory: Path) -> str:
    """The notice in one line."""
    line = f"step {event.step}: possible reward hacking in {event.domain!r}: {event.reason}"
    if not event.attempts:
        return line
    return f"{line}; see `roll samples {shlex.quote(str(directory))} --attempt {','.join(event.attempts)}`"
