"""Speed of the environment `alfworld` on the walkthroughs of all its games, each of which must end in success.

The games are read from the folder `ROLL_DATA`. One environment runs at a time, on one core; CPU time is measured.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from benchmarks.result import Result
from roll.data.tasks import jsonl
from roll.envs.alfworld.env import ALFWorld
from roll.types import Task

GOAL = 5_000.0
FILES = ("train", "valid_train", "valid_seen")
ROUNDS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """Totals over the replayed walkthroughs."""

    num_steps: int
    lost: tuple[str, ...]
    """Ids of the games that their walkthrough did not win."""
    num_commands: int
    """Admissible commands, summed over all turns."""
    cpu_s: float


def run() -> Result:
    """Steps per second of the best of three rounds, environment starts included."""
    folder = os.environ.get("ROLL_DATA")
    if not folder:
        return _result(skipped="ROLL_DATA is not set; set it to the folder with the data")
    games = Path(folder) / "agentic" / "alfworld"
    tasks = {name: jsonl(str(games / f"{name}.jsonl.gz")) for name in FILES}
    all_tasks = [task for rows in tasks.values() for task in rows]
    can_contain = str(games / "can_contain.json")
    rounds = [asyncio.run(replay(all_tasks, can_contain=can_contain)) for _ in range(ROUNDS)]
    best = min(rounds, key=lambda each: each.cpu_s)
    won = len(all_tasks) - len(best.lost)
    typer.echo(f"{won:,} of {len(all_tasks):,} walkthroughs end in success; {best.num_steps:,} steps")
    return _result(
        ours=best.num_steps / best.cpu_s,
        details={
            "games": {name: len(rows) for name, rows in tasks.items()},
            "won": won,
            "lost": best.lost[:10],
            "steps": best.num_steps,
            "commands_a_turn": round(best.num_commands / best.num_steps, 1),
            "steps_per_s": [round(each.num_steps / each.cpu_s) for each in rounds],
        },
    )


async def replay(tasks: Sequence[Task], *, can_contain: str) -> Replay:
    """Play every game with the commands of its walkthrough."""
    num_steps = num_commands = 0
    lost: list[str] = []
    began = time.process_time()
    for task in tasks:
        env = ALFWorld(task, can_contain=can_contain)
        await env.start()
        success = 0.0
        for command in task.metadata["walkthrough"]:
            result = await env.step(command)
            num_steps += 1
            num_commands += len(env.commands)
            success = result.metrics["success"]
            if result.done:
                break
        await env.close()
        if not success:
            lost.append(task.id)
    return Replay(num_steps=num_steps, lost=tuple(lost), num_commands=num_commands, cpu_s=time.process_time() - began)


def _result(*, ours: float | None = None, details: dict[str, Any] | None = None, skipped: str = "") -> Result:
    return Result(
        name="alfworld",
        unit="steps/s",
        higher_is_better=True,
        ours=ours,
        bound=GOAL,
        details=details or {},
        skipped=skipped,
    )
