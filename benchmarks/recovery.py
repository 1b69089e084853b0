"""Seconds from a SIGKILL to the recorded recovery, by kind of process, beside the start of the same process alone."""

from __future__ import annotations

import asyncio
import os
import pickle
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import typer
import yaml

from benchmarks.chaos import REWARD, RUN, violations
from benchmarks.result import Result
from roll.cluster.process import ProcessWorker
from roll.commands.chaos.outcome import ChaosPlan
from roll.commands.chaos.run import run_chaos
from roll.config.load import load
from roll.config.schema import Run
from roll.errors import RollError
from roll.journal.events import ControllerRestarted, Event, RunStarted, WeightsPublished
from roll.journal.records import JournalEntry
from roll.journal.store import Reader
from roll.tracking.directory import JOURNAL
from roll.types import Spec

ROUNDS = 3
"""Kills of each kind."""
LIMITS_S = {"generator": 5.0, "reward": 1.0, "environment": 1.0, "trainer": 15.0, "gang": 25.0, "controller": 15.0}
"""Goals for the medians, on two cores without other work."""
RAY = ("executor=ray", "actor_infer.workers=2", "actor_infer.max_num_seqs=3", "ray.max_replacements=100")
SERVICES = ("rewards.workers=2", "rewards.start_timeout_s=30", "envs.workers=2", "envs.start_timeout_s=30")
_GANG = ("actor_train.backend=fsdp2", "actor_train.workers=2", "actor_train.tokens_per_microbatch=1000")
RUNS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "engines": (("generator", "trainer"), RAY),
    "gang": (("trainer",), (*RAY, *_GANG)),
    "services": (("reward", "environment"), SERVICES),
}
"""Kinds that are killed in each run, and its settings."""
_WAIT_S = 600.0
_POLL_S = 0.1
_ALONE = """\
import asyncio, inspect, pickle, sys
import ray
from roll.cluster.handle import build_worker
async def build():
    worker = build_worker(pickle.load(open(sys.argv[1], "rb")), int(sys.argv[2]))
    return await worker if inspect.isawaitable(worker) else worker
asyncio.run(build())
"""


@dataclass(slots=True)
class Recoveries:
    """Measurements of one kind, in seconds."""

    killed_s: list[float] = field(default_factory=list[float])
    """From each SIGKILL to the record of the recovery."""
    alone_s: float = 0.0
    """Start of the same process alone, at about the same time."""

    @property
    def median_s(self) -> float:
        return statistics.median(self.killed_s)


def run() -> Result:
    """The largest fraction of a limit that a median takes."""
    with tempfile.TemporaryDirectory() as folder:
        by_kind = {"controller": restart_controller(Path(folder) / "controller", ROUNDS)}
        for name in RUNS:
            by_kind |= kill_workers(Path(folder) / name, name, ROUNDS)
    return result_of(by_kind)


def result_of(by_kind: Mapping[str, Recoveries]) -> Result:
    """The result of these measurements; every kind has to be there."""
    for kind, limit_s in LIMITS_S.items():
        median_s, alone_s = by_kind[kind].median_s, by_kind[kind].alone_s
        typer.echo(f"{kind}: {median_s:.1f} s (limit {limit_s:g} s); the same process alone starts in {alone_s:.1f} s")
    return Result(
        name="recovery",
        unit="largest fraction of a limit",
        higher_is_better=False,
        ours=max(by_kind[kind].median_s / limit_s for kind, limit_s in LIMITS_S.items()),
        bound=1.0,
        details={kind: _details(kind, by_kind[kind]) for kind in LIMITS_S},
    )


def _details(kind: str, each: Recoveries) -> dict[str, Any]:
    seconds = {"median_s": round(each.median_s, 2), "limit_s": LIMITS_S[kind], "alone_s": round(each.alone_s, 2)}
    return {**seconds, "each_s": [round(one, 2) for one in each.killed_s]}


def write_run(folder: Path) -> None:
    """The file of the run and the module of its reward."""
    folder.mkdir(parents=True)
    (folder / "run.yaml").write_text(yaml.safe_dump(RUN), encoding="utf-8")
    (folder / "chaos_reward.py").write_text(REWARD, encoding="utf-8")


