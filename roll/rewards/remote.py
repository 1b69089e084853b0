"""A reward computed by an HTTP service, with a circuit breaker for outages.

    reward: {kind: remote, url: "http://127.0.0.1:9000/score"}

The request is `{"task": {"id", "domain", "messages", "answer", "metadata"}, "response": "..."}`. The answer has
status 200 and is `{"score": 0.5}`, with optional `"parts": {"clarity": 0.25}` and `"spans": [[0, 12, 0.25]]`: start,
end and value of parts of the response, in Unicode characters. Status 429, 500 and above, and answers of another form
are retried; any other status fails this response alone.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any, cast

from roll.chat.client import JsonClient, RequestFailed, RequestRejected
from roll.data.messages import message_entry
from roll.errors import ConfigError
from roll.rewards.result import RewardFault, Unscored
from roll.types import Score, Span, Task


class RemoteReward:
    """A reward from an HTTP service. After `open_after` failures in a row, no request is sent for `pause_s` seconds.

    During the pause every score fails at once, so that a run does not wait for a dead service; then one response is
    sent as a trial. Each worker process has its own circuit breaker.
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
        """`timeout_s` is per try; `api_key_env` names the variable with the key to send as a bearer token."""
        if not (timeout_s > 0 and max_retries >= 0 and open_after > 0 and pause_s >= 0):
            raise ConfigError(
                f"reward 'remote': needs timeout_s and open_after above 0, max_retries and pause_s 0 or more (got "
                f"{timeout_s}, {open_after}, {max_retries}, {pause_s}); change them"
            )
        self.url = url
        self.breaker = CircuitBreaker(open_after=open_after, pause_s=pause_s)
        self._client = JsonClient(url=url, timeout_s=timeout_s, max_retries=max_retries, api_key_env=api_key_env)

    async def score(self, task: Task, response: str) -> Score:
        """The service's score; raises `RewardFailed` if it returns none."""
        where = f"reward 'remote' on task {task.id!r}"
        trial = self.breaker.enter(f"{where}: {self.url}")
        alive: bool | None = None
        try:
            score = await self._client.post(_request_body(task, response), _parse_score)
            alive = True
            return score
        except RequestFailed as error:
            alive = False
            raise Unscored(RewardFault.INFRASTRUCTURE, f"{where}: {error}") from error
        except (RequestRejected, ConfigError) as error:  # a rejection shows that the service is up
            alive = True
            raise Unscored(RewardFault.REWARD, f"{where}: {error}") from error
        finally:
            self.breaker.leave(alive=alive, trial=trial)


class CircuitBreaker:
    """Counts failures in a row, and refuses entry for `pause_s` seconds after `open_after` of them.

    After the pause one caller may enter as a trial; others are refused until it leaves.
    """

    def __init__(self, *, open_after: int, pause_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._open_after, self._pause_s, self._clock = open_after, pause_s, clock
        self._failures, self._opened_s, self._trying = 0, 0.0, False

    def enter(self, where: str) -> bool:
        """Whether this is a trial after a pause; raises `RewardFailed` if entry is refused."""
        if self._failures < self._open_after:
            return False
        left_s = self._opened_s + self._pause_s - self._clock()
        if left_s > 0 or self._trying:
            when = f"in {max(left_s, 0):.0f} s" if left_s > 0 else "right now, by another"
            reason = f"not asked after {self._failures} failures in a row, tried again {when}; see why it is down"
            raise Unscored(RewardFault.INFRASTRUCTURE, f"{where}: {reason}")
        self._trying = True
        return True

    def leave(self, *, alive: bool | None, trial: bool) -> None:
        """Report the outcome after every successful `enter`; `alive` is None if it is unknown, as on cancellation."""
        if trial:
            self._trying = False
        if alive is not None:
            self._failures = 0 if alive else self._failures + 1
            self._opened_s = self._clock()


def _request_body(task: Task, response: str) -> dict[str, Any]:
    messages = [message_entry(message) for message in task.messages]
    fields = {"id": task.id, "domain": task.domain, "messages": messages}
    return {"task": {**fields, "answer": task.answer, "metadata": task.metadata}, "response": response}


def _parse_score(answer: Any) -> Score:
    """The score in an answer; ValueError if its form is wrong."""
    if not isinstance(answer, dict):
        raise ValueError("not an object")
    fields = cast(dict[str, Any], answer)
    unknown = sorted(fields.keys() - {"score", "parts", "comment", "spans"})
    if unknown or "score" not in fields:
        raise ValueError(f"unknown field {unknown[0]!r}" if unknown else "no field 'score'")
    parts = fields.get("parts", {})
    if not isinstance(parts, dict):
        raise ValueError("'parts' is not an object")
    parsed = {name: _parse_number(name, value) for name, value in cast(dict[str, Any], parts).items()}
    comment = fields.get("comment", "")
    if not isinstance(comment, str):
        raise ValueError("'comment' is not text")
    spans = _parse_spans(fields.get("spans", []))
    return Score(_parse_number("score", fields["score"]), parsed, comment, spans)


def _parse_spans(spans: Any) -> tuple[Span, ...]:
    """The spans of an answer; the caller of the reward checks that they are within the response."""
    entries = cast(list[Any], spans) if isinstance(spans, list) else [spans]
    if not all(isinstance(entry, list) and len(cast(list[Any], entry)) == 3 for entry in entries):
        raise ValueError("'spans' is not a list of [start, end, value]")
    return tuple(Span(start, end, _parse_number("spans", value)) for start, end, value in entries)


def _parse_number(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{name!r} is not a finite number")
    return float(value)
