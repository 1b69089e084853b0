"""Destinations of metrics: `metrics.jsonl`, TensorBoard, and the optional services.

A sink takes one mapping of numbers per step. A service's package is imported only when the service is configured.
"""

from __future__ import annotations

import importlib
import json
import math
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol, cast

from roll.errors import ConfigError, RunStopped


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
        self._file = path.open("ab", buffering=0)  # no buffer that closing would have to write

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        values = {name: float(value) if math.isfinite(value) else None for name, value in metrics.items()}
        line = (json.dumps({"step": step, "time": time.time(), **values}) + "\n").encode()
        try:
            while line:
                line = line[self._file.write(line) :]
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
        self._file = self._path.open("ab", buffering=0)
        return any(line["step"] == step for line in lines)

    def close(self) -> None:
        self._file.close()


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
    """Event files for `tensorboard --logdir`; a resume hides the steps that are written again."""

    def __init__(self, directory: Path, *, resumed_from: int | None = None) -> None:
        from torch.utils.tensorboard.writer import SummaryWriter

        purge_step = None if resumed_from is None else resumed_from + 1
        self._writer: Any = SummaryWriter(str(directory), purge_step=purge_step, flush_secs=10)

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        self._writer.close()


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
