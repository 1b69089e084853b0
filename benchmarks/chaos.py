"""Faults in processes of real runs by `roll chaos`, kind by kind, and the violations that they cause.

A run lasts until it has recovered from all of its faults. Where timing decides nothing, its weights are compared with
those of a run without faults. The observed recoveries are written to `chaos.json` in the folder `ROLL_RESULTS`
(`runs/results`), from which `docs/faults.md` is made.
"""

from __future__ import annotations

import fcntl
import importlib.util
import itertools
import os
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import typer
import yaml

from benchmarks.gpu_results import RESULTS
from benchmarks.result import Result
from roll.commands.chaos.faults import EXCEPTION, FAULTS, SLOW
from roll.commands.chaos.outcome import ChaosPlan, ChaosReport, InjectedFault, format_chaos
from roll.commands.chaos.run import run_chaos
from roll.commands.chaos.workers import AGENT, CONTROLLER, IMPOSSIBLE, RAYLET, TRANSFER
from roll.report.verify import describe_violations

ROUNDS = 2
"""Faults per cell of the matrix."""
FILE = "chaos.json"
_FOLDER = re.compile(r"(?<![\w/])/(?:[\w.+-]+/)+")
"""The folder of an absolute path, which differs between machines."""
RUN: dict[str, Any] = {
    "name": "short",
    "threads": 1,
    "steps": 1_000_000,
    "model": {
        "shape": {"alphabet": "0123456789-?+=ehiglortw", "hidden": 16, "layers": 1, "heads": 2, "kv_heads": 1}
        | {"mlp": 32, "max_seq_len": 64}
    },
    "algorithm": "grpo",
    "tasks": [
        {"name": "sums", "data": {"kind": "arithmetic", "count": 200}, "reward": "chaos_reward:score"},
        {"name": "guess", "env": {"kind": "guess_number", "max_turns": 3}},
    ],
    "rollout": {"groups_per_step": 2, "group_size": 3, "max_seq_len": 64, "max_new_tokens": 4}
    | {"request_timeout_s": 8, "max_failed_groups": 100},
    "actor_train": {"optimizer": {"lr": 1e-3}},
    "checkpoint": {"every": 5, "keep": 2},
    "tracking": {"tensorboard": False},
}
AGENT_TASK = {
    "name": "count",
    "agent": {"command": ["python", "chaos_agent.py"], "timeout_s": 10, "result": "reward"},
}
REWARD = """\
import time


def score(task, response):
    time.sleep(0.02)  # a reward worker is busy when it is hit
    return sum(letter in "02468" for letter in response) / 4
"""
"""The module `chaos_reward` next to the run's file: the share of even digits."""
AGENT_PROGRAM = """\
import json
import os
import time
import urllib.request

messages, right = [], 0
for number in (1, 3):
    messages.append({"role": "user", "content": str(number)})
    body = json.dumps({"model": os.environ["OPENAI_MODEL"], "messages": messages}).encode()
    headers = {"Content-Type": "application/json", "Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}
    request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body, headers)
    with urllib.request.urlopen(request) as reply:
        response = json.load(reply)["choices"][0]["message"]["content"]
    messages.append({"role": "assistant", "content": response})
    right += response == str(number + 1)
    time.sleep(0.2)  # an agent runs long enough to be hit
print(json.dumps({"reward": right / 2}))
"""
"""The program `chaos_agent.py`: alternates numbers with the model."""
MODES: dict[str, Sequence[str]] = {"sync": (), "async": ("rollout.max_staleness=2",)}


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultSet:
    """Kinds of processes that one run is hit in, and the settings that give it these processes."""

    kinds: dict[str, str]
    """Kinds of `roll chaos`, with their names in the matrix."""
    overrides: tuple[str, ...]
    exact: bool
    """Whether no fault may change the weights of a synchronous run."""
    quiet: tuple[str, ...] = ()
    """Settings of the run without faults that its weights are compared with."""
    agents: bool = False
    package: str = ""
    """A package that it needs."""

    @property
    def cells(self) -> list[tuple[str, str]]:
        """Kinds and faults that are possible."""
        return [each for each in itertools.product(self.kinds, FAULTS) if each not in IMPOSSIBLE]


