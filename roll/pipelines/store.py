"""Checkpoints of a run in a file store that fsspec reaches, such as object storage.

The store has a folder `step-N` for each checkpoint, with the checkpoint itself and the files of the run that a resume
needs. Its checksums are written last: a folder without them is incomplete and does not count.
"""

from __future__ import annotations

import importlib
import posixpath
import re
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

from roll.checksums import CHECKSUMS, describe_difference, parse_checksums, sync
from roll.errors import ConfigError, one_line

CHECKPOINT, RUN = "checkpoint", "run"
"""Subfolders of a stored step: its checkpoint, and files of the run directory."""
_STEP = re.compile(r"step-(\d+)")


class CheckpointStore:
    """The stored checkpoints of one run. Errors of the store are raised as they are, of any type."""

    def __init__(self, url: str) -> None:
        """`ConfigError` if no installed package can reach the URL. The connection is made at the first use."""
        self.url = url.rstrip("/")
        self._core: Any = importlib.import_module("fsspec.core")
        self._opened: tuple[Any, str] | None = None
        try:
            self._core.get_filesystem_class(url.partition("://")[0])
        except (ImportError, ValueError) as error:
            text = one_line(str(error))
            raise ConfigError(f"{url}: cannot be used ({text}); install the package, or give another URL") from None

    def disconnect(self) -> None:
        """Make a new connection at the next use."""
        self._opened = None

    @property
    def _files(self) -> Any:
        if self._opened is None:
            options = {"auto_mkdir": True} if self.url.startswith("file:") else {}
            self._opened = self._core.url_to_fs(self.url, skip_instance_cache=True, **options)
        return cast(tuple[Any, str], self._opened)[0]

    def steps(self) -> list[int]:
        """The steps with a complete checkpoint, in order."""
        return [step for step in self._folders() if self._files.exists(self._path(step, CHECKSUMS))]

    def upload(self, step: int, folder: Path, on_bytes: Callable[[int], None]) -> None:
        """Store a folder with checksums as this step; `on_bytes` gets the size of each file that is stored."""
        listing = self._path(step, CHECKSUMS)
        self._files.invalidate_cache()
        if self._files.exists(listing):  # of an earlier try, or of a step that is trained again
            self._files.rm_file(listing)
        files = parse_checksums((folder / CHECKSUMS).read_text(encoding="utf-8"))
        for name, (size, _) in files.items():
            self._files.put_file(str(folder / name), self._path(step, name))
            on_bytes(size)
        self._files.put_file(str(folder / CHECKSUMS), listing)

    def remove_except(self, steps: Iterable[int]) -> None:
        """Remove all other steps, complete or not; their checksums first."""
        for step in set(self._folders()) - set(steps):
            if self._files.exists(self._path(step, CHECKSUMS)):
                self._files.rm_file(self._path(step, CHECKSUMS))
            self._files.rm(self._path(step), recursive=True)

    def download(self, step: int, target: Path, on_bytes: Callable[[int], None] = lambda size: None) -> None:
        """Copy the files of a step into the empty folder `target`; `ValueError` if one differs from its checksum."""
        files = parse_checksums(self._files.cat_file(self._path(step, CHECKSUMS)).decode())
        for name, (size, crc) in files.items():
            path = target / name
            path.parent.mkdir(parents=True, exist_ok=True)
            self._files.get_file(self._path(step, name), str(path))
            if difference := describe_difference(path, size, crc):
                raise ValueError(f"{name}: {difference}")
            sync(path)
            on_bytes(size)

    def _folders(self) -> list[int]:
        self._files.invalidate_cache()
        try:
            paths: list[str] = self._files.ls(self._path(), detail=False)
        except FileNotFoundError:
            return []
        matches = [_STEP.fullmatch(posixpath.basename(path.rstrip("/"))) for path in paths]
        return sorted(int(match[1]) for match in matches if match)

    def _path(self, step: int | None = None, name: str = "") -> str:
        assert self._files is not None
        root = cast(tuple[Any, str], self._opened)[1]
        return root if step is None else posixpath.join(root, f"step-{step}", name).rstrip("/")


@contextmanager
def reading(url: str) -> Generator[None]:
    """Raise errors of the store in this block as `ConfigError` with the URL."""
    try:
        yield
    except ConfigError:
        raise
    except Exception as error:  # packages for stores have their own types of errors
        what = f"{type(error).__name__}: {one_line(str(error))}"
        raise ConfigError(f"{url}: could not be read ({what}); check the address and the credentials") from error
