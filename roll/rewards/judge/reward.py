"""A language model as judge: the median of several verdicts, parsed strictly and cached.

    reward:
      kind: judge
      chat: {url: "http://127.0.0.1:8000/v1", model: my-judge, api_key_env: JUDGE_KEY}
      scale: [1, 10]
      rubric: Is the reply polite and correct?
      judges: 3
      cache: runs/verdicts.db

An answer without a verdict on the scale is retried; if no retry has one, the reward fails and there is no score. A
judge takes seconds: with reward workers, raise `rewards.timeout_s`; with `rewards.workers` at 0, all responses of a
step are judged concurrently.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import secrets
import sqlite3
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from roll.chat.base import Chat
from roll.chat.client import RequestRejected
from roll.chat.openai import build_chat
from roll.errors import ConfigError, EngineFailed
from roll.rewards.base import MAX_COMMENT, cut_comment
from roll.rewards.judge.prompt import DEFAULT_RUBRIC, build_prompt, parse_reasons, parse_scale, parse_verdict
from roll.rewards.result import RewardFault, Unscored
from roll.types import Score, Task

_MAX_TRIES = 3
"""Answers requested until one holds a verdict."""
_RETRY_TEMPERATURE = 0.7
"""Minimum after an answer without a verdict: a greedy judge would repeat itself."""
_EXCERPT = 120
_LOCK_TIMEOUT_S = 30.0
"""Longest wait for another process's write."""


