"""Kills a short run at every file operation and journal commit, continues it with `train --resume`, counts violations.

The run is real: native engine, rewards of which some fail, group filters, sampling by difficulty. A kill is
`os._exit`: no handler runs, and nothing is flushed.
"""

from __future__ import annotations

import builtins
import hashlib
import io
import multiprocessing
import os
import tempfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import typer
import yaml

from benchmarks.result import Result
from roll.report.verify import describe_violations, verify
from roll.tracking.progress import bar
from roll.types import Score, Task

STEPS, GROUPS, SIBLINGS = 4, 4, 4
RUN: dict[str, Any] = {
    "name": "short",
    "threads": 1,
    "steps": STEPS,
    "model": {
        "shape": {"alphabet": "0123456789+=", "hidden": 16, "layers": 1, "heads": 2, "kv_heads": 1, "mlp": 32}
        | {"max_seq_len": 64}
    },
    "algorithm": "grpo",
    "tasks": [
        {
            "name": "sums",
            "data": {"kind": "arithmetic", "count": 200},
            "reward": "benchmarks.crash_points:score",
            "task_sampling": {"target": 0.5},
            "filters": ["mixed"],
        }
    ],
    "rollout": {"groups_per_step": GROUPS, "group_size": SIBLINGS, "max_seq_len": 32, "max_new_tokens": 4}
    | {"max_retries": 1, "max_failed_groups": 100},
    "actor_train": {"optimizer": {"lr": 1e-3}},
    "actor_infer": {"max_num_seqs": 16},
    "checkpoint": {"every": 2, "keep": 1},
    "tracking": {"tensorboard": False},
}
_COUNT = Path(__file__).parents[1] / "examples/agents/count.py"
MODES: dict[str, Sequence[str]] = {
    "synchronous": ("deterministic=true",),
    "asynchronous": ("rollout.max_staleness=1",),
    "redundant": ("rollout.max_staleness=1", "rollout.redundant_groups=2", "rollout.redundant_siblings=1"),
    "lora": ("deterministic=true", "actor_train.lora={rank: 4, alpha: 8}"),
    "agents": (
        "deterministic=true",
        "model.shape.alphabet='123456789'",
        f"tasks=[{{name: count, agent: {{command: [python, {_COUNT}], preload: [warm], result: reward}}}}]",
        "rollout.max_new_tokens=2",
        "rollout.stop=['1', '2', '3', '4', '5', '6', '7', '8', '9']",
    ),
}
_KILLED = 9
_FRESH = multiprocessing.get_context("forkserver")
_OPERATIONS = ("replace", "rename", "unlink", "rmdir", "mkdir", "fsync")


def run() -> Result:
    """The number of violations over all points of all modes."""
    _FRESH.set_forkserver_preload(["roll.commands.train", "roll.cli"])
    faults: dict[str, list[str]] = {}
    num_points: dict[str, int] = {}
    with tempfile.TemporaryDirectory() as folder:
        for mode in MODES:
            num_points[mode], faults[mode] = _try_all(Path(folder) / mode, mode)
            typer.echo(f"{mode}: {num_points[mode]} points, {len(faults[mode])} violations")
    return Result(
        name="crash_points",
        unit="violations",
        higher_is_better=False,
        ours=float(sum(map(len, faults.values()))),
        bound=1.0,
        details={
            "points": num_points,
            "violations": {mode: each[:20] for mode, each in faults.items()},
        },
    )


def score(task: Task, response: str) -> Score:
    """The share of right digits; raises for two of ten responses, always the same ones."""
    if zlib.crc32(f"{task.id}/{response}".encode()) % 10 < 2:
        raise RuntimeError("no score")
    return Score(sum(a == b for a, b in zip(response, str(task.answer), strict=False)) / 4)


