"""A JSON service that is asked until it answers: tries, pauses between them, a key, and what its refusals mean."""

from __future__ import annotations

import asyncio
import email.utils
import json
import os
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from roll.chat.http import Address, Answer, Refused, Unanswered, address, post
from roll.errors import ConfigError

T = TypeVar("T")

_BUSY = frozenset({408, 425, 429})
"""Beside those of 500 and above: what a server says that may answer later."""
_UNWELCOME = frozenset({401, 403})
_ELSEWHERE = frozenset({301, 302, 303, 307, 308, 404, 405})
_LONGEST_PAUSE_S = 60.0
_EXCERPT = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """Posts JSON to one URL. At most `max_concurrent` requests are under way; the others wait for their turn."""

    url: str
    api_key_env: str | None = None
    """The environment variable that holds the key; the key itself is kept nowhere and shown nowhere."""
    timeout_s: float = 60.0
    """For one try."""
    max_retries: int = 3
    backoff_s: float = 0.5
    """The first pause at its longest; each later one is twice the one before."""
    max_concurrent: int = 64
    _address: Address = field(init=False, repr=False)
    _turns: asyncio.Semaphore = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_address", address(self.url))
        object.__setattr__(self, "_turns", asyncio.Semaphore(self.max_concurrent))
        self._key()  # a missing one is told before anything is asked

    async def ask(self, payload: Mapping[str, Any], read: Callable[[Any], T]) -> T:
        """What `read` makes of the JSON that answers `payload`; where it raises ValueError, that was no answer.

        Raises `Unanswered` after the last try, `Refused` at once where this request will not do, and `ConfigError`
        where none ever will.
        """
        key = self._key()
        # A lone surrogate has no place in UTF-8, and a server would refuse the whole request for it.
        body = json.dumps(payload, ensure_ascii=False, allow_nan=False).encode("utf-8", "replace")
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        for tried in range(1, self.max_retries + 2):
            retry_after = None
            try:
                async with self._turns:
                    answer = await post(self._address, body, headers, timeout_s=self.timeout_s)
                retry_after = answer.headers.get("retry-after")
                return self._understood(answer, read, key)
            except Unanswered as error:
                pause_s = pause_before(tried, retry_after, backoff_s=self.backoff_s, now_s=time.time())
                if pause_s > _LONGEST_PAUSE_S:
                    raise Unanswered(f"{error}; asks for a pause of {pause_s:g} s; lower the load on it") from error
                if tried > self.max_retries:
                    raise Unanswered(f"{error}; given up at try {tried}; see whether the server is up") from error
                await asyncio.sleep(pause_s)
        raise AssertionError("the last try returns or raises")

    def _key(self) -> str | None:
        if self.api_key_env is None:
            return None
        key = os.environ.get(self.api_key_env, "").strip()
        if not key or not key.isascii() or not key.isprintable():
            raise ConfigError(
                f"api_key_env: no key in the environment variable {self.api_key_env}; set it, or leave the option out"
            )
        return key

    def _understood(self, answer: Answer, read: Callable[[Any], T], key: str | None) -> T:
        said = _excerpt(answer.body, key)
        status = answer.status
        if status in _BUSY or status >= 500:
            raise Unanswered(f"{self.url}: status {status} ({said})")
        if status in _UNWELCOME:
            held = "no key was sent" if key is None else f"with the key in {self.api_key_env}"
            raise ConfigError(f"{self.url}: status {status}, {held} ({said}); set api_key_env to a variable with one")
        if status in _ELSEWHERE:
            raise ConfigError(f"{self.url}: status {status}, nothing answers there ({said}); correct url or model")
        if status != 200:
            raise Refused(f"{self.url}: status {status}, the request was refused ({said})")
        try:
            return read(json.loads(answer.body))
        except (ValueError, RecursionError) as error:
            raise Unanswered(f"{self.url}: not the answer asked for, {_hidden(str(error), key)} (got {said})") from None


def pause_before(tried: int, retry_after: str | None, *, backoff_s: float, now_s: float) -> float:
    """Seconds to wait after `tried` tries: as long as the server says, else a random part of a doubling time."""
    asked_s = _seconds(retry_after, now_s)
    if asked_s is not None:
        return asked_s
    longest_s = min(backoff_s * 2 ** (tried - 1), _LONGEST_PAUSE_S)
    return longest_s * _JITTER.uniform(0.5, 1.0)  # so that workers do not come back all at once


_JITTER = random.Random()
"""Its own, so that a run's seeds are not drawn from."""


def _seconds(retry_after: str | None, now_s: float) -> float | None:
    """What a Retry-After header asks for, in seconds or as a date; None where it cannot be read."""
    if retry_after is None:
        return None
    if retry_after.isascii() and retry_after.isdigit():
        return float(retry_after)
    try:
        return max(0.0, email.utils.parsedate_to_datetime(retry_after).timestamp() - now_s)
    except ValueError:
        return None


def _excerpt(body: bytes, key: str | None) -> str:
    text = _hidden(" ".join(body[: 50 * _EXCERPT].decode("utf-8", "replace").split()), key)
    return text if len(text) <= _EXCERPT else f"{text[:_EXCERPT]}..."


def _hidden(text: str, key: str | None) -> str:
    """Without the key, which servers like to repeat."""
    return text if key is None else text.replace(key, "***")