def kill_workers(folder: Path, name: str, rounds: int) -> dict[str, Recoveries]:
    """Recoveries of the workers of one run, each killed after the recovery from the kill before."""
    write_run(folder)
    kinds, overrides = RUNS[name]
    plan = ChaosPlan(kinds=kinds, every_s=2.0, num_faults=rounds * len(kinds), in_turn=True, limit_s=_WAIT_S)
    with (folder / "output").open("w", encoding="utf-8") as output:
        report = run_chaos(Path("run.yaml"), overrides, plan, output=output, folder=folder)
    faults = list(violations(report, plan))
    assert not faults, f"{name}: {faults}; {(folder / 'output').read_text(encoding='utf-8')[-2000:]}"
    by_kind: dict[str, Recoveries] = {}
    for fault in report.faults:
        assert fault.recovered_s is not None
        kind = name if name == "gang" else fault.kind
        by_kind.setdefault(kind, Recoveries()).killed_s.append(fault.recovered_s)
    run = load(folder / "run.yaml", overrides).run
    for kind, recoveries in by_kind.items():
        recoveries.alone_s = asyncio.run(_service_alone_s(kind)) if name == "services" else _engine_alone_s(run, kind)
    return by_kind


def restart_controller(folder: Path, rounds: int) -> Recoveries:
    """Recoveries of a controller with `--supervise`; its first start is that of the process alone."""
    write_run(folder)
    directory, recoveries = folder / "runs" / RUN["name"], Recoveries()
    command = [sys.executable, "-m", "roll", "train", "run.yaml", "checkpoint.every=1", "--supervise"]
    with (folder / "output").open("w", encoding="utf-8") as output:
        began = time.time()
        supervisor = subprocess.Popen(command, cwd=folder, stdout=output, stderr=output, start_new_session=True)
    try:
        recoveries.alone_s = _wait_for(supervisor, directory, RunStarted, began).time - began
        ready = began
        for _ in range(rounds):
            _wait_for(supervisor, directory, WeightsPublished, ready)
            log = (directory / "controller.log").read_text(encoding="utf-8")
            killed = time.time()
            os.kill(int(re.findall(r", process (\d+) on ", log)[-1]), signal.SIGKILL)
            ready = _wait_for(supervisor, directory, ControllerRestarted, killed).time
            recoveries.killed_s.append(ready - killed)
    finally:
        supervisor.send_signal(signal.SIGINT)
        try:
            supervisor.wait(_WAIT_S)
        finally:
            supervisor.kill()
            supervisor.wait()
    return recoveries


def _wait_for(process: subprocess.Popen[bytes], directory: Path, kind: type[Event], since: float) -> JournalEntry[Any]:
    """The first event of a kind after a time."""
    deadline = time.monotonic() + _WAIT_S
    while True:
        for entry in read_events(directory, kind):
            if entry.time > since:
                return entry
        assert process.poll() is None, f"the run ended with code {process.returncode} before {kind.__name__}"
        assert time.monotonic() < deadline, f"no {kind.__name__} within {_WAIT_S:g} s"
        time.sleep(_POLL_S)


def read_events(directory: Path, kind: type[Event]) -> list[JournalEntry[Any]]:
    """All events of a kind in the journal of a run; none before there is a journal."""
    with suppress(RollError), closing(Reader(directory / JOURNAL)) as reader:
        return list(reader.events(kind))
    return []


class _SpecRecorder:
    """`Executor` that starts nothing and keeps the specs of the workers."""

    def __init__(self) -> None:
        self.specs: dict[str, tuple[Spec, int]] = {}

    def cluster(self, worker: Spec, size: int, *, role: str, python: str | None = None) -> Any:
        self.specs[role] = worker, size


def _engine_alone_s(run: Run, kind: str) -> float:
    """Seconds of processes that import Ray and build the workers of a role as `kind` does, without a run."""
    from roll.wiring.actor import build_engine_specs, place_actor

    with tempfile.TemporaryDirectory() as folder:
        recorder = _SpecRecorder()
        specs = build_engine_specs(run, run.actor_train.optimizer, total_steps=1, supervised=False)
        place_actor(run, specs, recorder, Path(folder) / "weights")  # pyright: ignore[reportArgumentType]
        spec, size = recorder.specs["actor_infer" if kind == "generator" else "actor_train"]
        path = Path(folder) / "spec"
        path.write_bytes(pickle.dumps(spec))
        began = time.monotonic()
        ranks = range(size if kind == "gang" else 1)
        _run_all([[sys.executable, "-c", _ALONE, str(path), str(rank)] for rank in ranks])
        return time.monotonic() - began


def _run_all(commands: Sequence[Sequence[str]]) -> None:
    processes = [subprocess.Popen(command, stdout=subprocess.DEVNULL) for command in commands]
    try:
        codes = [process.wait(_WAIT_S) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert not any(codes), f"exit codes {codes}"


async def _service_alone_s(kind: str) -> float:
    """Seconds until a reward or environment worker is ready, without a run."""
    spec = {"reward": Spec("roll.rewards.base:LocalRewards"), "environment": Spec("roll.envs.worker:EnvWorker")}[kind]
    began = time.monotonic()
    worker = await ProcessWorker[Any].start(spec, 0, name=f"{kind} worker alone")
    seconds = time.monotonic() - began
    worker.kill("it was only timed")
    return seconds
