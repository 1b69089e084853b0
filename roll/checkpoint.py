"""Directories that appear complete or not at all: written under a temporary name, synced, then renamed.

One process writes; any may read. `recover` cleans up after a crash.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, cast

from safetensors import SafetensorError

from roll.errors import ConfigError, RunStopped

FORMAT = 4
_STEP = re.compile(r"step-(\d+)")
_OLD = re.compile(r"\.old-(step-\d+)-\d+")


class Checkpoints:
    """The checkpoints of one run: `step-N` for the newest `keep`, and the one with the best score."""

    def __init__(self, directory: Path, *, keep: int) -> None:
        self.directory, self.keep = directory, keep
        self.pinned: int | None = None
        """Step of a checkpoint that is kept as well, because the run was resumed from it."""

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
        self.directory.mkdir(parents=True, exist_ok=True)
        self.recover()
        final = self.directory / f"step-{step}"
        await write_atomically(final, fill)
        self._mark(step, score)
        self._retain()
        return final

    def steps(self) -> list[int]:
        """The steps of the checkpoints on disk, in order."""
        matches = [_STEP.fullmatch(path.name) for path in _entries(self.directory)]
        return sorted(int(match[1]) for match in matches if match)

    def latest(self) -> Path | None:
        steps = self.steps()
        return self.directory / f"step-{steps[-1]}" if steps else None

    def best(self) -> Path | None:
        """The checkpoint with the highest score; None if none was scored."""
        marked = self._best()
        path = None if marked is None else self.directory / f"step-{marked[0]}"
        return path if path and path.is_dir() else None

    def _mark(self, step: int, score: float | None) -> None:
        marked = self._best()
        if score is None or (marked and marked[0] != step and marked[1] >= score):
            return
        temporary = self.directory / f".tmp-best-{os.getpid()}"
        temporary.write_text(json.dumps({"step": step, "score": score}), encoding="utf-8")
        _sync(temporary)
        temporary.replace(self.directory / "best.json")
        _sync(self.directory)

    def _best(self) -> tuple[int, float] | None:
        path = self.directory / "best.json"
        if not path.exists():
            return None
        best = _load(path)
        if not isinstance(best.get("step"), int) or not isinstance(best.get("score"), int | float):
            raise ConfigError(f"{path}: has no step and score; remove it, the next validation writes a new one")
        return best["step"], float(best["score"])

    def _retain(self) -> None:
        marked = self._best()
        for step in self.steps()[: -self.keep]:
            if step != self.pinned and (marked is None or step != marked[0]):
                _remove(self.directory / f"step-{step}")


async def write_atomically(final: Path, fill: Callable[[Path], Awaitable[None]]) -> None:
    """Write the directory `final` through `fill`, which gets a temporary one; replaces an existing one only then."""
    temporary = final.with_name(f".tmp-{final.name}-{os.getpid()}")
    old = final.with_name(f".old-{final.name}-{os.getpid()}")
    try:
        temporary.mkdir()
        await fill(temporary)
        _sync_tree(temporary)
        if final.exists():
            final.rename(old)  # rename cannot overwrite a directory with files
        temporary.rename(final)
        _sync(final.parent)
        _remove(old)
    except BaseException as cause:
        _remove(temporary)
        if not is_write_failure(cause):
            raise
        raise RunStopped(
            f"{final}: could not be written ({type(cause).__name__}: {cause}); "
            f"the previous one is intact; free some space and resume the run"
        ) from cause


def write_state(directory: Path, state: dict[str, Any]) -> None:
    """Write `state.json` into a checkpoint: JSON with a format number."""
    text = json.dumps({"format": FORMAT, "state": state}, allow_nan=False)
    (directory / "state.json").write_text(text, encoding="utf-8")


def read_state(directory: Path) -> dict[str, Any]:
    """Read the state that `write_state` wrote."""
    path = directory / "state.json"
    if not path.is_file():
        raise ConfigError(f"{path}: no such file; resume from another checkpoint")
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
    except ValueError as error:  # invalid JSON or UTF-8
        raise ConfigError(f"{path}: not JSON ({error}); resume from another checkpoint") from None
    if not isinstance(content, dict):
        raise ConfigError(
            f"{path}: a JSON object expected (got {type(content).__name__}); resume from another checkpoint"
        )
    return cast(dict[str, Any], content)


def is_write_failure(cause: BaseException) -> bool:
    """Whether the error is a failed write, as Python, safetensors or torch report it."""
    archive = isinstance(cause, RuntimeError) and "inline_container" in str(cause)  # torch.save
    return archive or isinstance(cause, OSError | SafetensorError)


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


def _sync_tree(directory: Path) -> None:
    for root, _, files in os.walk(directory, topdown=False):
        for name in files:
            _sync(Path(root) / name)
        _sync(Path(root))
    _sync(directory.parent)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
