"""The contract of every environment in the table."""

import asyncio
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from roll.envs.base import Env, StepResult
from roll.registry import ENVS
from roll.types import Message, Task

GIVEN: dict[str, dict[str, Any]] = {
    "gymnasium": {"env": "tests.envs.strangers:Ladder", "describe": "tests.envs.strangers:in_words"},
    "gem": {"env": "tests.envs.strangers:Riddle"},
    "verifiers": {"env": "tests.envs.strangers:Tutor"},
    "tool_use": {"tools": ["calculator"]},
    "webshop": {"catalogue": str(Path(__file__).parents[2] / "examples" / "data" / "webshop_catalogue.jsonl")},
    "repair": {"sandbox": "none: I trust this code"},
    "retail": {"database": str(Path(__file__).parents[2] / "examples" / "data" / "retail_{table}.json")},
}
"""Arguments of those that need some."""
ASKED: dict[str, dict[str, Any]] = {
    "alfworld": {
        "metadata": {
            "agent_loc": 0,
            "receptacles": [{"name": "desk 1", "type": "desk", "loc": 1}],
            "objects": [],
            "goal": {"types": ["pen", "desk"], "preds": ["inReceptacle"]},
        }
    },
    "function_calling": {"metadata": {"tools": [{"name": "clock", "parameters": {}}]}, "answer": [{"clock": {}}]},
    "webshop": {"answer": {"asin": "P003"}},
    "repair": {"metadata": {"buggy_code": "", "entry_point": "f", "tests": [{"args": [], "expected": 1}]}},
    "sql": {
        "metadata": {
            "check": "answer",
            "table": {"table_name": "t", "table_info": {"columns": [{"name": "a"}], "rows": []}},
        },
        "answer": ["1"],
    },
    "retail": {"metadata": {"actions": []}},
}
"""Parts of a task, for those that cannot do with any."""
ELSEWHERE = {"http"}
"""Kept by a test of its own, which has a server."""
REPLIES = ("5", "nonsense", "2", "8", "1", "9")


def fresh(name: str, seed: int = 3) -> Env:
    make: Any = ENVS[name]
    task = Task(id="t", domain="d", messages=(Message("user", "1+1="),), seed=seed, metadata={"hint": "even"})
    return make(replace(task, **ASKED.get(name, {})), **GIVEN.get(name, {}))


async def play(env: Env) -> list[StepResult]:
    opening = await env.start()
    assert opening and all(isinstance(message, Message) for message in opening)
    found: list[StepResult] = []
    for turn in range(64):
        found.append(await env.step(REPLIES[turn % len(REPLIES)]))
        if found[-1].done:
            return found
    raise AssertionError("never done")


def every_env(test: Any) -> Any:
    return pytest.mark.parametrize("name", sorted(ENVS.targets.keys() - ELSEWHERE))(test)


@every_env
def test_an_attempt_ends_and_every_number_is_finite(name: str):
    replies = asyncio.run(play(fresh(name)))
    assert all(math.isfinite(number) for reply in replies for number in (reply.reward, *reply.metrics.values()))
    assert all(reply.messages for reply in replies if not reply.done)


@every_env
def test_equal_seeds_and_replies_give_equal_runs(name: str):
    assert asyncio.run(play(fresh(name))) == asyncio.run(play(fresh(name)))


@every_env
def test_an_attempt_that_is_done_cannot_go_on(name: str):
    env = fresh(name)
    asyncio.run(play(env))
    with pytest.raises(AssertionError, match="single-use"):
        asyncio.run(env.step("5"))


@every_env
def test_closing_twice_is_closing_once(name: str):
    async def close_twice() -> None:
        env = fresh(name)
        await env.start()
        await env.close()
        await env.close()

    asyncio.run(close_twice())


@every_env
def test_closing_is_allowed_before_the_start(name: str):
    asyncio.run(fresh(name).close())