_RAY = (
    *("executor=ray", "actor_infer.workers=2", "actor_infer.max_num_seqs=3"),
    *("ray.max_replacements=100", "ray.hang_timeout_s=6"),
)
_RANKS = ("actor_train.backend=fsdp2", "actor_train.workers=2", "actor_train.tokens_per_microbatch=1000")
_WORKERS = (
    *("rewards.workers=2", "rewards.timeout_s=4", "rewards.start_timeout_s=30"),
    *("envs.workers=2", "envs.start_timeout_s=30", "envs.grace_s=3", "rollout.env_timeout_s=4"),
)
_VLLM = "actor_infer={backend: vllm, max_num_seqs: 8, kv_cache_gib: 0.25, enforce_eager: true}"
_WIDE = "model.shape.hidden=64"
"""Heads of 32: vLLM has no attention on the CPU for narrower ones."""
SETS = {
    "engines": FaultSet(
        kinds={"generator": "generator", "trainer": "trainer", TRANSFER: "transfer over gloo", RAYLET: "raylet"},
        overrides=(*_RAY, "weight_sync.transport=gloo"),
        exact=True,
    ),
    "ranks": FaultSet(
        kinds={"trainer": "rank of an FSDP2 trainer", TRANSFER: "transfer over disk"},
        overrides=(*_RAY, *_RANKS),
        exact=True,
        quiet=("executor=ray", *_RANKS),
    ),
    "services": FaultSet(
        kinds={"reward": "reward worker", "environment": "environment worker", AGENT: "agent"},
        overrides=_WORKERS,
        exact=False,
        agents=True,
    ),
    "controller": FaultSet(kinds={CONTROLLER: CONTROLLER}, overrides=("checkpoint.every=1",), exact=True),
    "vllm": FaultSet(
        kinds={"generator": "vLLM generator"},
        overrides=("executor=ray", "ray.max_replacements=100", "rollout.request_timeout_s=30", _VLLM, _WIDE),
        exact=False,
        package="vllm",
    ),
}
_REPLACED, _RESTARTED, _RETRIED = {"GeneratorReplaced", "WorkerReplaced"}, {"ControllerRestarted"}, {"AttemptRetried"}
_OUTSIDE = {CONTROLLER: _RESTARTED, RAYLET: _RESTARTED, AGENT: _RETRIED}
"""Events that may record the recovery from KILL and STOP; in other kinds a replacement within the run."""
_RAISED = {"reward": _RETRIED, "environment": _RETRIED, AGENT: _RETRIED}
"""The same for exceptions; in other kinds the controller ends and is started again."""


class Observation(msgspec.Struct, frozen=True, kw_only=True):
    """One fault and its recovery."""

    mode: str
    kind: str
    """Name in the matrix."""
    fault: str
    worker: str
    new_process_s: float | None
    recovered_s: float | None
    recovery: str
    cause: str
    repeated: int


class ObservedRun(msgspec.Struct, frozen=True, kw_only=True):
    """One run under chaos."""

    steps: int
    seconds: float
    violations: list[str]
    compared: bool
    """Whether its weights were compared with those of a run without faults."""
    faults: list[Observation]


def run() -> Result:
    """The number of violations over all runs."""
    runs: dict[str, ObservedRun] = {}
    with tempfile.TemporaryDirectory() as folder:
        for mode, name in itertools.product(MODES, SETS):
            cell = f"{mode} {name}"
            if reason := missing(name):
                typer.echo(f"{cell}: left out, {reason}")
                continue
            report, violations = try_faults(Path(folder) / mode / name, mode, name, ROUNDS)
            runs[cell] = observe(mode, name, report, violations)
            typer.echo(f"{cell}: {len(report.faults)} faults, {len(violations)} violations")
            for violation in violations:
                typer.echo(f"{cell}: {violation}", err=True)
            save(runs)
    faults = [fault for each in runs.values() for fault in each.faults]
    return Result(
        name="chaos",
        unit="violations",
        higher_is_better=False,
        ours=float(sum(len(each.violations) for each in runs.values())),
        bound=1.0,
        details={
            "faults": len(faults),
            "violations": {cell: each.violations[:20] for cell, each in runs.items()},
            "steps": {cell: each.steps for cell, each in runs.items()},
            "median_recovery_s": median_recovery_s(faults),
            "left_out": {name: reason for name in SETS if (reason := missing(name))},
        },
    )


def missing(name: str) -> str:
    """Why a set cannot be tried here; empty if it can."""
    package = SETS[name].package
    return f"{package} is not installed" if package and importlib.util.find_spec(package) is None else ""


