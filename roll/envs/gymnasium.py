"""Adapters for environments with the interface of Gymnasium or of GEM: `reset`, `step(action)`, `close()`.

    env: {kind: gymnasium, env: FrozenLake-v1, options: {render_mode: ansi}, actions: [left, down, right, up]}
    env: {kind: gymnasium, env: "my_lab.maze:Maze", describe: "my_lab.maze:in_words"}
    env: {kind: gem, env: "gem:make", options: {env_id: "game:GuessTheNumber-v0"}}

`reset` returns a tuple of two, observation and info; `step` a tuple of five. Of `info`, only success is read.

gymnasium: `env` is `package.module:Class`, or an id of the package gymnasium. The policy reads the result of
`describe(env, observation)`, otherwise a text observation, otherwise a text from `render()`. It writes one of
`actions`, named in the order of the action space. Without `actions` it writes the number of an action if the space has
`n` of them, otherwise the response is the action. Any other response costs a turn and gets the list of choices.

gem: `env` is a class or a function that builds the environment. Observations and actions are text, in which tools and
action formats are explained. `reset` gets the task's seed if it takes one.
"""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from roll.envs.actions import ActionCounts, extract_action
from roll.envs.adapters import ADAPTED, maybe_await
from roll.envs.base import StepResult
from roll.errors import ConfigError
from roll.types import Message, Task


class _Wrapped:
    """The wrapped environment: awaits its methods, and checks what they return."""

    def __init__(self, env: Any, name: str) -> None:
        self.env, self._name = env, name
        self._reward, self.done, self._closed = 0.0, False, False

    def check_open(self) -> None:
        assert not self.done, f"{self._name} stepped after done; an environment is single-use"

    async def reset(self, **seed: int) -> Any:
        """The first observation."""
        return _expect_tuple(await maybe_await(self.env.reset(**seed)), 2, "reset")[0]

    async def step(self, action: Any) -> tuple[Any, float, bool]:
        """Observation, reward, and whether the attempt succeeded.

        `info` decides about success, otherwise ending with a total reward above 0 does.
        """
        observation, reward, ended, cut, info = _expect_tuple(await maybe_await(self.env.step(action)), 5, "step")
        self._reward += float(reward)
        self.done = bool(ended or cut)
        success = info.get("is_success", info.get("success")) if self.done else False
        return observation, float(reward), bool(ended and self._reward > 0 if success is None else success)

    async def close(self) -> None:
        self.done = True
        if not self._closed:
            self._closed = True
            await maybe_await(getattr(self.env, "close", _missing_method)())


