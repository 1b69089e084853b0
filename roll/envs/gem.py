"""Environments with the interface of GEM: text in and out, `reset()` gives text and info, `step(text)` five things.

    env: {kind: gem, env: "gem:make", options: {env_id: "game:GuessTheNumber-v0"}}
    env: {kind: gem, env: "my_lab.riddles:Riddle"}

`env` is a class or a function that gives the environment. `reset` is given the task's seed if it takes one. Tools are
the environment's own matter there, as text; so are formats of actions.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from roll.envs.adapters import made, opening, parts, settled, succeeded
from roll.envs.base import Reply
from roll.types import Message, Task


@dataclass(eq=False)
class Gem:
    """An environment of GEM's kind. What it gives in `info` beside success is not read."""

    task: Task
    env: str
    """`package.module:attribute` of a class, or of a function that gives an environment."""
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    prompt: str = ""
    """Said before the first observation."""

    def __post_init__(self) -> None:
        self._env: Any = made(self.env, self.options)
        self._num_turns, self._reward = 0, 0.0
        self._done = self._closed = False

    async def start(self) -> tuple[Message, ...]:
        seed = {"seed": self.task.seed} if _takes_seed(self._env.reset) else {}
        text, _ = parts(await settled(self._env.reset(**seed)), 2, "reset")
        return opening(self.task, self.prompt, _text(text))

    async def step(self, reply: str) -> Reply:
        assert not self._done, f"gem: {self.env} stepped after done; an environment is single-use"
        text, reward, ended, cut, info = parts(await settled(self._env.step(reply)), 5, "step")
        self._num_turns += 1
        self._reward += float(reward)
        self._done = bool(ended or cut)
        success = self._done and succeeded(info, ended=bool(ended), reward=self._reward)
        return Reply(
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
            await settled(close())


def _takes_seed(reset: Any) -> bool:
    parameters = inspect.signature(reset).parameters
    return "seed" in parameters or any(each.kind is each.VAR_KEYWORD for each in parameters.values())


def _text(found: Any) -> str:
    if not isinstance(found, str):
        raise TypeError(f"an observation is no text (got {found!r}); return text")
    return found
