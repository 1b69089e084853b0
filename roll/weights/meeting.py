"""Where the members of a broadcast meet: a file in a directory that all of them see, and the name in it.

Each controller writes a new name before its first transfer, so that workers which it has taken up from another
controller form a new group with the others.
"""

from __future__ import annotations

import uuid
from pathlib import Path

from roll.errors import RunStopped


def open_meeting(file: Path) -> None:
    """From now on the members meet anew."""
    file.parent.mkdir(parents=True, exist_ok=True)
    partial = file.with_name(f"{file.name}.part")
    partial.write_text(uuid.uuid4().hex[:8])
    partial.rename(file)


def current_meeting(file: Path) -> str:
    """The URL of the store in which the members find each other."""
    if not file.is_file():
        raise RunStopped(
            f"weights: {file} is missing; "
            "put the run's directory on a file system that every machine of the cluster sees"
        )
    return f"file://{file.absolute()}-{file.read_text()}"
