"""A scripted shopper that knows the goal, in the shop of the examples and in a large one if available."""

import asyncio
import os
from pathlib import Path

import pytest

from roll.data.tasks import jsonl
from roll.envs.base import StepResult
from roll.envs.webshop.env import WebShop
from roll.types import Task

EXAMPLES = Path(__file__).parents[2] / "examples" / "data"


async def shopping(task: Task, catalogue: str, words: str) -> StepResult:
    """Searches, turns pages until the product is there, chooses what is wanted, buys it."""
    goal, env = task.answer, WebShop(task, catalogue=catalogue)
    await env.start()
    reply = await env.step(f"search[{words}]")
    while not reply.done and f"[{goal['asin']}]" not in reply.messages[0].content:
        reply = await env.step("click[Next >]")
    actions = [goal["asin"], *goal["options"].items(), "Buy Now"]
    for action in actions if not reply.done else ():
        label, page = action, reply.messages[0].content
        if isinstance(action, tuple):
            label = action[1] if f"[{action[1]}]" in page else ": ".join(action)
        reply = await env.step(f"click[{label}]")
    return reply


def words_of(task: Task, query: str) -> str:
    return " ".join((query, *task.answer["attributes"], *task.answer["options"].values()))


def rewards(tasks: list[Task], catalogue: str) -> list[float]:
    wished = [words_of(task, task.answer.get("query", "")) for task in tasks]
    return [asyncio.run(shopping(task, catalogue, words)).reward for task, words in zip(tasks, wished, strict=True)]


def test_every_goal_of_the_examples_can_be_bought():
    tasks = [task for name in ("webshop", "webshop_held_out") for task in jsonl(str(EXAMPLES / f"{name}.jsonl"))]
    assert rewards(tasks, str(EXAMPLES / "webshop_catalogue.jsonl")) == [1.0] * len(tasks)


@pytest.mark.skipif("ROLL_DATA" not in os.environ, reason="ROLL_DATA names no folder with data")
@pytest.mark.slow
def test_a_player_that_knows_the_goal_earns_all_of_it_in_at_least_95_of_100_cases():
    folder = Path(os.environ["ROLL_DATA"]) / "agentic"
    tasks = jsonl(str(folder / "webshop_goals_train.jsonl"))
    earned = rewards(tasks, str(folder / "webshop_catalog1000.jsonl.gz"))
    assert len(earned) == 315 and sum(reward == 1 for reward in earned) >= 0.95 * 315
