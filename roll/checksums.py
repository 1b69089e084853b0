"""Checksums of the files of a directory, in a file next to them; they reveal a changed, truncated or missing file.

CRC-32 is the fastest hash in Python's library. It detects accidental damage and is no protection from tampering.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

from roll.errors import ConfigError

CHECKSUMS = "checksums.json"
_FORMAT = 1
_CHUNK = 2**20


def write_checksums(directory: Path, on_file: Callable[[str], None] = lambda name: None) -> None:
    """Write the sizes and checksums of all files below `directory` into it, and sync all of them to disk.

    `on_file` gets the name of each file before it is read.
    """
    files: dict[str, tuple[int, int]] = {}
    for name in sorted(_names(directory)):
        on_file(name)
        files[name] = read_checksum(directory / name)
        sync(directory / name)
    text = json.dumps({"format": _FORMAT, "crc32": _crc(files), "files": files}, indent=1)
    (directory / CHECKSUMS).write_text(text, encoding="utf-8")
    sync(directory / CHECKSUMS)
    for root, _, _ in os.walk(directory, topdown=False):
        sync(Path(root))


def read_checksums(directory: Path) -> dict[str, tuple[int, int]] | None:
    """Size and CRC-32 by relative path; None if the directory has no checksums. `ValueError` if they are damaged."""
    try:
        text = (directory / CHECKSUMS).read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    return parse_checksums(text)


def parse_checksums(text: str) -> dict[str, tuple[int, int]]:
    """Size and CRC-32 by relative path, from the text of a checksum file; `ValueError` if it is damaged."""
    parsed: Any = json.loads(text)
    content = cast(dict[str, Any], parsed) if isinstance(parsed, dict) else {}
    entries = content.get("files")
    if not isinstance(entries, dict):
        raise ValueError("it has no list of files")
    entries = cast(dict[str, Any], entries)
    if content.get("crc32") != _crc(entries):
        raise ValueError("its content differs from what was written")
    return {name: (size, crc) for name, (size, crc) in entries.items()}


def find_damage(directory: Path, below: Path = Path()) -> str | None:
    """The first file in the subfolder `below` that is not as it was written, and how it differs.

    "" if all files are intact; None if the directory has no checksums.
    """
    try:
        files = read_checksums(directory)
    except (OSError, ValueError) as error:
        return f"{CHECKSUMS}: not readable ({error})"
    if files is None:
        return None
    relevant = {name: written for name, written in files.items() if Path(name).is_relative_to(below)}
    differences = (describe_difference(directory / name, *written) for name, written in relevant.items())
    return next((f"{name}: {text}" for name, text in zip(relevant, differences, strict=True) if text), "")


def check_model(path: Path, where: str) -> None:
    """Raise `ConfigError` if a model folder, which may lie within a checkpoint, has checksums and a damaged file.

    `where` is the setting that names the folder.
    """
    for folder in (path, *path.parents[:2]):
        if (folder / CHECKSUMS).is_file():
            if damage := find_damage(folder, path.relative_to(folder)):
                raise ConfigError(
                    f"{where}: {folder} is damaged: {damage}; give another model, "
                    f"or remove {folder / CHECKSUMS} if the change is intended"
                )
            return


def describe_difference(path: Path, size: int, crc: int) -> str:
    """How a file differs from the one that was written with this size and checksum; "" if it does not."""
    try:
        if (now := path.stat().st_size) != size:
            return f"{now:,} bytes long (written: {size:,})"
        if (current := read_checksum(path)[1]) != crc:
            return f"its content has changed (CRC-32 {current:08x}, written: {crc:08x})"
    except FileNotFoundError:
        return "missing"
    except OSError as error:
        return f"could not be read ({error.strerror})"
    return ""


def read_checksum(path: Path) -> tuple[int, int]:
    """Size and CRC-32 of a file."""
    buffer, size, crc = memoryview(bytearray(_CHUNK)), 0, 0
    with path.open("rb", buffering=0) as file:
        while num := file.readinto(buffer):
            crc, size = zlib.crc32(buffer[:num], crc), size + num
    return size, crc


def sync(path: Path) -> None:
    """Return once a file or directory is on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _names(directory: Path) -> Iterator[str]:
    for root, _, files in os.walk(directory):
        for name in files:
            if (relative := str((Path(root) / name).relative_to(directory))) != CHECKSUMS:
                yield relative


def _crc(files: Any) -> int:
    return zlib.crc32(json.dumps(files, sort_keys=True).encode())
