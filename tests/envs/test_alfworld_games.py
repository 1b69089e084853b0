"""Games of the examples, and ALFWorld's games if they are available."""

import asyncio
import os
import random
from pathlib import Path

import pytest

from benchmarks.alfworld import replay
from roll.data.tasks import jsonl
from roll.envs.alfworld.env import ALFWorld
from roll.types import Task

EXAMPLES = Path(__file__).parents[2] / "examples" / "data"
FITS = str(EXAMPLES / "alfworld_can_contain.json")
with_data = pytest.mark.skipif("ROLL_DATA" not in os.environ, reason="ROLL_DATA names no folder with data")


def examples() -> list[Task]:
    return [task for name in ("alfworld", "alfworld_held_out") for task in jsonl(str(EXAMPLES / f"{name}.jsonl"))]


def originals() -> tuple[list[Task], str]:
    folder = Path(os.environ["ROLL_DATA"]) / "agentic" / "alfworld"
    tasks = [*jsonl(str(folder / "valid_train.jsonl.gz")), *jsonl(str(folder / "valid_seen.jsonl.gz"))]
    return tasks, str(folder / "can_contain.json")


def test_the_walkthroughs_of_the_examples_win_and_no_shorter_part_of_them_does():
    tasks = examples()
    found = asyncio.run(replay(tasks, can_contain=FITS))
    assert found.lost == () and found.num_steps == sum(len(task.metadata["walkthrough"]) for task in tasks)
    assert found.num_commands > 3 * found.num_steps
    assert {task.metadata["task_type"] for task in tasks} >= {"look_at_obj_in_light", "pick_two_obj_and_place"}


@with_data
@pytest.mark.slow
def test_the_walkthroughs_of_the_original_win():
    tasks, fits = originals()
    assert len(tasks) == 340
    assert asyncio.run(replay(tasks, can_contain=fits)).lost == ()


def wander(task: Task, fits: str) -> int:
    """How many commands were refused on a random walk: those that were not offered, and no others."""
    draws, env, known = random.Random(task.id), ALFWorld(task, can_contain=fits, listed=False), set[str]()
    num_refused = 0

    async def game() -> None:
        nonlocal num_refused
        for _ in range(50):
            known.update(offered := env.commands)
            near = [each for each in offered if not each.startswith("go to")]
            elsewhere = sorted(known.difference(offered))
            command = draws.choice(draws.choice([list(offered), near, elsewhere or near]))
            reply = await env.step(command)
            assert (reply.messages[0].content == "Nothing happens.") == (command not in offered), command
            num_refused += command not in offered
            if reply.done:
                return

    asyncio.run(game())
    return num_refused


def test_listed_commands_have_an_effect_and_others_have_none():
    assert sum(wander(task, FITS) for task in examples()) > 20


@with_data
@pytest.mark.slow
def test_so_it_is_in_the_games_of_the_original():
    tasks, fits = originals()
    assert sum(wander(task, fits) for task in tasks[::7]) > 100
