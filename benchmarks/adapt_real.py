"""The controller of the asynchronous ratio in a real run on the CPU whose attempts become three times as long midway.

The native engine in one process; the environment waits before its last answer, one time in twelve for long. At first
attempts have one turn and steps wait for slow answers, which redundant groups replace; later they have three turns, and
the generator is busy.
"""

from __future__ import annotations

import asyncio
import random
import string
import sys
import tempfile
from collections.abc import Mapping
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import typer

from benchmarks.result import Result
from roll.api import start
from roll.envs.base import StepResult
from roll.types import Message, Task

STEPS, GROUPS, SIBLINGS = 160, 8, 4
FIXED = (0, 2, 4, 8)
"""Redundant groups of the runs without the controller."""
GOAL = 0.95
_FAST_S, _SLOW_S, _SLOW_SHARE = 0.1, 2.4, 1 / 12


class Lengthening:
    """Takes any response in each of its turns; the last answer takes time."""

    def __init__(self, task: Task, *, turns: int) -> None:
        self._digits = random.Random(task.seed)
        self._turns, self._turn, self._right = turns, 0, 0

    async def start(self) -> tuple[Message, ...]:
        return (self._observation(),)

    async def step(self, response: str) -> StepResult:
        self._turn += 1
        self._right += sum(letter in "02468" for letter in response[:8])
        done = self._turn == self._turns
        if done:
            await asyncio.sleep(_SLOW_S if random.random() < _SLOW_SHARE else _FAST_S)
        messages = () if done else (self._observation(),)
        return StepResult(messages=messages, reward=self._right / 8 / self._turns if done else 0.0, done=done)

    async def close(self) -> None:
        """No resources to release."""

    def _observation(self) -> Message:
        return Message("user", f"{self._digits.randrange(100):02}=")


def run() -> Result:
    """Throughput with the controller relative to the best fixed ratio."""
    with tempfile.TemporaryDirectory() as folder:
        settings: dict[str, Mapping[str, Any]] = {
            f"redundant {number}": {"redundant_groups": number} for number in FIXED
        }
        settings["controller"] = {"adapt": {"max_staleness": [1, 1], "redundant_groups": [0, max(FIXED)]}}
        outcomes = {name: measure(Path(folder), name, rollout) for name, rollout in settings.items()}
    for name, numbers in outcomes.items():
        typer.echo(f"{name}: {numbers}")
    adapted = outcomes.pop("controller")
    best = max(outcomes, key=lambda name: outcomes[name]["steps_per_s"])
    return Result(
        name="adapt_real",
        unit="steps/s",
        higher_is_better=True,
        ours=adapted["steps_per_s"],
        peer=outcomes[best]["steps_per_s"],
        details={"controller": adapted, "best": best, "fixed": outcomes},
    )


def measure(folder: Path, name: str, rollout: Mapping[str, Any], steps: int = STEPS) -> dict[str, float]:
    """Steps per second of one run, as a whole and by half, without its first step."""
    with redirect_stdout(sys.stderr):
        rows = list(start(config(folder, name.replace(" ", "-"), rollout, steps)))
    seconds = [row["time/step"] for row in rows if row["step"] > 1]
    half = steps // 2 - 1
    parts = {"steps_per_s": seconds, "first_half": seconds[:half], "second_half": seconds[half:]}
    return {part: round(len(values) / sum(values), 3) for part, values in parts.items()}


def config(folder: Path, name: str, rollout: Mapping[str, Any], steps: int) -> dict[str, Any]:
    """The run: short tasks until its middle, long ones from there on."""
    shape = {"hidden": 64, "layers": 2, "heads": 4, "kv_heads": 4, "mlp": 128, "max_seq_len": 256}
    middle = {"begin": steps // 2, "steps": 1}
    sources = {"short": (1, 1.0, 0.0), "long": (3, 0.0, 1.0)}
    return {
        "name": name,
        "directory": str(folder),
        "threads": 1,
        "steps": steps,
        "model": {"shape": {"alphabet": string.digits + string.ascii_letters + "=", **shape}},
        "algorithm": {"recipe": "grpo", "correction": "truncate"},
        "tasks": [
            {
                "name": source,
                "data": {"kind": "seeds", "count": 100_000},
                "env": {"kind": "benchmarks.adapt_real:Lengthening", "turns": turns},
                "share": share,
                "share_schedule": {"end": end, **middle},
            }
            for source, (turns, share, end) in sources.items()
        ],
        "rollout": {
            "groups_per_step": GROUPS,
            "group_size": SIBLINGS,
            "max_staleness": 1,
            "max_seq_len": 256,
            "max_new_tokens": 48,
            "max_turns": 3,
            **rollout,
        },
        "actor_train": {"devices": "cpu", "optimizer": {"lr": 1e-5}},
        "actor_infer": {"devices": "cpu", "max_num_seqs": 8},
        "validation": {"at_start": False},
        "checkpoint": {"every": 0},
        "tracking": {"tensorboard": False},
    }
