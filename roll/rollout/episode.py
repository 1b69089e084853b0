"""One attempt at a task: environment and policy take turns until one of them is done. Token ids in, token ids out.

What was sampled is never encoded again; only what the environment newly says is. A template that would rewrite what
already stands begins a new segment.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import quote

import numpy as np

from roll.data.templates import Template
from roll.engines.base import Request
from roll.engines.sampling import noise_key
from roll.envs.base import Env
from roll.envs.base import Reply as EnvReply
from roll.errors import EngineFailed, EnvFailed, RolloutError, blame
from roll.rollout.router import Router, Sampled
from roll.types import Finish, Message, Sampling, Segment, Status, Task, Trajectory, Turn

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """Which attempt this is; together with the turn it decides the noise of every token."""

    task: Task
    sibling: int
    number: int
    """How often this task was attempted before, over epochs and retries."""
    purpose: str
    """Keeps the noise of training and validation apart; names requests together with what follows."""
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeRunner:
    """Plays attempts through one router."""

    router: Router
    template: Template
    limits: Limits

    async def run(self, attempt: Attempt, env: Env) -> Trajectory:
        """The whole attempt, not yet scored; where environment or engine gave up, what there is of it and why."""
        script = _Script(self.template, attempt)
        try:
            try:
                await self._play(script, env)
            finally:
                with blame(EnvFailed, f"environment of {script.place}, closing"):
                    await env.close()
        except RolloutError as error:
            return script.trajectory(_STATUS_OF[type(error)], reason=str(error))
        return script.trajectory(Status.TRUNCATED if script.cut else Status.FINISHED, reason=script.cut)

    async def _play(self, script: _Script, env: Env) -> None:
        with blame(EnvFailed, f"environment of {script.place}, starting"):
            script.open(await env.start())
        for number in range(self.limits.max_turns):
            room = min(self.limits.max_new_tokens, self.limits.context - len(script.ids))
            if room <= 0:
                script.cut = "the context is full"
                return
            began = time.perf_counter()
            sampled = await self.router.sample(self._request(script.attempt, number, script.ids, room))
            answered = time.perf_counter()
            text = self.template.decode(sampled.ids)
            with blame(EnvFailed, f"environment of {script.place}, turn {number}"):
                reply = await env.step(text)
            script.add(text, sampled, reply, (answered - began, time.perf_counter() - answered))
            if reply.done:
                script.cut = "the reply is too long" if sampled.finish is Finish.LENGTH else ""
                return
            script.hear(reply.messages)
        script.cut = f"{self.limits.max_turns} turns are over"

    def _request(self, attempt: Attempt, turn: int, ids: Sequence[int], room: int) -> Request:
        parts = (attempt.purpose, attempt.task.domain, attempt.task.id, attempt.number, attempt.sibling, turn)
        return Request(
            id="/".join(quote(str(part), safe="") for part in parts),  # a name may hold a slash itself
            ids=tuple(ids),
            max_new_tokens=room,
            sampling=self.limits.sampling,
            stop=self.limits.stop,
            key=noise_key(attempt.seed, *parts),
        )


class _Script:
    """What was said so far: as messages for the template, as ids for the engine, as turns for the record."""

    def __init__(self, template: Template, attempt: Attempt) -> None:
        self.attempt, self.place = attempt, f"task {attempt.task.id!r}"
        self.cut = ""
        """Why the attempt ended before its end, if it did."""
        self.ids: list[int] = []
        self._template = template
        self._messages: tuple[Message, ...] = ()
        self._heard: Ints = np.zeros(0, np.int32)
        self._turns: list[Turn] = []
        self._segments: list[Segment] = []
        self._metrics: dict[str, float] = {}
        self._state = "start"  # siblings attempt one task, so they begin in the same state

    def open(self, messages: Sequence[Message]) -> None:
        """Begin a segment with all that was said."""
        self._messages = tuple(messages)
        self._heard = self._template.open(messages, place=self.place)
        self.ids = self._heard.tolist()

    def add(self, text: str, sampled: Sampled, reply: EnvReply, spent_s: tuple[float, float]) -> None:
        """One turn is over."""
        self._turns.append(
            Turn(
                observation=self._heard,
                sampled=np.array(sampled.ids, np.int32),
                sampler_logprobs=np.array(sampled.logprobs, np.float32),
                versions=np.array(sampled.versions, np.int32),
                finish=sampled.finish,
                reward=reply.reward,
                generated_s=spent_s[0],
                waited_s=spent_s[1],
                state=self._state,
            )
        )
        self._state = reply.state
        self.ids += sampled.ids
        self._metrics = reply.metrics
        self._messages = (*self._messages, Message("assistant", text))

    def hear(self, new: Sequence[Message]) -> None:
        """Append what the environment said, or open a new segment where the template rewrites what stood."""
        heard = self._template.extend(self._messages, new, last=self.ids[-1], place=self.place)
        if heard is None:
            self._close_segment()
            self.open((*self._messages, *new))
            return
        self._messages = (*self._messages, *new)
        self._heard = heard
        self.ids += heard.tolist()

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
