"""One attempt at a task: environment and policy take turns until one of them is done. Token ids in, token ids out.

What was sampled is never encoded again; only what the environment newly says is. A template that would rewrite what
already stands begins a new segment.
"""

from __future__ import annotations

import asyncio
import time
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Protocol
from urllib.parse import quote

import numpy as np

from roll.data.templates import Template
from roll.engines.base import Output, Request
from roll.engines.sampling import noise_key
from roll.envs.base import Env
from roll.envs.base import Reply as EnvReply
from roll.errors import EngineFailed, EnvFailed, RolloutError, blame
from roll.rollout.environments import within
from roll.rollout.pending import Sampled
from roll.rollout.router import Router
from roll.rollout.waits import Waits
from roll.types import Finish, Message, Sampling, Segment, Status, Task, Trajectory, Turn, record

if TYPE_CHECKING:
    from roll.types import Ints

_STATUS_OF: dict[type[RolloutError], Status] = {EnvFailed: Status.ENV_FAILED, EngineFailed: Status.ENGINE_FAILED}


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Where an episode ends, whatever its environment says, and how its tokens are drawn."""

    sampling: Sampling
    context: int
    """Most tokens of one segment."""
    max_new_tokens: int
    max_turns: int
    stop: frozenset[int]
    """Ids that end a reply."""
    env_s: float | None = None
    """Most seconds that an environment may take to answer; None: for ever."""


class Scribe(Protocol):
    """Writes down what an attempt has before it ends, so that a restart of the run does not lose it."""

    def part(self, turn: int, context: int, output: Output) -> None:
        """This came of the reply to a context with that checksum."""
        ...

    def diverged(self, turn: int) -> None:
        """The environment has said something else than before the restart: what was sampled from here on is void."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """What an earlier process has of one turn."""

    context: int
    """Checksum of the ids it was sampled after."""
    so_far: Sampled


@record
class Attempt:
    """Which attempt this is; together with the turn it decides the noise of every token."""

    task: Task
    sibling: int
    number: int
    """How often this task was attempted before, over epochs and retries."""
    purpose: str
    """Keeps the noise of training and validation apart; names requests together with what follows."""
    seed: int
    order: int = 0
    """Where generators are busy, requests of lower ones go first."""
    past: tuple[Said, ...] = ()
    """Turns that were sampled before a restart: they are played again without sampling, as long as they fit."""
    scribe: Scribe | None = None


def checksum(ids: Sequence[int]) -> int:
    """Of a context, to know it again."""
    return zlib.crc32(np.array(ids, np.int32).tobytes())


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeRunner:
    """Plays attempts through one router."""

    router: Router
    template: Template
    limits: Limits
    limits_of: Mapping[str, Limits] = field(default_factory=dict[str, Limits])
    """By domain, for those that have limits of their own."""

    async def run(self, attempt: Attempt, env: Env) -> tuple[Trajectory, str]:
        """The whole attempt, not yet scored, and its last reply; where something gave up, what there is and why."""
        script = _Script(self.template, attempt)
        try:
            try:
                await self._play(script, env)
            finally:
                with blame(EnvFailed, f"environment of {script.place}, closing"):
                    await env.close()
        except asyncio.CancelledError:
            self.router.tally.aborted += script.num_sampled
            raise
        except RolloutError as error:
            return script.trajectory(_STATUS_OF[type(error)], reason=str(error)), script.reply
        return script.trajectory(Status.TRUNCATED if script.cut else Status.FINISHED, reason=script.cut), script.reply

    async def _play(self, script: _Script, env: Env) -> None:
        past, waits = script.attempt.past, self.router.waits
        limits = self.limits_of.get(script.attempt.task.domain, self.limits)
        with _Asking(waits, f"environment of {script.place}, starting"):
            script.open(await within(limits.env_s, env.start()))
        for number in range(limits.max_turns):
            room = min(limits.max_new_tokens, limits.context - len(script.ids))
            if room <= 0:
                script.cut = "the context is full"
                return
            began = time.perf_counter()
            if past[number : number + 1] and past[number].context != script.context:
                past = past[:number]
                if script.attempt.scribe is not None:
                    script.attempt.scribe.diverged(number)
            so_far = past[number].so_far if number < len(past) else None
            sampled = await self._sample(script, number, limits, room, so_far)
            answered = time.perf_counter()
            text = self.template.decode(sampled.ids)
            with _Asking(waits, f"environment of {script.place}, turn {number}"):
                reply = await within(limits.env_s, env.step(text))
            script.add(text, sampled, reply, (answered - began, time.perf_counter() - answered))
            if reply.done:
                script.cut = "the reply is too long" if sampled.finish is Finish.LENGTH else ""
                return
            with blame(EnvFailed, f"environment of {script.place}, turn {number}"):
                script.hear(reply.messages)
        script.cut = f"{limits.max_turns} turns are over"

    async def _sample(self, script: _Script, turn: int, limits: Limits, room: int, so_far: Sampled | None) -> Sampled:
        request, scribe = _request(script.attempt, turn, script.ids, limits, room), script.attempt.scribe
        order = script.attempt.order
        if scribe is None:
            return await self.router.sample(request, order=order, so_far=so_far)
        context = script.context
        return await self.router.sample(
            request, order=order, so_far=so_far, note=lambda output: scribe.part(turn, context, output)
        )


class _Asking(blame):
    """An environment is at work: the attempt waits for it, and what it raises is its failure."""

    __slots__ = ("_waits",)

    def __init__(self, waits: Waits, what: str) -> None:
        super().__init__(EnvFailed, what)
        self._waits = waits

    def __enter__(self) -> None:
        self._waits.count("environments", 1)

    def __exit__(self, kind: object, cause: BaseException | None, trace: object) -> None:
        self._waits.count("environments", -1)
        super().__exit__(kind, cause, trace)


def _request(attempt: Attempt, turn: int, ids: Sequence[int], limits: Limits, room: int) -> Request:
    parts = (attempt.purpose, attempt.task.domain, attempt.task.id, attempt.number, attempt.sibling, turn)
    return Request(
        id="/".join(map(_name, parts)),
        ids=tuple(ids),
        max_new_tokens=room,
        sampling=limits.sampling,
        stop=limits.stop,
        key=noise_key(attempt.seed, *parts),
        family="/".join((attempt.task.domain, attempt.task.id)),
    )


@lru_cache(maxsize=4096)  # siblings share most of theirs
def _name(part: str | int) -> str:
    """As it stands in a request's id: a name may hold a slash itself."""
    text = str(part)
    return text if text.isalnum() else quote(text, safe="")


