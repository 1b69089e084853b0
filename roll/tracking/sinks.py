"""Destinations of metrics: `metrics.jsonl`, TensorBoard, and the optional services.

A sink takes one mapping of numbers per step. A service's package is imported only when the service is configured.
"""

from __future__ import annotations

import importlib
import io
import json
import logging
import math
import os
import socket
import time
from collections.abc import Mapping
from io import FileIO
from pathlib import Path
from typing import Any, Protocol, cast

from roll.errors import ConfigError, RunStopped
from roll.tracking.log import announce


class Sink(Protocol):
    """Destination of the metrics of each step."""

    def write(self, step: int, metrics: Mapping[str, float]) -> None: ...

    def close(self) -> None: ...


class JsonLines:
    """One JSON object per line, on disk when `write` returns; numbers that are not finite are null."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        _remove_partial_line(path)
        self._file = FileIO(path, "ab")  # no buffer that closing would have to write

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        values = {name: float(value) if math.isfinite(value) else None for name, value in metrics.items()}
        line = (json.dumps({"step": step, "time": time.time(), **values}) + "\n").encode()
        try:
            _write_all(self._file, line)
        except OSError as cause:
            raise RunStopped(
                f"{self._path}: the metrics could not be written ({cause}); free some space and resume the run"
            ) from cause

    def truncate_after(self, step: int) -> bool:
        """Atomically drop the lines of steps later than `step`, which a resumed run writes again.

        Returns whether the line of `step` is there.
        """
        lines = [line for line in read_lines(self._path) if line["step"] <= step]
        temporary = self._path.with_name(f".{self._path.name}-{os.getpid()}")
        with temporary.open("w", encoding="utf-8") as file:
            file.writelines(json.dumps(line) + "\n" for line in lines)
            file.flush()
            os.fsync(file.fileno())
        self._file.close()
        temporary.replace(self._path)
        self._file = FileIO(self._path, "ab")
        return any(line["step"] == step for line in lines)

    def close(self) -> None:
        self._file.close()


def _write_all(file: FileIO, data: bytes) -> None:
    while data:
        data = data[file.write(data) :]


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The steps of a metrics file, without a last line that a crash cut short."""
    if not path.is_file():
        raise ConfigError(f"{path}: no such file; give the directory of a run that has begun")
    lines = path.read_text(encoding="utf-8").split("\n")
    complete = lines[:-1]  # text after the last newline is empty, or cut short
    return [_parse(f"{path}:{number}", line) for number, line in enumerate(complete, 1) if line.strip()]


def _parse(where: str, line: str) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except json.JSONDecodeError as error:
        raise ConfigError(f"{where}: not a line of metrics ({error}); remove the line") from None
    if not isinstance(value, dict) or not isinstance(cast(dict[str, Any], value).get("step"), int):
        raise ConfigError(f"{where}: not a line of metrics (got {line[:40]!r}); remove the line")
    return cast(dict[str, Any], value)


def _remove_partial_line(path: Path) -> None:
    """Remove a last line that a crash cut short, so that the next one starts on a line for itself."""
    if not path.is_file():
        return
    with path.open("rb+") as file:
        file.truncate(file.read().rfind(b"\n") + 1)


class TensorBoard:
    """Event files for `tensorboard --logdir`; a resume hides the steps that are written again.

    Steps that cannot be written are missing there: one line reports it, and a new file is tried at the next step.
    """

    def __init__(self, directory: Path, *, resumed_from: int | None = None) -> None:
        self._events, self._summaries, self._records = (
            cast(Any, importlib.import_module(f"tensorboard.{name}"))
            for name in ("compat.proto.event_pb2", "compat.proto.summary_pb2", "summary.writer.record_writer")
        )
        self._directory = directory
        self._file: FileIO | None = None
        self._num_files = 0
        self._failed = False
        self._pending: list[Any] = []
        """Events to write before the next step."""
        if resumed_from is not None:
            start = self._events.SessionLog(status=self._events.SessionLog.START)
            self._pending.append(self._event(step=resumed_from + 1, session_log=start))
        self._append()

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        summary = self._summaries.Summary
        values = [summary.Value(tag=name, simple_value=float(value)) for name, value in metrics.items()]
        self._append(self._event(step=step, summary=summary(value=values)))

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def _event(self, **fields: Any) -> Any:
        return self._events.Event(wall_time=time.time(), **fields)

    def _append(self, *events: Any) -> None:
        self._pending = [*(event for event in self._pending if event.HasField("session_log")), *events]
        try:
            if self._file is None:
                self._file = self._open()
                self._write(self._event(file_version="brain.Event:2"))
            for event in self._pending:
                self._write(event)
        except OSError as error:
            self.close()
            self._file = None  # its last record may be cut short
            if not self._failed:
                announce(f"{self._directory}: not written ({error}); the run continues without it", logging.WARNING)
            self._failed = True
        else:
            self._pending, self._failed = [], False

    def _write(self, event: Any) -> None:
        record = io.BytesIO()
        self._records.RecordWriter(record).write(event.SerializeToString())
        assert self._file is not None
        _write_all(self._file, record.getvalue())

    def _open(self) -> FileIO:
        self._num_files += 1
        self._directory.mkdir(parents=True, exist_ok=True)
        name = f"events.out.tfevents.{int(time.time())}.{socket.gethostname()}.{os.getpid()}.{self._num_files}"
        return FileIO(self._directory / name, "ab")


class _Service:
    """A service that takes metrics over the network; without a mode in the environment and an API key it is offline.

    Every start of a run, also a resume, is a separate record in a group with the run's name.
    """

    def __init__(
        self, service: Any, project: str, name: str, *, online: bool, config: Mapping[str, Any] | None, **folder: str
    ) -> None:
        mode = None if online else "offline"
        self._run: Any = service.init(
            project=project, name=name, group=name, mode=mode, config=dict(config or {}), **folder
        )

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        self._run.log(dict(metrics), step=step)

    def close(self) -> None:
        self._run.finish()


class Wandb(_Service):
    """Weights & Biases; WANDB_MODE sets the mode."""

    def __init__(self, project: str, name: str, directory: Path, *, config: Mapping[str, Any] | None = None) -> None:
        wandb = _extra("wandb")
        directory.mkdir(parents=True, exist_ok=True)
        online = "WANDB_MODE" in os.environ or wandb.login(prompt=False, verify=False)
        super().__init__(wandb, project, name, online=online, config=config, dir=str(directory))


class Swanlab(_Service):
    """SwanLab; SWANLAB_MODE sets the mode."""

    def __init__(self, project: str, name: str, directory: Path, *, config: Mapping[str, Any] | None = None) -> None:
        swanlab = _extra("swanlab")
        online = "SWANLAB_MODE" in os.environ or swanlab.Settings().api_key is not None
        super().__init__(swanlab, project, name, online=online, config=config, log_dir=str(directory))

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        super().write(
            step, {name: value for name, value in metrics.items() if math.isfinite(value)}
        )  # SwanLab rejects others


def _extra(package: str) -> Any:
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError as error:
        if error.name != package:
            raise  # the package is installed, but something it imports is not
        raise ConfigError(
            f"tracking.{package}: the package {package} is not installed; pip install 'roll-rl[{package}]'"
        ) from None