@dataclass(eq=False)
class Gymnasium:
    """An environment with Gymnasium's interface, played in text. The state is the last observation text."""

    task: Task
    env: str
    """`package.module:Class`, or an id that `gymnasium.make` takes."""
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Keyword arguments of the environment."""
    actions: Sequence[str | int] = ()
    """Names of the actions 0, 1, 2 ...; empty: their numbers, or the response as it is."""
    describe: str = ""
    """`package.module:function` that turns an observation into text."""
    prompt: str = ""
    """Text before the first observation."""
    tag: str = ""
    """Tag around the action: the last `<tag>` counts. Empty: the whole response is the action."""
    format_penalty: float = 0.0
    """Subtracted for a response that is no action."""

    def __post_init__(self) -> None:
        build: Any = ADAPTED[self.env] if ":" in self.env else _maker(self.env)
        self._wrapped = _Wrapped(build(**(self.options or {})), f"gymnasium: {self.env}")
        self._describe: Any = ADAPTED[self.describe] if self.describe else None
        space: Any = getattr(self._wrapped.env, "action_space", None)
        first, num = int(getattr(space, "start", 0)), getattr(space, "n", None)
        self._names = [str(name) for name in self.actions]
        if num is not None and not self._names:
            self._names = [str(first + index) for index in range(int(num))]
        if num is not None and len(self._names) != int(num):
            raise ConfigError(f"gymnasium: {self.env} has {num} actions (got {len(self._names)}); name each of them")
        self._numbers = {name.lower(): number for number, name in enumerate(self._names, start=first)}
        self.actions = tuple(self._names)
        self._counts, self._text = ActionCounts(), ""

    async def start(self) -> tuple[Message, ...]:
        self._text = self._describe_observation(await self._wrapped.reset(seed=self.task.seed))
        return _opening(self.task, self.prompt, self._text)

    async def step(self, response: str) -> StepResult:
        self._wrapped.check_open()
        action = extract_action(response, self.tag)
        if action is not None and self._names:
            action = self._numbers.get(action.lower())
        if action is None:
            self._counts.add(valid=False, effective=False)
            words = f"Not an action. Choose one of: {', '.join(self._names)}"
            return self._result(f"{words}\n{self._text}", -self.format_penalty, success=False)
        observation, reward, success = await self._wrapped.step(action)
        before, self._text = self._text, self._describe_observation(observation)
        self._counts.add(valid=True, effective=self._text != before)
        return self._result(self._text, reward, success=success)

    async def close(self) -> None:
        await self._wrapped.close()

    def _result(self, text: str, reward: float, *, success: bool) -> StepResult:
        return StepResult(
            messages=(Message("user", text),),
            reward=reward,
            done=self._wrapped.done,
            state=self._text,
            metrics=self._counts.metrics(success=success),
        )

    def _describe_observation(self, observation: Any) -> str:
        """The observation as text."""
        env = self._wrapped.env
        if self._describe is not None:
            text = self._describe(env, observation)
        else:
            text = observation if isinstance(observation, str) else getattr(env, "render", _missing_method)()
        if not isinstance(text, str):
            raise ConfigError(
                f"gymnasium: {self.env} has no text observation (observation {observation!r}, got {text!r}); "
                "name a function in `describe`, or choose a text render_mode, such as ansi"
            )
        return text


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
        self._wrapped = _Wrapped(ADAPTED[self.env](**(self.options or {})), f"gem: {self.env}")
        self._num_turns = 0

    async def start(self) -> tuple[Message, ...]:
        parameters = inspect.signature(self._wrapped.env.reset).parameters
        takes_seed = "seed" in parameters or any(each.kind is each.VAR_KEYWORD for each in parameters.values())
        seed = {"seed": self.task.seed} if takes_seed else {}
        return _opening(self.task, self.prompt, _expect_text(await self._wrapped.reset(**seed)))

    async def step(self, response: str) -> StepResult:
        self._wrapped.check_open()
        observation, reward, success = await self._wrapped.step(response)
        self._num_turns += 1
        return StepResult(
            messages=(Message("user", _expect_text(observation)),),
            reward=reward,
            done=self._wrapped.done,
            metrics={"success": float(success), "turns": float(self._num_turns)},
        )

    async def close(self) -> None:
        await self._wrapped.close()


def _maker(name: str) -> Any:
    """A function that makes the environment with this id of the package gymnasium."""
    try:
        package: Any = importlib.import_module("gymnasium")
    except ModuleNotFoundError:
        raise ConfigError(
            f"gymnasium: {name!r} is an id of the package gymnasium, which is not installed; install it, or write "
            "package.module:Class"
        ) from None
    return functools.partial(package.make, name)


def _opening(task: Task, prompt: str, text: str) -> tuple[Message, ...]:
    """The task's messages, then the prompt and the first observation."""
    return (*task.messages, Message("user", f"{prompt}\n{text}" if prompt else text))


def _expect_tuple(value: Any, num: int, what: str) -> tuple[Any, ...]:
    if not isinstance(value, tuple) or len(cast(tuple[Any, ...], value)) != num:
        raise TypeError(f"{what} must return a tuple of {num} (got {value!r}); return one")
    return cast(tuple[Any, ...], value)


def _expect_text(observation: Any) -> str:
    if not isinstance(observation, str):
        raise TypeError(f"an observation must be text (got {observation!r}); return text")
    return observation


def _missing_method() -> None:
    """Substitute for a method that an environment lacks."""
