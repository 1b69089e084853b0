"""Environments behind HTTP, on other machines or in other languages.

    env: {kind: http, url: "http://127.0.0.1:9000/maze"}

| posted to | body | answered with status 200 and |
|---|---|---|
| `url/start` | `{"task": {...}}` | `{"id": "7", "messages": [...]}` |
| `url/step` | `{"id": "7", "response": "left"}` | `{"messages": [...], "reward": 0.0, "done": false}` |
| `url/close` | `{"id": "7"}` | `{}` |

A task has `id`, `domain`, `messages`, `answer`, `metadata` and `seed`; a message is
`{"role": "user", "content": "..."}`; an answer to `step` may also have `state` and `metrics`. An unanswered start is
retried; a step is not, because it may have happened. `close` is sent once per answered start.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from roll.chat.client import JsonClient
from roll.data.messages import message_entry
from roll.envs.adapters import to_messages
from roll.envs.base import StepResult
from roll.errors import ConfigError
from roll.types import Message, Task

T = TypeVar("T")


@dataclass(eq=False)
class Http:
    """An environment that runs on a server."""

    task: Task
    url: str
    """Base address of `/start`, `/step` and `/close`."""
    timeout_s: float = 60.0
    """Per request."""
    max_retries: int = 2
    """Retries of a start."""
    api_key_env: str | None = None
    """Name of the environment variable with a key, sent as a bearer token."""

    def __post_init__(self) -> None:
        if not (self.timeout_s > 0 and self.max_retries >= 0):
            raise ConfigError(
                f"http: needs timeout_s above 0 and max_retries 0 or more (got {self.timeout_s}, {self.max_retries}); "
                "change them"
            )
        self._id: str | None = None
        self._done = False

    async def start(self) -> tuple[Message, ...]:
        task = {name: getattr(self.task, name) for name in ("id", "domain", "answer", "metadata", "seed")}
        task["messages"] = [message_entry(message) for message in self.task.messages]
        self._id, messages = await self._ask("start", {"task": task}, _parse_start, self.max_retries)
        return messages

    async def step(self, response: str) -> StepResult:
        assert not self._done, f"http: {self.url} stepped after done; an environment is single-use"
        result = await self._ask("step", {"id": self._id, "response": response}, _parse_step)
        self._done = result.done
        return result

    async def close(self) -> None:
        self._done, open_as, self._id = True, self._id, None
        if open_as is not None:
            await self._ask("close", {"id": open_as}, lambda body: None)

    async def _ask(self, what: str, body: dict[str, Any], read: Callable[[Any], T], max_retries: int = 0) -> T:
        client = JsonClient(
            url=f"{self.url.rstrip('/')}/{what}",
            timeout_s=self.timeout_s,
            max_retries=max_retries,
            api_key_env=self.api_key_env,
        )
        return await client.post(body, read)


def _parse_start(body: Any) -> tuple[str, tuple[Message, ...]]:
    fields = _object(body, "id", "messages")
    if not isinstance(fields.get("id"), str):
        raise ValueError("no text in 'id'")
    return fields["id"], to_messages(fields.get("messages"), "messages")


def _parse_step(body: Any) -> StepResult:
    """The result in an answer's body; ValueError if it is malformed. The caller checks the numbers."""
    fields = _object(body, "messages", "reward", "done", "state", "metrics")
    if "done" not in fields or "reward" not in fields:
        raise ValueError("no 'reward', or no 'done'")
    return StepResult(
        messages=to_messages(fields.get("messages", []), "messages"),
        reward=fields["reward"],
        done=fields["done"],
        state=fields.get("state", ""),
        metrics=fields.get("metrics", {}),
    )


def _object(value: Any, *known: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError("not an object")
    fields = cast(dict[str, Any], value)
    if unknown := sorted(fields.keys() - set(known)):
        raise ValueError(f"unknown field {unknown[0]!r}")
    return fields
