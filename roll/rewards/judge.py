"""A language model as judge: asked as often as configured, read strictly, and remembered.

    reward:
      kind: judge
      chat: {url: "http://127.0.0.1:8000/v1", model: my-judge, api_key_env: JUDGE_KEY}
      scale: [1, 10]
      rubric: Is the reply polite and correct?
      judges: 3
      cache: runs/verdicts.db

An answer without a verdict on the scale is asked for anew; where none comes, the reward has failed and nothing is
scored. A judge takes seconds: raise `rewards.timeout_s` where rewards have workers, or leave `rewards.workers` at 0,
where all replies of a step are judged at once.
"""

from __future__ import annotations

import asyncio
import secrets
import statistics
from collections.abc import Sequence
from typing import Any, cast

from roll.chat.base import Chat
from roll.chat.http import Refused
from roll.chat.openai import chat_of
from roll.errors import ConfigError, EngineFailed
from roll.rewards.judging import DEFAULT_RUBRIC, prompt, scale_of, verdict_in
from roll.rewards.judging_cache import VerdictCache, key_of
from roll.rewards.outcome import Fault, Unscored
from roll.types import Score, Task

_TRIES = 3
"""Answers that are asked for until one holds a verdict."""
_LATER_TEMPERATURE = 0.7
"""At least, after an answer without a verdict: a greedy judge would say the same again."""
_EXCERPT = 120


class Judge:
    """A reward by verdict, from 0 for the worst on the scale to 1 for the best: the median of all judges.

    On a scale of two words the median is the majority. The part `agreement` is 1 less the mean distance between a
    verdict and the score: the share of those who agree where there are two words. The part `verdicts` is how many the
    score was made of. Of a reply only what follows its thinking is judged.
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
        """`chat` is a section, a `Chat`, or a list of them; each is asked `judges` times.

        `temperature` is 0 where a chat is asked once, and 1 where it is asked several times, unless given.
        """
        self.chats = _chats(chat)
        self.rubric, self.scale, self.judges = rubric, scale_of(scale), judges
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

    async def score(self, task: Task, reply: str) -> Score:
        """The median verdict; raises `RewardFailed` where a judge gives none."""
        asked = [self._judged(chat, number, task, reply) for chat in self.chats for number in range(self.judges)]
        found = await asyncio.gather(*asked, return_exceptions=True)  # so that none goes on behind a failure
        values: list[float] = []
        for value in found:
            if isinstance(value, BaseException):
                raise value
            values.append(value)
        median = statistics.median(values)
        agreement = 1.0 - statistics.fmean(abs(value - median) for value in values)
        return Score(median, {"agreement": agreement, "verdicts": float(len(values))})

    async def _judged(self, chat: Chat, number: int, task: Task, reply: str) -> float:
        """The verdict of one judge, from the cache if it was given before."""
        # The fence differs from call to call; what is asked is the same.
        asked = prompt(task, reply, rubric=self.rubric, scale=self.scale, fence="")
        key = key_of(chat.name, self.temperature, number, [(message.role, message.content) for message in asked])
        known = self.cache.get(key)
        value = None if known is None else self.scale.value(known)
        if value is not None:
            return value
        verdict, value = await self._asked(chat, number, task, reply)
        self.cache.put(key, verdict)
        return value

    async def _asked(self, chat: Chat, number: int, task: Task, reply: str) -> tuple[str, float]:
        place = f"reward 'judge' on task {task.id!r}: {chat.name!r}"
        answer = ""
        for tried in range(_TRIES):
            messages = prompt(task, reply, rubric=self.rubric, scale=self.scale, fence=secrets.token_hex(8))
            temperature = self.temperature if tried == 0 else max(self.temperature, _LATER_TEMPERATURE)
            try:
                answer = await chat.complete(messages, temperature=temperature, seed=number + tried * self.judges)
            except (Refused, ConfigError) as error:  # asking again would not help
                raise Unscored(Fault.REWARD, f"{place}: {error}") from error
            except EngineFailed as error:
                raise Unscored(Fault.INFRASTRUCTURE, f"{place}: {error}") from error
            verdict = verdict_in(answer)
            value = None if verdict is None else self.scale.value(verdict)
            if verdict is not None and value is not None:
                return verdict, value
        ending = " ".join(answer.split())[-_EXCERPT:]
        raise Unscored(
            Fault.REWARD,
            f"{place}: no verdict in {_TRIES} answers (the last ends {ending!r}); choose a judge that keeps to the "
            "form, or raise the chat's max_tokens",
        )


def _chats(given: Any) -> list[Chat]:
    entries = list(cast(Sequence[Any], given)) if isinstance(given, list | tuple) else [given]
    if not entries:
        raise ConfigError("reward 'judge': chat is an empty list; write {url: ..., model: ...}")
    names = ["chat"] if len(entries) == 1 else [f"chat.{index}" for index in range(len(entries))]
    return [chat_of(entry, f"reward 'judge': {name}") for name, entry in zip(names, entries, strict=True)]
