"""Adapter for environments with Gymnasium's interface: `reset(seed=)`, `step(action)`, `close()`.

    env: {kind: gymnasium, env: FrozenLake-v1, options: {render_mode: ansi}, actions: [left, down, right, up]}
    env: {kind: gymnasium, env: "my_lab.maze:Maze", describe: "my_lab.maze:in_words"}

`env` is `package.module:Class`, or an id of the package gymnasium. The policy reads the result of
`describe(env, observation)`, otherwise a text observation, otherwise a text from `render()`. It writes one of
`actions`, named in the order of the action space. Without `actions` it writes the number of an action if the space has
`n` of them, otherwise the response is the action. Any other response costs a turn and gets the list of choices.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from roll.envs.actions import ActionCounts, extract_action
from roll.envs.adapters import ADAPTED, build, expect_tuple, is_success, maybe_await, opening_messages
from roll.envs.base import StepResult
from roll.errors import ConfigError
from roll.types import Message, Task


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
        self._env: Any = build(self.env, self.options) if ":" in self.env else _make_by_id(self.env, self.options)
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
        self._counts, self._reward, self._text = ActionCounts(), 0.0, ""
        self._done = self._closed = False

    async def start(self) -> tuple[Message, ...]:
        reset = await maybe_await(self._env.reset(seed=self.task.seed))
        self._text = self._describe_observation(expect_tuple(reset, 2, "reset")[0])
        return opening_messages(self.task, self.prompt, self._text)

    async def step(self, response: str) -> StepResult:
        assert not self._done, f"gymnasium: {self.env} stepped after done; an environment is single-use"
        action = self._parse_action(response)
        if action is None:
            self._counts.add(valid=False, effective=False)
            words = f"Not an action. Choose one of: {', '.join(self._names)}"
            return self._result(f"{words}\n{self._text}", -self.format_penalty, success=False)
        observation, reward, ended, cut, info = expect_tuple(await maybe_await(self._env.step(action)), 5, "step")
        before, self._text = self._text, self._describe_observation(observation)
        self._reward += float(reward)
        self._done = bool(ended or cut)
        self._counts.add(valid=True, effective=self._text != before)
        success = self._done and is_success(info, ended=bool(ended), reward=self._reward)
        return self._result(self._text, float(reward), success=success)

    async def close(self) -> None:
        self._done = True
        if not self._closed:
            self._closed = True
            await maybe_await(getattr(self._env, "close", _missing_method)())

    def _parse_action(self, response: str) -> Any:
        """The chosen action; None if the response names none."""
        text = extract_action(response, self.tag)
        return text if text is None or not self._names else self._numbers.get(text.lower())

    def _result(self, text: str, reward: float, *, success: bool) -> StepResult:
        return StepResult(
            messages=(Message("user", text),),
            reward=reward,
            done=self._done,
            state=self._text,
            metrics=self._counts.metrics(success=success),
        )

    def _describe_observation(self, observation: Any) -> str:
        """The observation as text."""
        if self._describe is not None:
            text = self._describe(self._env, observation)
        elif isinstance(observation, str):
            text = observation
        else:
            text = getattr(self._env, "render", _missing_method)()
        if not isinstance(text, str):
            raise ConfigError(
                f"gymnasium: {self.env} has no text observation (observation {observation!r}, got {text!r}); "
                "name a function in `describe`, or choose a text render_mode, such as ansi"
            )
        return text


def _make_by_id(name: str, options: Mapping[str, Any]) -> Any:
    try:
        package: Any = importlib.import_module("gymnasium")
    except ModuleNotFoundError:
        raise ConfigError(
            f"gymnasium: {name!r} is an id of the package gymnasium, which is not installed; install it, or write "
            "package.module:Class"
        ) from None
    return package.make(name, **options)


def _missing_method() -> None:
    """Substitute for a method that an environment lacks."""