def save(runs: dict[str, ObservedRun], name: str = FILE) -> None:
    """Write the runs beside those of earlier calls, of which the same ones are replaced; other processes wait."""
    folder = Path(os.environ.get(RESULTS, "runs/results"))
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / name
    with (folder / f".{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        runs = (read(file) if file.exists() else {}) | runs
        file.write_bytes(msgspec.json.format(msgspec.json.encode(runs)) + b"\n")


def read(file: Path) -> dict[str, ObservedRun]:
    """The runs of a file, by mode and set."""
    return msgspec.json.decode(file.read_bytes(), type=dict[str, ObservedRun])


def write_run(folder: Path, *, agents: bool) -> None:
    """Write the run's file and the code that it names."""
    folder.mkdir(parents=True)
    tasks = [*RUN["tasks"], *([AGENT_TASK] if agents else [])]
    (folder / "run.yaml").write_text(yaml.safe_dump({**RUN, "tasks": tasks}), encoding="utf-8")
    (folder / "chaos_reward.py").write_text(REWARD, encoding="utf-8")
    (folder / "chaos_agent.py").write_text(AGENT_PROGRAM, encoding="utf-8")


def try_faults(folder: Path, mode: str, name: str, rounds: int) -> tuple[ChaosReport, list[str]]:
    """The report of one run with `rounds` faults per cell, and its violations."""
    faults = SETS[name]
    write_run(folder, agents=faults.agents)
    compare = compared(mode, name)
    settings = [*MODES[mode], *faults.overrides, *(["deterministic=true"] if compare else [])]
    plan = ChaosPlan(
        kinds=tuple(faults.kinds),
        faults=FAULTS,
        every_s=1.0,
        num_faults=rounds * len(faults.cells),
        in_turn=True,
        limit_s=1800.0,
        hang_timeout_s=20.0,
    )
    with (folder / "output").open("w", encoding="utf-8") as output:
        report = run_chaos(Path("run.yaml"), settings, plan, output=output, folder=folder)
    found = list(violations(report, plan))
    if compare and not found and not _same_weights(folder, report, faults.quiet):
        found.append("other weights than those of the unbroken run")
    if found:
        typer.echo(f"{format_chaos(report)}\n{_tail(folder)}", err=True)
    return report, found


def compared(mode: str, name: str) -> bool:
    """Whether a run has to end with the weights of one without faults."""
    return SETS[name].exact and mode == "sync"


def violations(report: ChaosReport, plan: ChaosPlan) -> Iterator[str]:
    """Everything wrong with a run under chaos."""
    if report.timed_out:
        yield f"did not end within {plan.limit_s:g} s"
    elif report.exit_code:
        yield f"exit code {report.exit_code}"
    if (number := sum(fault.recovered_s is not None for fault in report.faults)) != plan.num_faults:
        yield f"recovered from {number} of {plan.num_faults} faults"
    for fault in report.faults if plan.in_turn else ():
        if fault.recovered_s is not None and fault.recovery not in _expected(fault):
            yield f"{fault.fault} of {fault.kind} ended in {fault.recovery}: {fault.cause}"
    if report.verification is None:
        yield "nothing to verify"
    else:
        yield from describe_violations(report.verification)
    yield from (f"orphan: {each}" for each in report.orphans)
    yield from (f"shared memory: {each}" for each in report.leaked)


def _expected(fault: InjectedFault) -> set[str]:
    """Events that may record the recovery from a fault."""
    if fault.fault == SLOW:
        return {"WeightsPublished", *_REPLACED, *_RETRIED}
    if fault.fault == EXCEPTION:
        return _RAISED.get(fault.kind, _RESTARTED)
    return _OUTSIDE.get(fault.kind, _REPLACED)


def observe(mode: str, name: str, report: ChaosReport, violations: Sequence[str]) -> ObservedRun:
    """The record of a run; `name` is that of its set, or of a soak."""
    kinds = SETS[name].kinds if name in SETS else {}
    faults = [
        Observation(
            mode=mode,
            kind=kinds.get(fault.kind, fault.kind),
            fault=fault.fault,
            worker=fault.worker,
            new_process_s=_rounded(fault.restarted_s),
            recovered_s=_rounded(fault.recovered_s),
            recovery=fault.recovery,
            cause=_FOLDER.sub("", fault.cause),
            repeated=fault.repeated,
        )
        for fault in report.faults
    ]
    steps = 0 if report.verification is None else report.verification.steps
    return ObservedRun(
        steps=steps,
        seconds=round(report.seconds, 1),
        violations=list(violations),
        compared=name in SETS and compared(mode, name) and not violations,
        faults=faults,
    )


def median_recovery_s(faults: Sequence[Observation]) -> dict[str, dict[str, float]]:
    """Median seconds by kind and fault: until a new process runs, and until the journal records the recovery."""
    seconds: dict[str, dict[str, list[float]]] = {}
    for fault in faults:
        cell = seconds.setdefault(f"{fault.kind} {fault.fault}", {"new_process": [], "recorded": []})
        for name, spent in (("new_process", fault.new_process_s), ("recorded", fault.recovered_s)):
            cell[name] += [] if spent is None else [spent]
    return {
        cell: {name: round(statistics.median(each), 1) for name, each in by_name.items() if each}
        for cell, by_name in sorted(seconds.items())
    }


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 2)


def _same_weights(folder: Path, report: ChaosReport, quiet: Sequence[str] = ()) -> bool:
    """Whether a run without faults, of the same number of steps, ends with the same weights."""
    assert report.verification is not None
    steps = report.verification.steps
    settings = ["name=quiet", f"steps={steps}", "deterministic=true", *quiet]
    with (folder / "quiet").open("w", encoding="utf-8") as output:
        command = [sys.executable, "-m", "roll", "train", "run.yaml", *settings]
        subprocess.run(command, cwd=folder, stdout=output, stderr=output, check=True, timeout=900)
    paths = (folder / "runs" / name for name in ("quiet/model", f"short/checkpoints/step-{steps}"))
    weights = [(path / "model.safetensors").read_bytes() for path in paths]
    return weights[0] == weights[1]


def _tail(folder: Path) -> str:
    lines = (folder / "output").read_text(encoding="utf-8", errors="replace").splitlines()
    return "\n".join(lines[-5:])
