"""Helpers that build and play environments."""

import asyncio
from collections.abc import Iterable
from pathlib import Path

from roll.envs.base import Env, StepResult

EXAMPLES = Path(__file__).parents[2] / "examples"


def opening(env: Env) -> str:
    """What it says first."""
    return openings([env])[0]


def openings(envs: Iterable[Env]) -> list[str]:
    """What each of them says first."""

    async def start() -> list[str]:
        return [message.content for env in envs for message in await env.start()]

    return asyncio.run(start())


def play(env: Env, *replies: str) -> list[StepResult]:
    """Its answers, until it is done."""

    async def attempt() -> list[StepResult]:
        await env.start()
        found: list[StepResult] = []
        for reply in replies:
            found.append(await env.step(reply))
            if found[-1].done:
                break
        return found

    return asyncio.run(attempt())
