"""Scripted agents that win, and warm starts from them."""

import asyncio
from typing import Any

import pytest

from roll.envs.base import Env
from roll.envs.frozen_lake import FrozenLake
from roll.envs.guess_number import GuessNumber
from roll.envs.sokoban import Sokoban
from roll.errors import ConfigError
from roll.registry import SCRIPTED_AGENTS
from roll.types import Message, Task

WORLDS: dict[str, tuple[Any, dict[str, Any]]] = {
    "guess_number": (GuessNumber, {}),
    "frozen_lake": (FrozenLake, {}),
    "sokoban": (Sokoban, {"size": 5, "pulls": 4}),
}


async def attempt(env: Env, player: str, **arguments: Any) -> tuple[float, list[str]]:
    """The reward, and all that the player said."""
    messages = await env.start()
    said: list[str] = []
    while True:
        said.append(SCRIPTED_AGENTS[player](messages, **arguments))
        reply = await env.step(said[-1])
        if reply.done:
            return reply.reward, said
        messages = (*messages, Message("assistant", said[-1]), *reply.messages)


def attempts(name: str, count: int, env: dict[str, Any] | None = None, **arguments: Any) -> list[Any]:
    make, own = WORLDS[name]
    worlds = [make(Task(id="t", domain="d", seed=seed), **own, **(env or {})) for seed in range(count)]
    return [asyncio.run(attempt(world, name, **arguments)) for world in worlds]


@pytest.mark.parametrize("name", WORLDS)
def test_without_noise_every_attempt_is_won(name: str):
    assert [reward for reward, _ in attempts(name, 40)] == [1.0] * 40


@pytest.mark.sweep(keep=1)
@pytest.mark.parametrize("name", WORLDS)
def test_noise_costs_attempts_and_is_the_same_every_time(name: str):
    noisy = attempts(name, 40, noise=0.9)
    assert 0 < sum(reward for reward, _ in noisy) < 40
    assert noisy == attempts(name, 40, noise=0.9)


@pytest.mark.parametrize("name", ["frozen_lake", "sokoban"])
def test_a_player_writes_as_the_environment_reads(name: str):
    assert {text for _, said in attempts(name, 5, {"terse": True}, letters=True) for text in said} <= set("udlr")
    won, said = attempts(name, 1, {"tag": "move"}, tag="move")[0]
    assert won == 1.0 and all(text.startswith("<move>") and text.endswith("</move>") for text in said)


@pytest.mark.parametrize("terse", [True, False])
def test_a_listed_level_is_played_as_a_drawn_one(terse: bool):
    listed, shown = (attempts("sokoban", 20, {"listed": each, "terse": terse}) for each in (True, False))
    assert listed == shown and all(reward == 1.0 for reward, _ in listed)


@pytest.mark.parametrize("name", ["frozen_lake", "sokoban"])
def test_a_player_before_another_environment_says_so(name: str):
    with pytest.raises(ConfigError, match=f"scripted agent {name}: no (lake|level) in its messages"):
        SCRIPTED_AGENTS[name]([Message("user", "1+1=")])


def test_a_level_that_is_lost_is_played_on_at_random():
    assert SCRIPTED_AGENTS["sokoban"]([Message("user", "$@.\n---\n")]) in ("up", "down", "left", "right")