def _try_all(folder: Path, mode: str) -> tuple[int, list[str]]:
    """Number of points, and violations."""
    whole = folder / "whole"
    code, num_points = train(whole, mode, None)
    faults = [f"not killed: {fault}" for fault in violations(whole, code, None)]
    expected = weights(whole) if "deterministic=true" in MODES[mode] else None

    def try_point(point: int) -> list[str]:
        directory = folder / str(point)
        train(directory, mode, point)
        code, _ = train(directory, mode, None)
        return [f"point {point}: {fault}" for fault in violations(directory, code, expected)]

    with bar(num_points, f"{mode} crash points") as advance, ThreadPoolExecutor(os.cpu_count()) as pool:
        for found in pool.map(try_point, range(1, num_points + 1)):
            faults += found
            for fault in found:
                typer.echo(f"{mode}: {fault}", err=True)
            advance(1)
    return num_points, faults


def train(folder: Path, mode: str, point: int | None) -> tuple[int, int]:
    """Exit code of a process that starts or continues the run in `folder`, and the operations it made."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "run.yaml"
    file.write_text(yaml.safe_dump(RUN), encoding="utf-8")
    process = _FRESH.Process(target=_child, args=(folder, ("train", "run.yaml", *MODES[mode], "--resume"), point))
    process.start()
    process.join(600)
    if process.is_alive():
        process.kill()
        process.join()
    counted = folder / "operations"
    return process.exitcode or 0, int(counted.read_text(encoding="utf-8")) if counted.exists() else 0


def _child(folder: Path, arguments: Sequence[str], point: int | None) -> None:
    from roll.cli import main

    os.chdir(folder)
    output = os.open("output", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(output, 1)
    os.dup2(output, 2)
    counter = _Counter(folder / "runs", point)
    try:
        main(arguments)
    finally:
        counter.finish(folder / "operations")


class _Counter:
    """Counts file operations in a folder and journal commits, and ends the process before the one at `point`."""

    def __init__(self, folder: Path, point: int | None) -> None:
        from roll.journal.batch import WriteBatch

        self._folder, self._point, self._number = str(folder), point, 0
        for name in _OPERATIONS:
            setattr(os, name, self._wrap(getattr(os, name), always=name == "fsync"))
        self._open = io.open
        builtins.open = io.open = self._open_counted  # type: ignore[assignment]
        write = WriteBatch.write
        WriteBatch.write = lambda batch, connection: self._around(lambda: write(batch, connection))  # type: ignore[method-assign]

    def finish(self, path: Path) -> None:
        """Write the number of operations."""
        number, self._point = self._number, None
        path.write_text(str(number), encoding="utf-8")

    def _wrap(self, function: Callable[..., Any], *, always: bool) -> Callable[..., Any]:
        def counted(*args: Any, **kwargs: Any) -> Any:
            if always or self._inside(args[0]):
                self._count()
            return function(*args, **kwargs)

        return counted

    def _open_counted(self, file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        if set(mode) & set("wax+") and self._inside(file):
            self._count()
        return self._open(file, mode, *args, **kwargs)

    def _around(self, commit: Callable[[], None]) -> None:
        self._count()
        commit()
        self._count()

    def _inside(self, path: Any) -> bool:
        return isinstance(path, str | Path) and str(Path(path).absolute()).startswith(self._folder)

    def _count(self) -> None:
        self._number += 1
        if self._number == self._point:
            os._exit(_KILLED)


def violations(folder: Path, code: int, expected: str | None) -> Iterator[str]:
    """What is wrong with a run that ended with this exit code; `expected` are the weights it must have."""
    path = folder / "runs" / "short"
    if code:
        tail = (folder / "output").read_text(encoding="utf-8", errors="replace").strip().splitlines()[-1:]
        yield f"exit code {code}: {tail}"
        return
    if expected is not None and weights(folder) != expected:
        yield "other weights than those of the unbroken run"
    verification = verify(path)
    if verification.steps != STEPS:
        yield f"{verification.steps} steps instead of {STEPS}"
    yield from describe_violations(verification)


def weights(folder: Path) -> str:
    """Digest of the model of a finished run."""
    return hashlib.sha256((folder / "runs/short/model/model.safetensors").read_bytes()).hexdigest()