class Judge:
    """The median verdict of all judges, from 0 for the worst on the scale to 1 for the best.

    On a scale of two words the median is the majority. The part `agreement` is 1 minus the mean distance between a
    verdict and the score; with two words, that is the share of judges who agree with the majority. The part `verdicts`
    is the number of verdicts. The comment has the verdict and the reasons of every judge. Only the text after a
    response's thinking is judged.
    """

    def __init__(
        self,
        *,
        chat: Any,
        rubric: str = DEFAULT_RUBRIC,
        scale: Any = "yes/no",
        judges: int = 1,
        temperature: float | None = None,
        cache: str | None = None,
    ) -> None:
        """`chat` is a section, a `Chat`, or a list of them; each gives `judges` verdicts.

        `temperature` defaults to 0 with one verdict per chat, and to 1 with several.
        """
        self.chats = _build_chats(chat)
        self.rubric, self.scale, self.judges = rubric, parse_scale(scale), judges
        self.temperature = float(judges > 1) if temperature is None else temperature
        self.cache = VerdictCache(cache)
        if judges < 1 or (self.scale.words and len(self.chats) * judges % 2 == 0):
            raise ConfigError(
                f"reward 'judge': {len(self.chats)} chats asked {judges} times have no majority; "
                "make it an odd number of verdicts"
            )
        if self.temperature == 0 and judges > 1:
            raise ConfigError(
                f"reward 'judge': {judges} judges at temperature 0 are one; raise temperature, or set judges to 1"
            )

    async def start(self) -> None:
        self.cache.open()

    async def stop(self) -> None:
        self.cache.close()

    async def score(self, task: Task, response: str) -> Score:
        """The median verdict; raises `RewardFailed` if a judge returns none."""
        judgements = [
            self._judge_cached(chat, number, task, response) for chat in self.chats for number in range(self.judges)
        ]
        results = await asyncio.gather(*judgements, return_exceptions=True)  # so that none outlives a failure
        values: list[float] = []
        comments: list[str] = []
        for result in results:
            if isinstance(result, BaseException):
                raise result
            values.append(result[0])
            comments.append(result[1])
        median = statistics.median(values)
        agreement = 1.0 - statistics.fmean(abs(value - median) for value in values)
        return Score(median, {"agreement": agreement, "verdicts": float(len(values))}, "\n\n".join(comments))

    async def _judge_cached(self, chat: Chat, number: int, task: Task, response: str) -> tuple[float, str]:
        """Value and comment of one judge, from the cache if they are there."""
        # The key leaves out the fence, which differs between calls.
        messages = build_prompt(task, response, rubric=self.rubric, scale=self.scale, fence="")
        parts = [chat.name, self.temperature, number, [(message.role, message.content) for message in messages]]
        key = hashlib.sha256(json.dumps(parts).encode("ascii")).hexdigest()
        judgement = self.cache.get(key) or ""
        value = self.scale.value(judgement.partition("\n")[0])
        if value is None:
            judgement, value = await self._judge(chat, number, task, response)
            self.cache.put(key, judgement)
        return value, judgement

    async def _judge(self, chat: Chat, number: int, task: Task, response: str) -> tuple[str, float]:
        """One judge's verdict with its reasons on the next lines, and the verdict's value."""
        where = f"reward 'judge' on task {task.id!r}: {chat.name!r}"
        answer = ""
        for tries in range(_MAX_TRIES):
            messages = build_prompt(task, response, rubric=self.rubric, scale=self.scale, fence=secrets.token_hex(8))
            temperature = self.temperature if tries == 0 else max(self.temperature, _RETRY_TEMPERATURE)
            try:
                answer = await chat.complete(messages, temperature=temperature, seed=number + tries * self.judges)
            except (RequestRejected, ConfigError) as error:  # a retry would not help
                raise Unscored(RewardFault.REWARD, f"{where}: {error}") from error
            except EngineFailed as error:
                raise Unscored(RewardFault.INFRASTRUCTURE, f"{where}: {error}") from error
            verdict = parse_verdict(answer)
            value = None if verdict is None else self.scale.value(verdict)
            if verdict is not None and value is not None:
                num_verdicts = len(self.chats) * self.judges  # all of them share the space
                return cut_comment(f"{verdict}\n{parse_reasons(answer)}", MAX_COMMENT // num_verdicts), value
        ending = " ".join(answer.split())[-_EXCERPT:]
        raise Unscored(
            RewardFault.REWARD,
            f"{where}: no verdict in {_MAX_TRIES} answers (the last ends {ending!r}); choose a judge that keeps to the "
            "form, or raise the chat's max_tokens",
        )


def _build_chats(section: Any) -> list[Chat]:
    entries = list(cast(Sequence[Any], section)) if isinstance(section, list | tuple) else [section]
    if not entries:
        raise ConfigError("reward 'judge': chat is an empty list; write {url: ..., model: ...}")
    names = ["chat"] if len(entries) == 1 else [f"chat.{index}" for index in range(len(entries))]
    return [build_chat(entry, f"reward 'judge': {name}") for name, entry in zip(names, entries, strict=True)]


class VerdictCache:
    """Verdicts by key, in a SQLite file that several processes may share; without a path, in a temporary file.

    A verdict is one line; lines after it hold the reasons.
    """

    def __init__(self, path: str | None = None) -> None:
        self._path = path or ""
        self._file: sqlite3.Connection | None = None

    def open(self) -> sqlite3.Connection:
        """Open the file unless it is open. `get` and `put` do so when needed."""
        if self._file is not None:
            return self._file
        try:
            Path(self._path).parent.mkdir(parents=True, exist_ok=True)
            self._file = sqlite3.connect(
                self._path, timeout=_LOCK_TIMEOUT_S, isolation_level=None, check_same_thread=False
            )
            self._file.execute("PRAGMA journal_mode = WAL")
            self._file.execute("PRAGMA synchronous = NORMAL")
            self._file.execute("CREATE TABLE IF NOT EXISTS verdicts (key TEXT PRIMARY KEY, verdict TEXT) WITHOUT ROWID")
            return self._file
        except (sqlite3.DatabaseError, OSError) as error:
            self.close()
            raise ConfigError(
                f"reward 'judge': cache {self._path!r} cannot be opened ({error}); give the path of a separate file"
            ) from error

    def get(self, key: str) -> str | None:
        row = self.open().execute("SELECT verdict FROM verdicts WHERE key = ?", (key,)).fetchone()
        return None if row is None else row[0]

    def put(self, key: str, verdict: str) -> None:
        self.open().execute("INSERT OR REPLACE INTO verdicts VALUES (?, ?)", (key, verdict))

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
