"""Kills and stops processes of real runs by `roll chaos`, kind by kind, and counts violations.

A run lasts until it has recovered from all of its faults. Where timing decides nothing, its weights are compared with
those of a run without faults.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer
import yaml

from benchmarks.result import Result
from roll.commands.chaos.outcome import ChaosPlan, ChaosReport, InjectedFault, format_chaos
from roll.commands.chaos.run import run_chaos
from roll.report.verify import describe_violations

ROUNDS = 2
"""Faults per kind and signal."""
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
REWARD = """\
import time


def score(task, response):
    time.sleep(0.02)  # a reward worker is busy when it is hit
    return sum(letter in "02468" for letter in response) / 4
"""
"""The module `chaos_reward` next to the run's file: the share of even digits."""
MODES: dict[str, Sequence[str]] = {"sync": (), "async": ("rollout.max_staleness=2",)}


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultSet:
    """Faults of one run, and the settings that give it the processes to hit."""

    kinds: tuple[str, ...]
    signals: tuple[str, ...]
    overrides: tuple[str, ...]
    exact: bool
    """Whether no fault may change the weights of a synchronous run."""


_RAY = (
    *("executor=ray", "actor_infer.workers=2", "actor_infer.max_num_seqs=3"),
    *("ray.max_replacements=100", "ray.hang_timeout_s=10"),
)
_WORKERS = (
    *("rewards.workers=2", "rewards.timeout_s=4", "rewards.start_timeout_s=30"),
    *("envs.workers=2", "envs.start_timeout_s=30", "envs.grace_s=3", "rollout.env_timeout_s=4"),
)
FAULTS = {
    "engines": FaultSet(kinds=("generator", "trainer"), signals=("KILL", "STOP"), overrides=_RAY, exact=True),
    "services": FaultSet(kinds=("reward", "environment"), signals=("KILL", "STOP"), overrides=_WORKERS, exact=False),
    "controller": FaultSet(kinds=("controller",), signals=("KILL",), overrides=("checkpoint.every=1",), exact=True),
}


def run() -> Result:
    """The number of violations over all runs."""
    violations: dict[str, list[str]] = {}
    reports: dict[str, ChaosReport] = {}
    with tempfile.TemporaryDirectory() as folder:
        for mode in MODES:
            for name in FAULTS:
                cell = f"{mode} {name}"
                reports[cell], violations[cell] = try_faults(Path(folder) / mode / name, mode, name, ROUNDS)
                typer.echo(f"{cell}: {len(reports[cell].faults)} faults, {len(violations[cell])} violations")
                for violation in violations[cell]:
                    typer.echo(f"{cell}: {violation}", err=True)
    faults = [fault for report in reports.values() for fault in report.faults]
    return Result(
        name="chaos",
        unit="violations",
        higher_is_better=False,
        ours=float(sum(map(len, violations.values()))),
        bound=1.0,
        details={
            "faults": len(faults),
            "violations": {cell: each[:20] for cell, each in violations.items()},
            "steps": {cell: each.verification.steps for cell, each in reports.items() if each.verification},
            "median_recovery_s": median_recovery_s(faults),
        },
    )


def try_faults(folder: Path, mode: str, name: str, rounds: int) -> tuple[ChaosReport, list[str]]:
    """The report of one run with `rounds` faults per kind and signal, and its violations."""
    folder.mkdir(parents=True)
    (folder / "run.yaml").write_text(yaml.safe_dump(RUN), encoding="utf-8")
    (folder / "chaos_reward.py").write_text(REWARD, encoding="utf-8")
    faults = FAULTS[name]
    compare = faults.exact and mode == "sync"
    settings = [*MODES[mode], *faults.overrides, *(["deterministic=true"] if compare else [])]
    plan = ChaosPlan(
        kinds=faults.kinds,
        signals=faults.signals,
        every_s=1.0,
        num_faults=rounds * len(faults.kinds) * len(faults.signals),
        in_turn=True,
        limit_s=600.0,
    )
    with (folder / "output").open("w", encoding="utf-8") as output:
        report = run_chaos(Path("run.yaml"), settings, plan, output=output, folder=folder)
    found = list(violations(report, plan))
    if compare and not found and not _same_weights(folder, report):
        found.append("other weights than those of the unbroken run")
    if found:
        typer.echo(f"{format_chaos(report)}\n{_tail(folder)}", err=True)
    return report, found


def violations(report: ChaosReport, plan: ChaosPlan) -> Iterator[str]:
    """Everything wrong with a run under chaos."""
    if report.timed_out:
        yield f"did not end within {plan.limit_s:g} s"
    elif report.exit_code:
        yield f"exit code {report.exit_code}"
    if (number := sum(fault.recovered_s is not None for fault in report.faults)) != plan.num_faults:
        yield f"recovered from {number} of {plan.num_faults} faults"
    if report.verification is None:
        yield "nothing to verify"
    else:
        yield from describe_violations(report.verification)
    yield from (f"orphan: {each}" for each in report.orphans)
    yield from (f"shared memory: {each}" for each in report.leaked)


def median_recovery_s(faults: Sequence[InjectedFault]) -> dict[str, dict[str, float]]:
    """Median seconds by kind and signal: until a new process runs, and until the journal records the replacement."""
    seconds: dict[str, dict[str, list[float]]] = {}
    for fault in faults:
        cell = seconds.setdefault(f"{fault.kind} {fault.signal}", {"new_process": [], "recorded": []})
        for name, spent in (("new_process", fault.restarted_s), ("recorded", fault.recovered_s)):
            cell[name] += [] if spent is None else [spent]
    return {
        cell: {name: round(statistics.median(each), 1) for name, each in by_name.items() if each}
        for cell, by_name in sorted(seconds.items())
    }


def _same_weights(folder: Path, report: ChaosReport) -> bool:
    """Whether a run without faults, inline and of the same number of steps, ends with the same weights."""
    assert report.verification is not None
    steps = report.verification.steps
    command = [sys.executable, "-m", "roll", "train", "run.yaml", "name=quiet", f"steps={steps}", "deterministic=true"]
    with (folder / "quiet").open("w", encoding="utf-8") as output:
        subprocess.run(command, cwd=folder, stdout=output, stderr=output, check=True, timeout=600)
    quiet, broken = (folder / "runs" / name for name in ("quiet/model", f"short/checkpoints/step-{steps}"))
    return (quiet / "model.safetensors").read_bytes() == (broken / "model.safetensors").read_bytes()


def _tail(folder: Path) -> str:
    lines = (folder / "output").read_text(encoding="utf-8", errors="replace").splitlines()
    return "\n".join(lines[-5:])
