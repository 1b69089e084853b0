"""One attempt as the server sees it: requests come in, are matched with what was said before, and sampled.

| call | waits for | woken by |
|---|---|---|
| `ask` | the whole reply; a request asked twice waits for the same one | the router, or `close` |
| `close` | nothing; what is being sampled is aborted | |
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from roll.engines.base import Output, Request
from roll.engines.native.sampling import noise_key
from roll.errors import ConfigError, EngineFailed
from roll.proxy.completions import Answer, answer_of
from roll.proxy.message_tree import Conversations, Place, Spot, turn_of
from roll.proxy.requests import Asked, Refused, check_sampling, said_by_policy
from roll.rollout.episode.runner import Attempt, EpisodeRunner
from roll.serving.pending import Sampled
from roll.types import Finish

if TYPE_CHECKING:
    from roll.types import Ints

Hear: TypeAlias = "Callable[[Ints], None]"
"""Is given every part of a reply while it is sampled."""


@dataclass(slots=True, eq=False)
class _UnderWay:
    """A reply that was asked for."""

    sampling: asyncio.Task[Answer]
    hear: list[Hear]
    num_waiting: int = 0
    """Clients that want it."""


class Session:
    """What an agent asks in one attempt, and what it was answered."""

    def __init__(self, id: str, runner: EpisodeRunner, attempt: Attempt, *, strict: bool = True) -> None:
        """With `strict`, requests to be sampled otherwise than the run does are refused."""
        self.id, self.runner, self.attempt = id, runner, attempt
        self.limits = runner.limits_of.get(attempt.task.domain, runner.limits)
        self.name = "/".join(
            map(str, (attempt.purpose, attempt.task.domain, attempt.task.id, attempt.number, attempt.sibling))
        )
        """For people: which attempt this is."""
        self.template = runner.template
        self.router = runner.router
        self.conversations = Conversations(
            runner.template, runner.cuts, place=f"task {attempt.task.id!r}", per_turn=self.limits.per_turn
        )
        self.cut = ""
        """Why the attempt could not go on as the agent wanted, if so."""
        self.too_long = False
        """Whether the last reply was cut by the run's own limit."""
        self.failed = ""
        """What the engine last gave up with, if it did."""
        self.closed = False
        self._strict = strict
        self._num_asked = 0
        """Replies that were to be sampled so far."""
        self._past = attempt.past
        self._under_way: set[asyncio.Task[Answer]] = set()
        self.router.waits.count("environments", 1)

    @property
    def num_sampled(self) -> int:
        """Tokens of whole replies."""
        return sum(len(turn.sampled) for turn in self.conversations.replies)

    async def ask(self, asked: Asked, hear: Hear | None = None) -> Answer:
        """The reply to a request; the same again to one that was asked before. Cancelling this aborts it.

        Raises `Refused`.
        """
        if self._strict:
            check_sampling(asked, self.limits.sampling)
        path = self.conversations.find(asked)
        found: _UnderWay | None = path[-1].asked.get(asked.key)
        if found is None:
            found = path[-1].asked[asked.key] = self._begin(path, asked)
        if hear is not None:
            found.hear.append(hear)
        found.num_waiting += 1
        try:
            await asyncio.wait([found.sampling])
        finally:
            found.num_waiting -= 1
            if not found.sampling.done() and not found.num_waiting:
                del path[-1].asked[asked.key]
                found.sampling.cancel()
        if found.sampling.cancelled():
            raise Refused(404, f"session {self.id!r} has ended; its attempt is over", code="session_not_found")
        if (error := found.sampling.exception()) is not None:
            path[-1].asked.pop(asked.key, None)  # whoever asks again may have more luck
            raise _told(error)
        return found.sampling.result()

    def close(self) -> None:
        """Nothing more is sampled."""
        if self.closed:
            return
        self.closed = True
        if not self._under_way:
            self.router.waits.count("environments", -1)
        for sampling in list(self._under_way):
            sampling.cancel()

    def _begin(self, path: list[Spot], asked: Asked) -> _UnderWay:
        if self.closed:
            raise Refused(404, f"session {self.id!r} has ended; its attempt is over", code="session_not_found")
        if len(self.conversations.replies) + len(self._under_way) >= self.limits.max_turns:
            self.cut = f"{self.limits.max_turns} turns are over"
            raise Refused(400, f"{self.cut}: an attempt has no more (rollout.max_turns); end it", code="turns_over")
        try:
            place = self.conversations.place(path, asked)
        except ConfigError as error:
            raise Refused(400, str(error), param="messages") from None
        if self._most(place) <= 0:
            self.conversations.leave(place)
            self.cut = "the context is full"
            raise Refused(
                400,
                f"the messages have {len(place.context)} tokens and the context has {self.limits.context}, so there is "
                "no room for a reply (rollout.context); send less",
                param="messages",
                code="context_length_exceeded",
            )
        number, self._num_asked = self._num_asked, self._num_asked + 1
        hear: list[Hear] = []
        sampling = asyncio.create_task(self._sample(asked, place, number, hear))

        def ended(_: object) -> None:
            self._under_way.discard(sampling)
            if sampling.cancelled() or sampling.exception() is not None:
                self.conversations.leave(place)
            if not self._under_way and not self.closed:
                self.router.waits.count("environments", 1)

        sampling.add_done_callback(ended)
        if not self._under_way:
            self.router.waits.count("environments", -1)
        self._under_way.add(sampling)
        return _UnderWay(sampling, hear)

    async def _sample(self, asked: Asked, place: Place, number: int, hear: list[Hear]) -> Answer:
        most, scribe = self._most(place), self.attempt.scribe
        so_far = self._so_far(number, place.checksum)
        request = self._request(asked, place, number, most if asked.most is None else min(most, asked.most))

        def note(output: Output) -> None:
            if scribe is not None:
                scribe.part(number, place.checksum, output)
            for each in hear:
                each(output.ids)

        began = time.perf_counter()
        try:
            sampled = await self.router.sample(request, order=self.attempt.order, so_far=so_far, note=note)
        except EngineFailed as error:
            self.failed = str(error)
            raise
        answer = answer_of(f"{self.id}-{number}", asked, sampled, self.template, len(place.context))
        turn = turn_of(place, sampled, time.perf_counter() - began)
        self.conversations.add(place, said_by_policy(answer.content, answer.calls), answer.text, turn)
        self.too_long = sampled.finish is Finish.LENGTH and len(sampled.ids) == most
        return answer

    def _most(self, place: Place) -> int:
        """Tokens that the run allows a reply there."""
        return min(self.limits.max_new_tokens, self.limits.context - len(place.context))

    def _so_far(self, number: int, context: int) -> Sampled | None:
        """What an earlier process has of this reply, as long as the agent asks what it asked then."""
        if self._past[number : number + 1] and self._past[number].context != context:
            self._past = self._past[:number]
            if self.attempt.scribe is not None:
                self.attempt.scribe.diverged(number)
        return self._past[number].so_far if number < len(self._past) else None

    def _request(self, asked: Asked, place: Place, number: int, most: int) -> Request:
        """Its noise depends on what it answers to and not on when it was asked: agents may ask several at once."""
        attempt, seed = self.attempt, "" if asked.seed is None else asked.seed
        parts = (attempt.purpose, attempt.task.domain, attempt.task.id, attempt.number, attempt.sibling)
        return Request(
            id=f"{self.name}/{self.id}-{number}",
            ids=place.context,
            max_new_tokens=most,
            sampling=self.limits.sampling,
            stop=self.limits.stop,
            key=noise_key(attempt.seed, *parts, f"{place.checksum:08x}/{seed}"),
            family=f"{attempt.task.domain}/{attempt.task.id}",
        )


def _told(error: BaseException) -> Refused:
    """Why there is no reply, for the client."""
    if isinstance(error, EngineFailed):
        return Refused(503, f"no reply came ({error}); ask again", code="engine_failed")
    return Refused(500, f"no reply came ({type(error).__name__}: {error}); see the run's log", code="internal")
