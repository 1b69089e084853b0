import asyncio

import pytest

from roll.envs.base import StepResult
from roll.envs.guarded import GuardedEnv
from roll.errors import EnvFailed
from roll.types import Message, Spec, Task


class Slow:
    """An environment whose answer fails once it is closed."""

    def __init__(self, task: Task) -> None:
        self._closed = asyncio.Event()

    async def start(self) -> tuple[Message, ...]:
        return (Message("user", "1+1="),)

    async def step(self, response: str) -> StepResult:
        await self._closed.wait()
        raise OSError("the door is shut")

    async def close(self) -> None:
        self._closed.set()


async def asked() -> tuple[GuardedEnv, asyncio.Task[StepResult]]:
    """One that has started, and its answer under way."""
    env = GuardedEnv(Spec(f"{__name__}:Slow"), Task(id="t", domain="d"))
    await env.start()
    answer = asyncio.create_task(env.step("2"))
    await asyncio.sleep(0)
    return env, answer


def test_an_answer_that_fails_because_of_the_closing_still_says_which_turn_it_was() -> None:
    async def go() -> None:
        env, answer = await asked()
        await env.close()
        with pytest.raises(EnvFailed, match=rf"of task 't', turn 0: OSError: the door is shut \({__file__}:\d+\)$"):
            await answer

    asyncio.run(go())


def test_one_that_is_cancelled_by_others_is_not_to_blame() -> None:
    async def go() -> None:
        _, answer = await asked()
        answer.cancel()
        with pytest.raises(asyncio.CancelledError):
            await answer

    asyncio.run(go())
