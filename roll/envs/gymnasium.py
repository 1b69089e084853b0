"""Environments with the interface of Gymnasium: `reset(seed=)`, `step(action)`, `close()`.

    env: {kind: gymnasium, env: FrozenLake-v1, options: {render_mode: ansi}, actions: [left, down, right, up]}
    env: {kind: gymnasium, env: "my_lab.maze:Maze", describe: "my_lab.maze:in_words"}

`env` is `package.module:Class`, or the id of an environment that the package gymnasium knows. What the policy reads is
what `describe(env, observation)` returns, else the observation where it is text, else what `render()` returns where
that is text. What it writes is one of `actions`, by name, in the order of the action space; without `actions` the
number of an action where the space has `n` of them, else the reply itself. Anything else costs a turn and is answered
with the choice there is.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from roll.envs.actions import Tally, inside
from roll.envs.adapters import ADAPTED, made, opening, parts, settled, succeeded
from roll.envs.base import Reply
from roll.errors import ConfigError
from roll.types import Message, Task


@dataclass(eq=False)
class Gymnasium:
    """An environment of Gymnasium's kind, played in text. Its state is what it last said."""

    task: Task
    env: str
    """`package.module:Class`, or an id that `gymnasium.make` takes."""
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """What it is made with."""
    actions: Sequence[str | int] = ()
    """Names of the actions 0, 1, 2 ...; empty: their numbers, or the reply as it is."""
    describe: str = ""
    """`package.module:function` that puts an observation into words."""
    prompt: str = ""
    """Said before the first observation."""
    tag: str = ""
    """Where an action stands in a reply: within the last `<tag>`. Empty: the reply is the action."""
    format_penalty: float = 0.0
    """Taken off for a reply that is no action."""

    def __post_init__(self) -> None:
        self._env: Any = made(self.env, self.options) if ":" in self.env else _known(self.env, self.options)
        self._describe: Any = ADAPTED[self.describe] if self.describe else None
        space: Any = getattr(self._env, "action_space", None)
        self._first, num = int(getattr(space, "start", 0)), getattr(space, "n", None)
        self._names = [str(name) for name in self.actions]
        if num is not None and not self._names:
            self._names = [str(self._first + index) for index in range(int(num))]
        if num is not None and len(self._names) != int(num):
            raise ConfigError(f"gymnasium: {self.env} has {num} actions (got {len(self._names)}); name each of them")
        self._numbers = {name.lower(): self._first + index for index, name in enumerate(self._names)}
        self.actions = tuple(self._names)
        self._tally, self._reward, self._text = Tally(), 0.0, ""
        self._done = self._closed = False

    async def start(self) -> tuple[Message, ...]:
        found = await settled(self._env.reset(seed=self.task.seed))
        self._text = self._worded(parts(found, 2, "reset")[0])
        return opening(self.task, self.prompt, self._text)

    async def step(self, reply: str) -> Reply:
        assert not self._done, f"gymnasium: {self.env} stepped after done; an environment is single-use"
        action = self._chosen(reply)
        if action is None:
            self._tally.add(valid=False, effective=False)
            words = f"Not an action. Choose one of: {', '.join(self._names)}"
            return self._replied(f"{words}\n{self._text}", -self.format_penalty, success=False)
        observation, reward, ended, cut, info = parts(await settled(self._env.step(action)), 5, "step")
        before, self._text = self._text, self._worded(observation)
        self._reward += float(reward)
        self._done = bool(ended or cut)
        self._tally.add(valid=True, effective=self._text != before)
        success = self._done and succeeded(info, ended=bool(ended), reward=self._reward)
        return self._replied(self._text, float(reward), success=success)

    async def close(self) -> None:
        self._done = True
        if not self._closed:
            self._closed = True
            await settled(getattr(self._env, "close", _nothing)())

    def _chosen(self, reply: str) -> Any:
        """What the reply does; None where it does nothing."""
        text = inside(reply, self.tag)
        return text if text is None or not self._names else self._numbers.get(text.lower())

    def _replied(self, text: str, reward: float, *, success: bool) -> Reply:
        return Reply(
            messages=(Message("user", text),),
            reward=reward,
            done=self._done,
            state=self._text,
            metrics=self._tally.metrics(success=success),
        )

    def _worded(self, observation: Any) -> str:
        """What the policy reads of it."""
        if self._describe is not None:
            found = self._describe(self._env, observation)
        elif isinstance(observation, str):
            found = observation
        else:
            found = getattr(self._env, "render", _nothing)()
        if not isinstance(found, str):
            raise ConfigError(
                f"gymnasium: {self.env} says nothing that can be read (observation {observation!r}, got {found!r}); "
                "name a function in `describe`, or give it a render_mode that is text, such as ansi"
            )
        return found


def _known(name: str, options: Mapping[str, Any]) -> Any:
    try:
        package: Any = importlib.import_module("gymnasium")
    except ModuleNotFoundError:
        raise ConfigError(
            f"gymnasium: {name!r} is an id of the package gymnasium, which is not installed; install it, or write "
            "package.module:Class"
        ) from None
    return package.make(name, **options)


def _nothing() -> None:
    """Stands for a method that an environment does not have."""
