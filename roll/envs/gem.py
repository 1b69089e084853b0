"""Adapter for environments with GEM's interface: `reset()` gives text and info, `step(text)` a tuple of five.

    env: {kind: gem, env: "gem:make", options: {env_id: "game:GuessTheNumber-v0"}}
    env: {kind: gem, env: "my_lab.riddles:Riddle"}

`env` is a class or a function that builds the environment. `reset` gets the task's seed if it takes one. Tools and
action formats are part of the environment's text.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from roll.envs.adapters import build, expect_tuple, is_success, maybe_await, opening_messages
from roll.envs.base import StepResult
from roll.types import Message, Task


@dataclass(eq=False)
class Gem:
    """An environment with GEM's interface. Of `info`, only success is read."""

    task: Task
    env: str
    """`package.module:attribute` of a class, or of a function that builds an environment."""
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    prompt: str = ""
    """Text before the first observation."""

    def __post_init__(self) -> None:
        self._env: Any = build(self.env, self.options)
        self._num_turns, self._reward = 0, 0.0
        self._done = self._closed = False

    async def start(self) -> tuple[Message, ...]:
        seed = {"seed": self.task.seed} if _takes_seed(self._env.reset) else {}
        text, _ = expect_tuple(await maybe_await(self._env.reset(**seed)), 2, "reset")
        return opening_messages(self.task, self.prompt, _text(text))

    async def step(self, response: str) -> StepResult:
        assert not self._done, f"gem: {self.env} stepped after done; an environment is single-use"
        text, reward, ended, cut, info = expect_tuple(await maybe_await(self._env.step(response)), 5, "step")
        self._num_turns += 1
        self._reward += float(reward)
        self._done = bool(ended or cut)
        success = self._done and is_success(info, ended=bool(ended), reward=self._reward)
        return StepResult(
            messages=(Message("user", _text(text)),),
            reward=float(reward),
            done=self._done,
            metrics={"success": float(success), "turns": float(self._num_turns)},
        )

    async def close(self) -> None:
        self._done = True
        close = getattr(self._env, "close", None)
        if close is not None and not self._closed:
            self._closed = True
            await maybe_await(close())


def _takes_seed(reset: Any) -> bool:
    parameters = inspect.signature(reset).parameters
    return "seed" in parameters or any(each.kind is each.VAR_KEYWORD for each in parameters.values())


def _text(observation: Any) -> str:
    if not isinstance(observation, str):
        raise TypeError(f"an observation must be text (got {observation!r}); return text")
    return observation
