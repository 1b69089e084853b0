"""Directories that appear complete or not at all: written under a temporary name, synced, then renamed.

One process writes; any may read. `recover` cleans up after a crash. Checkpoints carry checksums of their files.
"""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import os
import re
import shutil
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from safetensors import SafetensorError

from roll.checksums import CHECKSUMS, find_damage, sync, write_checksums
from roll.errors import ConfigError, RunStopped, one_line

_LOG = logging.getLogger(__name__)
FORMAT = 4
_STEP = re.compile(r"step-(\d+)")
_OLD = re.compile(r"\.old-(step-\d+)-\d+")


class WriteFailed(RunStopped):
    """A directory could not be written, and nothing of it is left. `what` names it and the cause."""

    def __init__(self, what: str, fix: str = "free some space") -> None:
        self.what, self.fix = what, fix
        super().__init__(what, fix)  # the fields are args, so that the error pickles

    def __str__(self) -> str:
        return f"{self.what}; the previous one is intact; {self.fix} and resume the run"


@dataclass(frozen=True, slots=True, kw_only=True)
class IntactCheckpoint:
    """The newest checkpoint whose files are as they were written."""

    path: Path
    damaged: tuple[Path, ...] = ()
    """Newer checkpoints with damaged files."""
    notes: tuple[str, ...] = ()
    """One line about each damaged checkpoint, and one if this one has no checksums."""


class Checkpoints:
    """The checkpoints of one run: `step-N` for the newest `keep`, and the one with the best score."""

    def __init__(self, directory: Path, *, keep: int) -> None:
        self.directory, self.keep = directory, keep
        self.pinned: int | None = None
        """Step of a checkpoint that is kept as well, because the run was resumed from it."""
        self.activity = ""
        """The file operation in progress, for warnings about slow storage."""
        self._started: int | None = None
        """Step of the last write that has begun."""

    def recover(self) -> None:
        """Remove the remains of an interrupted write. Only for the writing process, before it reads."""
        for path in [path for path in _entries(self.directory) if path.name.startswith(".")]:
            replaced = _OLD.fullmatch(path.name)
            if replaced and not (self.directory / replaced[1]).exists():
                path.rename(self.directory / replaced[1])  # crashed between the two renames of a rewrite
            elif replaced or path.name.startswith(".tmp-"):
                _remove(path)

    async def write(self, step: int, fill: Callable[[Path], Awaitable[None]], *, score: float | None = None) -> Path:
        """Write `step-N` through `fill`, which gets a temporary directory; durable when this returns.

        A failed write leaves no trace and changes no earlier checkpoint. The highest score is the best.
        """
        final, self._started = self.directory / f"step-{step}", step
        with as_write_failure(final):
            self.directory.mkdir(parents=True, exist_ok=True)
            self.recover()
        try:
            await write_atomically(final, fill, complete=self._add_checksums)
            await asyncio.to_thread(self._retain, step, score)
        except OSError as error:  # the checkpoint itself is complete
            _LOG.warning("%s: the best one is not marked, or old ones are not removed (%s)", self.directory, error)
        finally:
            self.activity = ""
        return final

    def _add_checksums(self, directory: Path) -> None:
        def report(name: str) -> None:
            self.activity = f"syncing {name} to disk"

        write_checksums(directory, report)
        self.activity = "renaming the directory"

    def steps(self) -> list[int]:
        """The steps of the checkpoints on disk, in order."""
        matches = [_STEP.fullmatch(path.name) for path in _entries(self.directory)]
        return sorted(int(match[1]) for match in matches if match)

    def resume_step(self) -> int | None:
        """Step of the checkpoint that a run would resume from, or of the first one while it is written."""
        return max(self.steps(), default=self._started)

    def latest(self) -> Path | None:
        steps = self.steps()
        return self.directory / f"step-{steps[-1]}" if steps else None

    def newest_intact(self) -> IntactCheckpoint | None:
        """The newest checkpoint without damage; None if there is no checkpoint, an error if all are damaged.

        Reads all files of the checkpoints it looks at.
        """
        notes: list[str] = []
        damaged: list[Path] = []
        for step in reversed(self.steps()):
            path = self.directory / f"step-{step}"
            damage = find_damage(path)
            if damage:
                damaged.append(path)
                notes.append(f"{path}: damaged: {damage}; it is not used")
                continue
            if damage is None:
                notes.append(f"{path}: has no {CHECKSUMS}, so its files cannot be checked for damage")
            return IntactCheckpoint(path=path, damaged=tuple(damaged), notes=tuple(notes))
        if damaged:
            raise ConfigError(
                f"{notes[0].removesuffix('; it is not used')}; none of the {len(damaged)} checkpoints is intact: "
                "nothing was changed; copy one back from a backup, or start a new run"
            )
        return None

    def set_aside(self, damaged: Path) -> Path:
        """Rename a damaged checkpoint, so that it neither counts nor takes the place of a good one; the new path."""
        target = self.directory / f"damaged-{damaged.name}"
        _remove(target)
        return damaged.rename(target)

    def best(self) -> Path | None:
        """The checkpoint with the highest score; None if none was scored."""
        marked = self._best()
        return None if marked is None else self.directory / f"step-{marked[0]}"

    def _mark(self, step: int, score: float | None) -> None:
        marked = self._best()
        if score is None or (marked and marked[0] != step and marked[1] >= score):
            return
        temporary = self.directory / f".tmp-best-{os.getpid()}"
        temporary.write_text(json.dumps({"step": step, "score": score}), encoding="utf-8")
        sync(temporary)
        temporary.replace(self.directory / "best.json")
        sync(self.directory)

    def _best(self) -> tuple[int, float] | None:
        path = self.directory / "best.json"
        if not path.exists():
            return None
        best = _load(path)
        if not isinstance(best.get("step"), int) or not isinstance(best.get("score"), int | float):
            raise ConfigError(f"{path}: has no step and score; remove it, the next validation writes a new one")
        if not (self.directory / f"step-{best['step']}").is_dir():
            return None
        return best["step"], float(best["score"])

    def _retain(self, step: int, score: float | None) -> None:
        """Record the score of the new checkpoint, and remove old ones."""
        self.activity = "removing old checkpoints"
        self._mark(step, score)
        marked = self._best()
        for step in self.steps()[: -self.keep]:
            if step != self.pinned and (marked is None or step != marked[0]):
                _remove(self.directory / f"step-{step}")


