"""Adapter for environments with the interface of the package verifiers, played turn by turn.

    env: {kind: verifiers, env: "wordle:load_environment", options: {num_train_examples: 2000}}

`env` is a class or a function that builds the environment. It is built once per process and shared by all attempts.
The adapter uses only these members:

| member | used for |
|---|---|
| `get_dataset()` or `dataset`, rows with `prompt`, `answer`, `info`, `task` | a task without messages: row `seed` |
| `system_prompt` | the first message, if the prompt is text |
| `setup_state(state)` | once, before the first turn |
| `is_completed(state)` or `is_completed(messages, state)` | after every response |
| `env_response(messages, state)`, giving messages, text, or messages and state | the next messages |
| `rubric.score_rollout(state)`, or with `prompt, completion, answer, state, task, info` | the reward, at the end |

Methods may be `async`. A `state` has `prompt`, `completion`, `answer`, `info`, `task`, `turn`, `trajectory` and
`responses`. A response with `<tool_call>{"name": ..., "arguments": {...}}</tool_call>` is passed on with `tool_calls`,
as environments with tools expect. Group rewards, images, and environments that call a model themselves are not
supported.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, cast

from roll.data.messages import message_entry
from roll.envs.adapters import ADAPTED, maybe_await, to_messages
from roll.envs.base import StepResult
from roll.errors import ConfigError
from roll.types import Message, Task

_TOOL_CALL = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)


@dataclass(eq=False)
class Verifiers:
    """An attempt in a verifiers environment. The reward is the rubric's, on the last turn."""

    task: Task
    env: str
    """`package.module:attribute` of a class, or of a function that builds an environment."""
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def __post_init__(self) -> None:
        self._env: Any = _load_shared(self.env, json.dumps(dict(self.options), sort_keys=True))
        for name in ("env_response", "is_completed", "rubric"):
            if not hasattr(self._env, name):
                raise ConfigError(f"verifiers: {self.env} has no {name!r}; name an environment with turns")
        self._state: Any = None
        self._done = False

    async def start(self) -> tuple[Message, ...]:
        row: Mapping[str, Any] = {} if self.task.messages else _row(self._env, self.task.seed)
        prompt = self._prompt(row.get("prompt"))
        self._state = {
            "prompt": [message_entry(message) for message in prompt],
            "completion": [],
            "answer": row.get("answer", self.task.answer),
            "info": row.get("info") or dict(self.task.metadata),
            "task": row.get("task", self.task.domain),
            "turn": 0,
            "trajectory": [],
            "responses": [],
        }
        if hasattr(self._env, "setup_state"):
            self._state = await maybe_await(self._env.setup_state(self._state)) or self._state
        return prompt

    async def step(self, response: str) -> StepResult:
        assert not self._done, f"verifiers: {self.env} stepped after done; an environment is single-use"
        state = self._state
        state["completion"].append(_assistant_message(response))
        state["turn"] += 1
        state["trajectory"].append({"prompt": state["prompt"], "completion": [state["completion"][-1]]})
        new: tuple[Message, ...] = ()
        self._done = await self._is_completed()
        if not self._done:
            new = await self._env_response()
            self._done = bool(self._state.get("final_env_response"))
        if not self._done:
            return StepResult(messages=new, metrics={"turns": float(state["turn"])})
        reward, metrics = await self._score()
        metrics = {"turns": float(self._state["turn"]), "success": float(reward >= 1.0), **metrics}
        return StepResult(messages=new, reward=reward, done=True, metrics=metrics)

    async def close(self) -> None:
        self._done = True

    def _prompt(self, prompt: Any) -> tuple[Message, ...]:
        if self.task.messages:
            return self.task.messages
        system: Any = getattr(self._env, "system_prompt", None)
        first = (Message("system", system),) if isinstance(prompt, str) and isinstance(system, str) else ()
        return (*first, *to_messages(prompt, f"verifiers: a prompt of {self.env}"))

    async def _is_completed(self) -> bool:
        check, state = self._env.is_completed, self._state
        if _num_parameters(check) == 1:
            return bool(await maybe_await(check(state)))
        return bool(await maybe_await(check([*state["prompt"], *state["completion"]], state)))

    async def _env_response(self) -> tuple[Message, ...]:
        messages = [*self._state["prompt"], *self._state["completion"]]
        answer: Any = await maybe_await(self._env.env_response(messages, self._state))
        if isinstance(answer, tuple) and len(cast(tuple[Any, ...], answer)) == 2:
            answer, self._state = cast(tuple[Any, Any], answer)
        new = to_messages(answer, f"verifiers: env_response of {self.env}")
        self._state["completion"] += [message_entry(message) for message in new]
        return new

    async def _score(self) -> tuple[float, dict[str, float]]:
        state, score = self._state, self._env.rubric.score_rollout
        arguments = [state]
        if _num_parameters(score) != 1:
            before = [state[name] for name in ("prompt", "completion", "answer")]
            arguments = [*before, state, state["task"], state["info"]]
        scored: Any = await maybe_await(score(*arguments))
        if isinstance(scored, Mapping):
            fields = cast(Mapping[str, Any], scored)
        elif hasattr(scored, "reward"):
            fields = cast(Mapping[str, Any], {"reward": scored.reward, "metrics": getattr(scored, "metrics", {})})
        else:
            fields = cast(Mapping[str, Any], state)
        if fields.get("reward") is None:
            raise ConfigError(f"verifiers: the rubric of {self.env} gave no reward; use rewards of single attempts")
        metrics = cast(Mapping[str, Any], fields.get("metrics") or {})
        return float(fields["reward"]), {str(name): float(value) for name, value in metrics.items()}


@lru_cache(maxsize=32)
def _load_shared(name: str, options: str) -> Any:
    """The only environment of this name and these options in this process."""
    return ADAPTED[name](**json.loads(options))


def _row(env: Any, seed: int) -> Mapping[str, Any]:
    rows: Any = env.get_dataset() if hasattr(env, "get_dataset") else getattr(env, "dataset", None)
    if rows is None or not len(rows):
        raise ConfigError("verifiers: the environment has no dataset; give tasks with messages in `data`")
    return rows[seed % len(rows)]


def _num_parameters(method: Any) -> int:
    """Number of positional parameters without a default."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = inspect.signature(method).parameters.values()
    return sum(each.kind in kinds and each.default is each.empty for each in parameters)


def _assistant_message(response: str) -> dict[str, Any]:
    """A response as a message with its tool calls; malformed calls stay text."""
    functions = [function for text in _TOOL_CALL.findall(response) if (function := _parse_call(text))]
    calls = [{"id": f"call_{i}", "type": "function", "function": each} for i, each in enumerate(functions)]
    return {"role": "assistant", "content": response} | ({"tool_calls": calls} if calls else {})


def _parse_call(text: str) -> dict[str, Any] | None:
    try:
        value: Any = json.loads(text)
    except (ValueError, RecursionError):
        return None
    fields = cast(dict[str, Any], value) if isinstance(value, dict) else {}
    name, arguments = fields.get("name"), fields.get("arguments", {})
    valid = isinstance(name, str) and isinstance(arguments, dict)
    return {"name": name, "arguments": json.dumps(arguments)} if valid else None