class _Script:
    """What was said so far: as messages for the template, as ids for the engine, as turns for the record."""

    def __init__(self, template: Template, attempt: Attempt) -> None:
        self.attempt, self.place = attempt, f"task {attempt.task.id!r}"
        self.cut = ""
        """Why the attempt ended before its end, if it did."""
        self.ids: list[int] = []
        """Of the segment, up to the last thing heard."""
        self.context = 0
        """Their checksum."""
        self.reply = ""
        """The text of the last one."""
        self._template = template
        self._messages: tuple[Message, ...] = ()
        self._heard: Ints = np.zeros(0, np.int32)
        self._turns: list[Turn] = []
        self._segments: list[Segment] = []
        self._metrics: dict[str, float] = {}
        self._state = "start"  # siblings attempt one task, so they begin in the same state

    @property
    def num_sampled(self) -> int:
        """Tokens of whole turns."""
        segments = [*self._segments, Segment(turns=tuple(self._turns))]
        return sum(len(turn.sampled) for segment in segments for turn in segment.turns)

    def open(self, messages: Sequence[Message]) -> None:
        """Begin a segment with all that was said."""
        self._messages = tuple(messages)
        self._heard = self._template.open(messages, place=self.place)
        self.ids = self._heard.tolist()
        self.context = zlib.crc32(self._heard.data)

    def add(self, text: str, sampled: Sampled, reply: EnvReply, spent_s: tuple[float, float]) -> None:
        """One turn is over."""
        self._turns.append(
            Turn(
                observation=self._heard,
                sampled=sampled.ids,
                sampler_logprobs=sampled.logprobs,
                versions=sampled.versions,
                finish=sampled.finish,
                reward=reply.reward,
                generated_s=spent_s[0],
                waited_s=spent_s[1],
                state=self._state,
            )
        )
        self._state = reply.state
        self._metrics = reply.metrics
        self.reply = text

    def hear(self, new: Sequence[Message]) -> None:
        """Append what the environment said, or open a new segment where the template rewrites what stood."""
        said = (*self._messages, Message("assistant", self.reply))
        sampled = self._turns[-1].sampled
        last = int(sampled[-1]) if len(sampled) else self.ids[-1]
        heard = self._template.extend(said, new, last=last, place=self.place)
        if heard is None:
            self._close_segment()
            self.open((*said, *new))
            return
        self._messages = (*said, *new)
        self._heard = heard
        self.ids += [*sampled.tolist(), *heard.tolist()]
        self.context = zlib.crc32(heard.data, zlib.crc32(sampled.data, self.context))

    def trajectory(self, status: Status, *, reason: str) -> Trajectory:
        """The record of it all."""
        self._close_segment()
        return Trajectory(
            task=self.attempt.task,
            sibling=self.attempt.sibling,
            segments=tuple(self._segments),
            status=status,
            reason=reason,
            metrics=self._metrics,
        )

    def _close_segment(self) -> None:
        if self._turns:
            self._segments.append(Segment(turns=tuple(self._turns)))
            self._turns = []
