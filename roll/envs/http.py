"""Environments behind HTTP, for those that live on other machines or are written in other languages.

    env: {kind: http, url: "http://127.0.0.1:9000/maze"}

| posted to | body | answered with status 200 and |
|---|---|---|
| `url/start` | `{"task": {...}}` | `{"id": "7", "messages": [...]}` |
| `url/step` | `{"id": "7", "reply": "left"}` | `{"messages": [...], "reward": 0.0, "done": false}` |
| `url/close` | `{"id": "7"}` | `{}` |

A task has `id`, `domain`, `messages`, `answer`, `metadata` and `seed`; a message is
`{"role": "user", "content": "..."}`; an answer to `step` may also have `state` and `metrics`. A start that gets no
answer is asked for again; a step never is, because it may have happened. `close` is sent once for each start that was
answered.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from roll.chat.client import Client
from roll.envs.adapters import said
from roll.envs.base import Reply
from roll.errors import ConfigError
from roll.types import Message, Task

T = TypeVar("T")
_STEP = frozenset({"messages", "reward", "done", "state", "metrics"})


@dataclass(eq=False)
class Http:
    """An environment that a server holds."""

    task: Task
    url: str
    """Where `/start`, `/step` and `/close` are."""
    timeout_s: float = 60.0
    """For one answer."""
    max_retries: int = 2
    """How often a start is asked for again."""
    api_key_env: str | None = None
    """The environment variable with a key that is sent as a bearer token."""

    def __post_init__(self) -> None:
        if not (self.timeout_s > 0 and self.max_retries >= 0):
            raise ConfigError(
                f"http: needs timeout_s above 0 and max_retries 0 or more (got {self.timeout_s}, {self.max_retries}); "
                "change them"
            )
        self._id: str | None = None
        self._done = False

    async def start(self) -> tuple[Message, ...]:
        self._id, messages = await self._ask("start", {"task": _plain(self.task)}, _opened, self.max_retries)
        return messages

    async def step(self, reply: str) -> Reply:
        assert not self._done, f"http: {self.url} stepped after done; an environment is single-use"
        found = await self._ask("step", {"id": self._id, "reply": reply}, _replied)
        self._done = found.done
        return found

    async def close(self) -> None:
        self._done, open_as, self._id = True, self._id, None
        if open_as is not None:
            await self._ask("close", {"id": open_as}, lambda found: None)

    async def _ask(self, what: str, body: dict[str, Any], read: Callable[[Any], T], max_retries: int = 0) -> T:
        client = Client(
            url=f"{self.url.rstrip('/')}/{what}",
            timeout_s=self.timeout_s,
            max_retries=max_retries,
            api_key_env=self.api_key_env,
        )
        return await client.ask(body, read)


def _plain(task: Task) -> dict[str, Any]:
    messages = [{"role": message.role, "content": message.content} for message in task.messages]
    about = {"answer": task.answer, "metadata": task.metadata, "seed": task.seed}
    return {"id": task.id, "domain": task.domain, "messages": messages, **about}


def _opened(found: Any) -> tuple[str, tuple[Message, ...]]:
    fields = _object(found, frozenset({"id", "messages"}))
    if not isinstance(fields.get("id"), str):
        raise ValueError("no text in 'id'")
    return fields["id"], _messages(fields.get("messages"))


def _replied(found: Any) -> Reply:
    """The reply in an answer; ValueError where it is anything but that. Numbers are looked at by whoever asked."""
    fields = _object(found, _STEP)
    if "done" not in fields or "reward" not in fields:
        raise ValueError("no 'reward', or no 'done'")
    return Reply(
        messages=_messages(fields.get("messages", [])),
        reward=fields["reward"],
        done=fields["done"],
        state=fields.get("state", ""),
        metrics=fields.get("metrics", {}),
    )


def _messages(found: Any) -> tuple[Message, ...]:
    return said(found, "messages")


def _object(found: Any, known: frozenset[str]) -> dict[str, Any]:
    if not isinstance(found, dict):
        raise ValueError("not an object")
    fields = cast(dict[str, Any], found)
    if unknown := sorted(fields.keys() - known):
        raise ValueError(f"unknown field {unknown[0]!r}")
    return fields
