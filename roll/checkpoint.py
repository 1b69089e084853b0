"""Directories that appear whole or not at all: written aside, made durable, renamed; then the old ones go.

One process writes; any may read. What a crash leaves behind, `recover` puts right.
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

FORMAT = 2
_STEP = re.compile(r"step-(\d+)")
_OLD = re.compile(r"\.old-(step-\d+)-\d+")


class Checkpoints:
    """The checkpoints of one run: `step-N` for the newest `keep`, besides the one with the best score."""

    def __init__(self, directory: Path, *, keep: int) -> None:
        self.directory, self.keep = directory, keep

    def recover(self) -> None:
        """Remove what an interrupted write left behind. Only for the process that writes, before it reads."""
        for path in [path for path in _entries(self.directory) if path.name.startswith(".")]:
            replaced = _OLD.fullmatch(path.name)
            if replaced and not (self.directory / replaced[1]).exists():
                path.rename(self.directory / replaced[1])  # the crash came between the two renames of a rewrite
            elif replaced or path.name.startswith(".tmp-"):
                _remove(path)

    async def write(self, step: int, fill: Callable[[Path], Awaitable[None]], *, score: float | None = None) -> Path:
        """The directory `step-N` with what `fill` wrote into the one it was given; durable when this returns.

        A failed write leaves no trace and touches no earlier checkpoint. The highest score is the best.
        """
        self.directory.mkdir(parents=True, exist_ok=True)
        self.recover()
        final = self.directory / f"step-{step}"
        await write_whole(final, fill)
        self._mark(step, score)
        self._retain()
        return final

    def steps(self) -> list[int]:
        """Of the checkpoints on disk, in order."""
        found = [_STEP.fullmatch(path.name) for path in _entries(self.directory)]
        return sorted(int(match[1]) for match in found if match)

    def latest(self) -> Path | None:
        steps = self.steps()
        return self.directory / f"step-{steps[-1]}" if steps else None

    def best(self) -> Path | None:
        """The checkpoint with the highest score; None before one was scored."""
        marked = self._best()
        path = None if marked is None else self.directory / f"step-{marked[0]}"
        return path if path and path.is_dir() else None

    def _mark(self, step: int, score: float | None) -> None:
        marked = self._best()
        if score is None or (marked and marked[0] != step and marked[1] >= score):
            return
        aside = self.directory / f".tmp-best-{os.getpid()}"
        aside.write_text(json.dumps({"step": step, "score": score}), encoding="utf-8")
        _sync(aside)
        aside.replace(self.directory / "best.json")
        _sync(self.directory)

    def _best(self) -> tuple[int, float] | None:
        path = self.directory / "best.json"
        if not path.exists():
            return None
        found = _load(path)
        if not isinstance(found.get("step"), int) or not isinstance(found.get("score"), int | float):
            raise ConfigError(f"{path}: names no step and score; remove it, the next validation writes it anew")
        return found["step"], float(found["score"])

    def _retain(self) -> None:
        marked = self._best()
        for step in self.steps()[: -self.keep]:
            if marked is None or step != marked[0]:
                _remove(self.directory / f"step-{step}")


async def write_whole(final: Path, fill: Callable[[Path], Awaitable[None]]) -> None:
    """The directory `final` with what `fill` wrote into the one it was given; what stood there goes only then."""
    aside = final.with_name(f".tmp-{final.name}-{os.getpid()}")
    old = final.with_name(f".old-{final.name}-{os.getpid()}")
    try:
        aside.mkdir()
        await fill(aside)
        _sync_tree(aside)
        if final.exists():
            final.rename(old)  # a directory cannot be renamed over one that has files
        aside.rename(final)
        _sync(final.parent)
        _remove(old)
    except BaseException as cause:
        _remove(aside)
        if not _refused(cause):
            raise
        raise RunStopped(
            f"{final}: could not be written ({type(cause).__name__}: {cause}); "
            f"what was there before is intact, free some space and resume the run"
        ) from cause


def write_state(directory: Path, state: dict[str, Any]) -> None:
    """Put `state.json` into a checkpoint: plain JSON under a format number."""
    text = json.dumps({"format": FORMAT, "state": state}, allow_nan=False)
    (directory / "state.json").write_text(text, encoding="utf-8")


def read_state(directory: Path) -> dict[str, Any]:
    """What `write_state` put there."""
    path = directory / "state.json"
    if not path.is_file():
        raise ConfigError(f"{path}: no such file; resume from another checkpoint")
    found = _load(path)
    if found.get("format") != FORMAT:
        raise ConfigError(
            f"{path}: format {FORMAT} expected (got {found.get('format')!r}); use the version that wrote it"
        )
    if not isinstance(found.get("state"), dict):
        raise ConfigError(f"{path}: holds no state; resume from another checkpoint")
    return cast(dict[str, Any], found["state"])


def _load(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:  # broken JSON or broken UTF-8
        raise ConfigError(f"{path}: not JSON ({error}); resume from another checkpoint") from None
    if not isinstance(found, dict):
        raise ConfigError(
            f"{path}: a JSON object expected (got {type(found).__name__}); resume from another checkpoint"
        )
    return cast(dict[str, Any], found)


def _refused(cause: BaseException) -> bool:
    """Whether the system refused a write, in the words of those who write: Python, safetensors and torch."""
    archive = isinstance(cause, RuntimeError) and "inline_container" in str(cause)  # torch.save has no error of its own
    return archive or isinstance(cause, OSError | SafetensorError)


def _entries(directory: Path) -> list[Path]:
    return sorted(directory.iterdir()) if directory.is_dir() else []


def _remove(path: Path) -> None:
    """Delete a file or a tree. A tree loses its name first: half of a checkpoint must not look like one."""
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
