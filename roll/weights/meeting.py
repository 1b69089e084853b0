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


def cancel_transfer(file: Path, version: int) -> None:
    """Members that still wait for others to transfer this version, or an earlier one, give up."""
    mark = _cancelled(file)
    partial = mark.with_name(f"{mark.name}.part")
    partial.write_text(str(version))
    partial.rename(mark)


def is_cancelled(file: Path, version: int) -> bool:
    """Whether the controller has cancelled the transfer of a version in the current meeting."""
    try:
        return int(_cancelled(file).read_text()) >= version
    except FileNotFoundError:
        return False


def current_meeting(file: Path) -> str:
    """The URL of the store in which the members find each other."""
    if not file.is_file():
        raise RunStopped(
            f"weights: {file} is missing; "
            "put the run's directory on a file system that every machine of the cluster sees"
        )
    return f"file://{file.absolute()}-{file.read_text()}"


def _cancelled(file: Path) -> Path:
    """The file with the last cancelled version of a meeting."""
    return file.with_name(f"{file.name}-{file.read_text()}.cancelled")
