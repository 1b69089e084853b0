"""A scorer behind HTTP: asked for every reply, and left alone for a while when it is down.

    reward: {kind: remote, url: "http://127.0.0.1:9000/score"}

It is posted `{"task": {"id", "domain", "messages", "answer", "metadata"}, "reply": "..."}` and answers
`{"score": 0.5}`, or `{"score": 0.5, "parts": {"clarity": 0.25}}`, with status 200. Whatever else it says is no score:
status 429, 500 and above, or an answer of another form is asked for again; any other status fails this reply alone.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any, cast

from roll.chat.client import Client
from roll.chat.http import Refused, Unanswered
from roll.errors import ConfigError
from roll.rewards.outcome import Fault, Unscored
from roll.types import Score, Task


class Remote:
    """A reward by an HTTP service. After `open_after` failures in a row it is not asked for `pause_s` seconds.

    In that time every score fails at once, so that a run does not wait for a service that is gone; then one reply is
    sent to see. Each worker process finds out for itself.
    """

    def __init__(
        self,
        *,
        url: str,
        timeout_s: float = 10.0,
        max_retries: int = 2,
        api_key_env: str | None = None,
        open_after: int = 5,
        pause_s: float = 30.0,
    ) -> None:
        """`timeout_s` is for one try; `api_key_env` names the variable with a key that is sent as a bearer token."""
        if not (timeout_s > 0 and max_retries >= 0 and open_after > 0 and pause_s >= 0):
            raise ConfigError(
                f"reward 'remote': needs timeout_s and open_after above 0, max_retries and pause_s 0 or more (got "
                f"{timeout_s}, {open_after}, {max_retries}, {pause_s}); change them"
            )
        self.url = url
        self.breaker = Breaker(open_after=open_after, pause_s=pause_s)
        self._client = Client(url=url, timeout_s=timeout_s, max_retries=max_retries, api_key_env=api_key_env)

    async def score(self, task: Task, reply: str) -> Score:
        """What the service says; raises `RewardFailed` where it says nothing that is a score."""
        place = f"reward 'remote' on task {task.id!r}"
        trial = self.breaker.enter(f"{place}: {self.url}")
        alive: bool | None = None
        try:
            found = await self._client.ask(_question(task, reply), _score)
            alive = True
            return found
        except Unanswered as error:
            alive = False
            raise Unscored(Fault.INFRASTRUCTURE, f"{place}: {error}") from error
        except (Refused, ConfigError) as error:  # it said no, so it is there, and will say no again
            alive = True
            raise Unscored(Fault.REWARD, f"{place}: {error}") from error
        finally:
            self.breaker.leave(alive=alive, trial=trial)


class Breaker:
    """Counts failures in a row, and lets nobody in for `pause_s` seconds after `open_after` of them.

    After the pause one is let in to try; the others are refused until it is out again.
    """

    def __init__(self, *, open_after: int, pause_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._open_after, self._pause_s, self._clock = open_after, pause_s, clock
        self._failures, self._opened_s, self._trying = 0, 0.0, False

    def enter(self, place: str) -> bool:
        """Whether this is a trial after a pause; raises `RewardFailed` for those who are not let in."""
        if self._failures < self._open_after:
            return False
        left_s = self._opened_s + self._pause_s - self._clock()
        if left_s > 0 or self._trying:
            when = f"in {max(left_s, 0):.0f} s" if left_s > 0 else "right now, by another"
            reason = f"not asked after {self._failures} failures in a row, tried again {when}; see why it is down"
            raise Unscored(Fault.INFRASTRUCTURE, f"{place}: {reason}")
        self._trying = True
        return True

    def leave(self, *, alive: bool | None, trial: bool) -> None:
        """Tell how it went, after every `enter` that did not raise; `alive` is None where nothing was learnt."""
        if trial:
            self._trying = False
        if alive is not None:
            self._failures = 0 if alive else self._failures + 1
            self._opened_s = self._clock()


def _question(task: Task, reply: str) -> dict[str, Any]:
    messages = [{"role": message.role, "content": message.content} for message in task.messages]
    asked = {"id": task.id, "domain": task.domain, "messages": messages}
    return {"task": {**asked, "answer": task.answer, "metadata": task.metadata}, "reply": reply}


def _score(found: Any) -> Score:
    """The score in an answer; ValueError where it is anything but that."""
    if not isinstance(found, dict):
        raise ValueError("not an object")
    fields = cast(dict[str, Any], found)
    unknown = sorted(fields.keys() - {"score", "parts"})
    if unknown or "score" not in fields:
        raise ValueError(f"unknown field {unknown[0]!r}" if unknown else "no field 'score'")
    parts = fields.get("parts", {})
    if not isinstance(parts, dict):
        raise ValueError("'parts' is not an object")
    named = {name: _number(name, value) for name, value in cast(dict[str, Any], parts).items()}
    return Score(_number("score", fields["score"]), named)


def _number(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{name!r} is not a finite number")
    return float(value)
