"""Environments with the interface of the package verifiers, played turn by turn.

    env: {kind: verifiers, env: "wordle:load_environment", options: {num_train_examples: 2000}}

`env` is a class or a function that gives the environment; it is made once in a process and shared by all attempts. What
is used of it, and nothing else:

| of the environment | used for |
|---|---|
| `get_dataset()` or `dataset`, rows with `prompt`, `answer`, `info`, `task` | a task without messages: row `seed` |
| `system_prompt` | the first message, where the prompt is text |
| `setup_state(state)` | once, before the first turn |
| `is_completed(state)` or `is_completed(messages, state)` | after every reply |
| `env_response(messages, state)`, giving messages, text, or messages and state | what is said next |
| `rubric.score_rollout(state)`, or with `prompt, completion, answer, state, task, info` | the reward, at the end |

Methods may be `async`. A `state` has `prompt`, `completion`, `answer`, `info`, `task`, `turn`, `trajectory` and
`responses`. A reply with `<tool_call>{"name": ..., "arguments": {...}}</tool_call>` in it is passed on with
`tool_calls`, as environments with tools expect it. Group rewards, images, and environments that talk to a model
themselves are not supported.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, cast

from roll.envs.adapters import made, said, settled
from roll.envs.base import Reply
from roll.errors import ConfigError
from roll.types import Message, Task

_TOOL_CALL = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)


@dataclass(eq=False)
class Verifiers:
    """An attempt in an environment of the kind of verifiers. The reward is its rubric's, for the last turn."""

    task: Task
    env: str
    """`package.module:attribute` of a class, or of a function that gives an environment."""
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def __post_init__(self) -> None:
        self._env: Any = _shared(self.env, json.dumps(dict(self.options), sort_keys=True))
        for name in ("env_response", "is_completed", "rubric"):
            if not hasattr(self._env, name):
                raise ConfigError(f"verifiers: {self.env} has no {name!r}; name an environment with turns")
        self._state: Any = None
        self._done = False

    async def start(self) -> tuple[Message, ...]:
        row: Mapping[str, Any] = {} if self.task.messages else _row(self._env, self.task.seed)
        prompt = self._prompt(row.get("prompt"))
        self._state = {
            "prompt": [_plain(message) for message in prompt],
            "completion": [],
            "answer": row.get("answer", self.task.answer),
            "info": row.get("info") or dict(self.task.metadata),
            "task": row.get("task", self.task.domain),
            "turn": 0,
            "trajectory": [],
            "responses": [],
        }
        if hasattr(self._env, "setup_state"):
            self._state = await settled(self._env.setup_state(self._state)) or self._state
        return prompt

    async def step(self, reply: str) -> Reply:
        assert not self._done, f"verifiers: {self.env} stepped after done; an environment is single-use"
        state = self._state
        state["completion"].append(_spoken(reply))
        state["turn"] += 1
        state["trajectory"].append({"prompt": state["prompt"], "completion": [state["completion"][-1]]})
        new: tuple[Message, ...] = ()
        self._done = await self._completed()
        if not self._done:
            new = await self._response()
            self._done = bool(self._state.get("final_env_response"))
        if not self._done:
            return Reply(messages=new, metrics={"turns": float(state["turn"])})
        reward, metrics = await self._scored()
        turns, success = float(self._state["turn"]), float(reward >= 1.0)
        return Reply(messages=new, reward=reward, done=True, metrics={"turns": turns, "success": success, **metrics})

    async def close(self) -> None:
        self._done = True

    def _prompt(self, found: Any) -> tuple[Message, ...]:
        if self.task.messages:
            return self.task.messages
        system: Any = getattr(self._env, "system_prompt", None)
        first = (Message("system", system),) if isinstance(found, str) and isinstance(system, str) else ()
        return (*first, *said(found, f"verifiers: a prompt of {self.env}"))

    async def _completed(self) -> bool:
        ask = self._env.is_completed
        whole = [*self._state["prompt"], *self._state["completion"]]
        alone = len(_needed(ask)) == 1
        return bool(await settled(ask(self._state) if alone else ask(whole, self._state)))

    async def _response(self) -> tuple[Message, ...]:
        whole = [*self._state["prompt"], *self._state["completion"]]
        found: Any = await settled(self._env.env_response(whole, self._state))
        if isinstance(found, tuple) and len(cast(tuple[Any, ...], found)) == 2:
            found, self._state = cast(tuple[Any, Any], found)
        new = said(found, f"verifiers: env_response of {self.env}")
        self._state["completion"] += [_plain(message) for message in new]
        return new

    async def _scored(self) -> tuple[float, dict[str, float]]:
        state, score = self._state, self._env.rubric.score_rollout
        asked = [state] if len(_needed(score)) == 1 else [state[name] for name in ("prompt", "completion", "answer")]
        if len(asked) == 3:
            asked += [state, state["task"], state["info"]]
        found: Any = await settled(score(*asked))
        if isinstance(found, Mapping):
            told = cast(Mapping[str, Any], found)
        elif hasattr(found, "reward"):
            told = cast(Mapping[str, Any], {"reward": found.reward, "metrics": getattr(found, "metrics", {})})
        else:
            told = cast(Mapping[str, Any], state)
        if told.get("reward") is None:
            raise ConfigError(f"verifiers: the rubric of {self.env} gave no reward; use rewards of single attempts")
        metrics = cast(Mapping[str, Any], told.get("metrics") or {})
        return float(told["reward"]), {str(name): float(value) for name, value in metrics.items()}


@lru_cache(maxsize=32)
def _shared(name: str, options: str) -> Any:
    """The one environment of that name and those options in this process."""
    return made(name, json.loads(options))


def _row(env: Any, seed: int) -> Mapping[str, Any]:
    rows: Any = env.get_dataset() if hasattr(env, "get_dataset") else getattr(env, "dataset", None)
    if rows is None or not len(rows):
        raise ConfigError("verifiers: the environment has no dataset; give tasks with messages in `data`")
    return rows[seed % len(rows)]


def _needed(method: Any) -> list[str]:
    """Parameters by position that have no default."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    found = inspect.signature(method).parameters.values()
    return [each.name for each in found if each.kind in kinds and each.default is each.empty]


def _plain(message: Message) -> dict[str, Any]:
    return {"role": message.role, "content": message.content}


def _spoken(reply: str) -> dict[str, Any]:
    """A reply as a message, with the tools it calls; what is no call stays text."""
    calls = [call for text in _TOOL_CALL.findall(reply) if (call := _call(text)) is not None]
    message: dict[str, Any] = {"role": "assistant", "content": reply}
    if not calls:
        return message
    named = [
        {"id": f"call_{index}", "type": "function", "function": {"name": name, "arguments": arguments}}
        for index, (name, arguments) in enumerate(calls)
    ]
    return {**message, "tool_calls": named}


def _call(text: str) -> tuple[str, str] | None:
    try:
        found: Any = json.loads(text)
    except (ValueError, RecursionError):
        return None
    fields = cast(dict[str, Any], found) if isinstance(found, dict) else {}
    name, arguments = fields.get("name"), fields.get("arguments", {})
    return (name, json.dumps(arguments)) if isinstance(name, str) and isinstance(arguments, dict) else None
