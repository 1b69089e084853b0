"""One attempt at a task: environment and agents take turns until one of them is done. Token ids in, token ids out.

What was sampled is never encoded again; only what the environment newly says is. A template that would rewrite what
already stands begins a new segment.
"""

from __future__ import annotations

import asyncio
import time
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import NamedTuple, Protocol
from urllib.parse import quote

import numpy as np

from roll.data.templates import Template
from roll.engines.base import Output, Request
from roll.engines.native.sampling import NoiseKeys
from roll.envs.base import Env
from roll.errors import ConfigError, EngineFailed, EnvFailed, RolloutError, blame
from roll.rollout.environments import answering, within
from roll.rollout.episode.agents import Cast
from roll.rollout.episode.conversation import Cuts, Script
from roll.serving.idle import Wait
from roll.serving.pending import Sampled
from roll.serving.router import Router
from roll.types import Finish, Sampling, Status, Task, Trajectory, record

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
    drop_oldest: bool = False
    """Whether an attempt without room for a whole reply goes on without its oldest turns, instead of ending there."""
    per_turn: bool = False
    """Whether every turn is a segment of its own."""


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
    router_of: Mapping[str, Router] = field(default_factory=dict[str, Router])
    """By agent, where agents have policies of their own; empty: all have the same."""
    cuts: Cuts = field(default_factory=Cuts)
    """Of all attempts it plays."""

    def ending(self) -> None:
        """The run comes to its end: what that breaks off goes on with the next process."""
        for router in (self.router, *self.router_of.values()):
            router.ending = True

    async def run(self, attempt: Attempt, env: Env) -> tuple[Trajectory, str]:
        """The whole attempt, not yet scored, and its last reply; where something gave up, what there is and why."""
        limits = self.limits_of.get(attempt.task.domain, self.limits)
        place = f"task {attempt.task.id!r}"

        def script(agent: str) -> Script:
            return Script(self.template, self.cuts, place=place, per_turn=limits.per_turn, agent=agent)

        cast = Cast(script, place=place)
        try:
            try:
                await self._play(cast, attempt, limits, env)
            finally:
                with blame(EnvFailed, "environment of ", place, ", closing"):
                    await env.close()
        except asyncio.CancelledError:
            self.router.broken_off(cast.num_sampled)
            raise
        except RolloutError as error:
            status, reason = _STATUS_OF[type(error)], str(error)
        else:
            status, reason = Status.TRUNCATED if cast.cut else Status.FINISHED, cast.cut
        return cast.trajectory(attempt.task, attempt.sibling, status, reason=reason), cast.reply

    async def _play(self, cast: Cast, attempt: Attempt, limits: Limits, env: Env) -> None:
        past, wait, scribe = attempt.past, self.router.waits.on("environments"), attempt.scribe
        with _Asking(wait, "environment of ", cast.place, ", starting"):
            opening = await within(limits.env_s, env.start())
            cast.open(opening, getattr(env, "tools", ()), getattr(env, "agents", ()))
        form = self.template.tool_form if cast.tools else None
        for number in range(limits.max_turns):
            script = cast.script
            room = min(limits.max_new_tokens, limits.context - len(script.ids))
            if room <= 0:
                cast.cut = "the context is full"
                return
            began = time.perf_counter()
            if number < len(past) and past[number].context != script.context:
                past = past[:number]
                if scribe is not None:
                    scribe.diverged(number)
            so_far = past[number].so_far if number < len(past) else None
            request = _request(attempt, number, script.ids, limits, room)
            note = None if scribe is None else partial(scribe.part, number, script.context)
            router = self._router(script.agent)
            sampled = await router.sample(request, order=attempt.order, so_far=so_far, note=note)
            answered = time.perf_counter()
            text = self.template.decode(sampled.ids)
            with _Asking(wait, "environment of ", cast.place, ", turn ", number):
                reply = await within(limits.env_s, answering(env, text, cast.tools, form))
            cast.add(text, sampled, reply, (answered - began, time.perf_counter() - answered))
            if reply.done:
                cast.cut = "the reply is too long" if sampled.finish is Finish.LENGTH else ""
                return
            with blame(EnvFailed, "environment of ", cast.place, ", turn ", number):
                cast.hear(reply)
                if limits.drop_oldest:
                    cast.script.drop_oldest(limits.context - limits.max_new_tokens)
        cast.cut = f"{limits.max_turns} turns are over"

    def _router(self, agent: str) -> Router:
        """The way to the generators of an agent's policy."""
        if not self.router_of:
            return self.router
        if agent not in self.router_of:
            known = ", ".join(self.router_of)
            raise ConfigError(f"policies: nobody plays the agent {agent!r} (played: {known}); add it to a `plays`")
        return self.router_of[agent]


class _Asking(blame):
    """An environment is at work: the attempt waits for it, and what it raises is its failure."""

    __slots__ = ("_wait",)

    def __init__(self, wait: Wait, *what: object) -> None:
        self._error, self._what, self._wait = EnvFailed, what, wait

    def __enter__(self) -> None:
        self._wait.count(1)

    def __exit__(self, kind: object, cause: BaseException | None, trace: object) -> None:
        self._wait.count(-1)
        if cause is not None:
            super().__exit__(kind, cause, trace)


def _request(attempt: Attempt, turn: int, ids: Sequence[int], limits: Limits, room: int) -> Request:
    task, sibling = attempt.task, attempt.sibling
    names = _names(attempt.seed, attempt.purpose, task.domain, task.id, attempt.number)
    return Request(
        id=f"{names.prefix}/{sibling}/{turn}",
        ids=tuple(ids),
        max_new_tokens=room,
        sampling=limits.sampling,
        stop=limits.stop,
        key=names.keys(sibling, turn),
        family=names.family,
    )


class _Names(NamedTuple):
    """What the requests of siblings have in common."""

    prefix: str
    family: str
    keys: NoiseKeys


@lru_cache(maxsize=4096)
def _names(seed: int, purpose: str, domain: str, id: str, number: int) -> _Names:
    prefix = "/".join((_name(purpose), _name(domain), _name(id), str(number)))
    return _Names(prefix, f"{domain}/{id}", NoiseKeys(seed, purpose, domain, id, number))


def _name(part: str) -> str:
    """As it stands in a request's id: a name may hold a slash itself."""
    return part if part.isalnum() else quote(part, safe="")