async def write_atomically(
    final: Path, fill: Callable[[Path], Awaitable[None]], complete: Callable[[Path], None] = write_checksums
) -> None:
    """Write the directory `final` through `fill`, which gets a temporary one; replaces an existing one only then.

    `complete` adds checksums and syncs to disk, in another thread: the event loop does not wait for slow storage.
    """
    temporary = final.with_name(f".tmp-{final.name}-{os.getpid()}")
    old = final.with_name(f".old-{final.name}-{os.getpid()}")

    def publish() -> None:
        complete(temporary)
        if final.exists():
            final.rename(old)  # rename cannot overwrite a directory with files
        temporary.rename(final)
        sync(final.parent)
        _remove(old)

    with as_write_failure(final):
        publishing = False
        try:
            temporary.mkdir()
            await fill(temporary)
            publishing = True
            await asyncio.to_thread(publish)
        except BaseException as error:
            if publishing and isinstance(error, asyncio.CancelledError):
                raise  # the thread is not cancelled: it continues, and may rename the directory at any moment
            with suppress(OSError):  # a file system that became read-only; `recover` removes it later
                _remove(temporary)
            raise


def write_state(directory: Path, state: dict[str, Any]) -> None:
    """Write `state.json` into a checkpoint: JSON with a format number."""
    text = json.dumps({"format": FORMAT, "state": state}, allow_nan=False)
    (directory / "state.json").write_text(text, encoding="utf-8")


def read_state(directory: Path) -> dict[str, Any]:
    """Read the state that `write_state` wrote."""
    path = directory / "state.json"
    content = _load(path)
    if content.get("format") != FORMAT:
        raise ConfigError(
            f"{path}: format {FORMAT} expected (got {content.get('format')!r}); use the version that wrote it"
        )
    if not isinstance(content.get("state"), dict):
        raise ConfigError(f"{path}: has no state; resume from another checkpoint")
    return cast(dict[str, Any], content["state"])


def _load(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:  # also if a running process has just removed it
        raise ConfigError(f"{path}: no such file; resume from another checkpoint") from None
    except ValueError as error:  # invalid JSON or UTF-8
        raise ConfigError(f"{path}: not JSON ({error}); resume from another checkpoint") from None
    if not isinstance(content, dict):
        raise ConfigError(
            f"{path}: a JSON object expected (got {type(content).__name__}); resume from another checkpoint"
        )
    return cast(dict[str, Any], content)


@contextmanager
def as_write_failure(path: Path) -> Generator[None]:
    """Raise failed writes in this block, as Python, safetensors or torch report them, as `WriteFailed`."""
    try:
        yield
    except (OSError, SafetensorError, RuntimeError) as cause:
        archive = isinstance(cause, RuntimeError) and "inline_container" in str(cause)  # torch.save
        network = isinstance(cause, ConnectionError | TimeoutError)
        if network or not (archive or isinstance(cause, OSError | SafetensorError)):
            raise
        writable = getattr(cause, "errno", None) != errno.EROFS
        raise WriteFailed(
            f"{path}: could not be written ({type(cause).__name__}: {one_line(str(cause))})",
            "free some space" if writable else "make the file system writable",
        ) from cause


def _entries(directory: Path) -> list[Path]:
    return sorted(directory.iterdir()) if directory.is_dir() else []


def _remove(path: Path) -> None:
    """Delete a file or a tree. A tree is renamed first: a half-deleted checkpoint must not look like one."""
    if not path.is_dir():
        path.unlink(missing_ok=True)
        return
    if not path.name.startswith(".tmp-"):
        path = path.rename(path.with_name(f".tmp-gone-{path.name.lstrip('.')}-{os.getpid()}"))
    shutil.rmtree(path)
