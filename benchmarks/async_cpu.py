"""Asynchronous training with the native engine and a four-turn environment whose delays have a long tail.

One thread does all the computing, so asynchrony can hide only waiting: while some attempts wait for their environment,
others are sampled and older ones are trained on.
"""

from __future__ import annotations

import asyncio
import json
import random
import statistics
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack, closing, redirect_stdout
from pathlib import Path

import typer

from benchmarks.result import Result
from roll.config.schema import Run
from roll.envs.base import StepResult
from roll.journal.store import Journal
from roll.pipelines.interrupt import Interrupt
from roll.tracking.directory import RunDirectory
from roll.tracking.sinks import read_lines
from roll.types import Message, Task
from roll.wiring.data import build_data
from roll.wiring.models import build_roles
from roll.wiring.run import RunServices, build_checkpointer, build_loop, build_reporter

SEEDS = (0, 1, 2)
STEPS, GROUPS, SIBLINGS, TURNS = 150, 8, 8, 4
MEDIAN_S, SIGMA = 0.06, 1.0
STALENESS = 2


class Copying:
    """Shows two digits per turn; the response should repeat the first. The reward is the share of right turns.

    Each step takes log-normal time, drawn per attempt: siblings see the same digits, but not the same delays.
    """

    def __init__(self, task: Task, *, turns: int = TURNS, median_s: float = 0.0, sigma: float = SIGMA) -> None:
        digits = random.Random(task.seed)
        self._digits = [f"{digits.randrange(100):02}" for _ in range(turns)]
        self._median_s, self._sigma = median_s, sigma
        self._turn = self._right = 0

    async def start(self) -> tuple[Message, ...]:
        return (self._observation(),)

    async def step(self, response: str) -> StepResult:
        if self._median_s:
            await asyncio.sleep(self._median_s * random.lognormvariate(0.0, self._sigma))
        right = response.strip() == self._digits[self._turn][0]
        self._turn += 1
        self._right += right
        done = self._turn == len(self._digits)
        return StepResult(
            messages=() if done else (self._observation(),),
            reward=float(right) / len(self._digits),
            done=done,
            metrics={"right": self._right / self._turn},
        )

    async def close(self) -> None:
        """No resources to release."""

    def _observation(self) -> Message:
        return Message("user", self._digits[self._turn] + "=")


def run() -> Result:
    """Steps per second at staleness 2 against 0, mean of three seeds, with the accuracy of both."""
    return compare("async_cpu", STALENESS)


def compare(name: str, max_staleness: int, *, seeds: Sequence[int] = SEEDS, steps: int = STEPS) -> Result:
    """Steps per second at `max_staleness` against 0 over equally many steps, with the accuracy of both."""
    seconds: dict[int, list[float]] = {0: [], max_staleness: []}
    accuracies: dict[int, list[float]] = {0: [], max_staleness: []}
    before: list[float] = []
    for seed in seeds:
        for staleness in (0, max_staleness):
            spent, first, last = _measure(seed, staleness, steps)
            seconds[staleness].append(spent)
            accuracies[staleness].append(last)
            before.append(first)
            typer.echo(f"seed {seed}, staleness {staleness}: {spent:.1f} s, held-out {first:.3f} -> {last:.3f}")
    means = {staleness: statistics.fmean(values) for staleness, values in accuracies.items()}
    return Result(
        name=name,
        unit="steps/s",
        higher_is_better=True,
        ours=steps * len(seeds) / sum(seconds[max_staleness]),
        peer=steps * len(seeds) / sum(seconds[0]),
        details={
            "seconds": {str(key): [round(each, 1) for each in values] for key, values in seconds.items()},
            "held_out_before": round(statistics.fmean(before), 3),
            "held_out": {str(key): [round(each, 3) for each in values] for key, values in accuracies.items()},
            "held_out_difference": round(means[max_staleness] - means[0], 3),
        },
    )


def _measure(seed: int, staleness: int, steps: int) -> tuple[float, float, float]:
    """Seconds of all steps but the first, and accuracy before and after."""
    random.seed(seed)
    with tempfile.TemporaryDirectory() as folder, redirect_stdout(sys.stderr):
        run = _config(Path(folder), seed, staleness, steps)
        with closing(RunDirectory.create(Path(folder, run.name), overwrite=False)) as directory:
            asyncio.run(_train(run, directory))
            lines = list(read_lines(directory.metrics))
    spent = sum(line["time/step"] - line.get("time/validate", 0.0) for line in lines if line["step"] > 1)
    held_out = [line["validation/reward"] for line in lines if "validation/reward" in line]
    return spent * steps / (steps - 1), held_out[0], held_out[-1]


async def _train(run: Run, directory: RunDirectory) -> None:
    roles = build_roles(run, run.actor_train.optimizer, run.steps)
    data = build_data(run, run.tasks, roles.template)
    await roles.start()
    with ExitStack() as stack:
        interrupt = stack.enter_context(Interrupt())
        journal = stack.enter_context(closing(Journal(directory.journal)))
        checkpointer = build_checkpointer(run, directory, roles, journal)
        reporter = stack.enter_context(closing(build_reporter(run, directory)))
        await build_loop(run, roles, data, RunServices(journal, checkpointer, reporter, interrupt)).run()


def _config(folder: Path, seed: int, staleness: int, steps: int) -> Run:
    env = "benchmarks.async_cpu:Copying"
    tree = {
        "name": "async-cpu",
        "directory": str(folder),
        "seed": seed,
        "threads": 2,
        "steps": steps,
        "model": {
            "shape": {"alphabet": "0123456789=", "hidden": 64, "layers": 2, "heads": 4, "kv_heads": 4, "mlp": 128}
        },
        "algorithm": {
            "advantage": {"kind": "discounted", "gamma": 0.0},
            "whiten": True,
            "correction": "truncate",
            "loss": "clipped",
            "aggregation": "token_mean",
        },
        "tasks": [
            {
                "name": "copy",
                "data": {"kind": "seeds", "count": 100_000},
                "env": {"kind": env, "median_s": MEDIAN_S, "sigma": SIGMA},
            }
        ],
        "rollout": {
            "groups_per_step": GROUPS,
            "group_size": SIBLINGS,
            "max_staleness": staleness,
            "max_seq_len": 64,
            "max_new_tokens": 1,
            "max_turns": TURNS,
        },
        "actor_train": {"devices": "cpu", "optimizer": {"lr": 1e-3, "warmup_steps": 5, "schedule": "linear"}},
        "actor_infer": {"max_num_seqs": 64},
        "validation": {
            "tasks": [{"name": "held_out", "data": {"kind": "seeds", "count": 200, "start": 1_000_000}, "env": env}]
        },
        "checkpoint": {"every": 0},
        "tracking": {"tensorboard": False},
    }
    return Run.model_validate_json(json.dumps(tree))
