"""One attempt at a task: environment and agents take turns until one of them ends it. Token ids in, token ids out.

Sampled tokens are never encoded again; only the environment's new messages are. Where the chat template would rewrite
earlier text, a new segment begins.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import NamedTuple, Protocol
from urllib.parse import quote

from roll.data.templates import Template
from roll.data.tools import Tool
from roll.engines.base import Output, Request
from roll.engines.native.sampling import NoiseKeys
from roll.envs.base import Env, StepResult
from roll.errors import AttemptStopped, ConfigError, EngineFailed, EnvFailed, RolloutError, blame
from roll.rollout.episode.conversation import AgentConversations, SegmentBreaks
from roll.rollout.episode.turns import CutShort, take_turns
from roll.serving.counts import WaitCounter
from roll.serving.dispatch import OnOutput, Sampled
from roll.serving.router import Router
from roll.types import Finish, Message, Sampling, Status, Task, Trajectory, record

_STATUS_OF: dict[type[RolloutError], Status] = {
    EnvFailed: Status.ENV_FAILED,
    EngineFailed: Status.ENGINE_FAILED,
    AttemptStopped: Status.ABORTED,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeLimits:
    """Limits that end an episode, and how its tokens are sampled."""

    sampling: Sampling
    max_seq_len: int
    """Most tokens per segment."""
    max_new_tokens: int
    """Most tokens per response."""
    max_turns: int
    stop: frozenset[int]
    """Ids that end a response."""
    env_timeout_s: float | None = None
    """Most seconds per call to the environment; None: no timeout."""
    drop_oldest: bool = False
    """Whether the oldest turns are dropped when a full response no longer fits; otherwise the episode ends there."""
    per_turn: bool = False
    """Whether every turn is a separate segment."""


class ProgressRecorder(Protocol):
    """Records the progress of an unfinished attempt, so that a restart of the run keeps it."""

    def record_output(self, turn: int, checksum: int, output: Output) -> None:
        """Record a part of the response to the context with this checksum."""

    def record_divergence(self, turn: int) -> None:
        """Record that the environment differs from the recorded attempt from this turn on; saved tokens are void."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedTurn:
    """What an earlier process sampled of one turn."""

    checksum: int
    """Checksum of the context that it was sampled after."""
    so_far: Sampled


@record
class Attempt:
    """Identifies an attempt; together with the turn it determines the noise of every token."""

    task: Task
    sibling: int
    number: int
    """Earlier attempts at this task, over epochs and retries."""
    purpose: str
    """Separates the noise of training and validation; part of every request id."""
    seed: int
    order: int = 0
    """Where generators are busy, requests with a lower order go first."""
    saved_turns: tuple[SavedTurn, ...] = ()
    """Turns sampled before a restart; they are replayed without sampling while their contexts recur."""
    recorder: ProgressRecorder | None = None
    stop_reason: Callable[[int], str] | None = None
    """Returns why the attempt is stopped after a number of sampled tokens, or an empty string; None: it is never
    stopped. Attempts of agent programs run to their end."""


class SavedProgress:
    """Replays the saved turns of an attempt, and records new progress."""

    __slots__ = ("_recorder", "_turns")

    def __init__(self, attempt: Attempt) -> None:
        self._turns, self._recorder = attempt.saved_turns, attempt.recorder

    def so_far(self, turn: int, checksum: int) -> Sampled | None:
        """Saved tokens of a turn; a context that differs from the saved one voids all turns from here on."""
        if turn >= len(self._turns):
            return None
        if self._turns[turn].checksum == checksum:
            return self._turns[turn].so_far
        self._turns = self._turns[:turn]
        if self._recorder is not None:
            self._recorder.record_divergence(turn)
        return None

    def on_output(self, turn: int, checksum: int) -> OnOutput | None:
        """Callback that records the parts of a response."""
        return None if self._recorder is None else partial(self._recorder.record_output, turn, checksum)


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeRunner:
    """Plays attempts, sampling through a router."""

    router: Router
    template: Template
    limits: EpisodeLimits
    limits_by_domain: Mapping[str, EpisodeLimits] = field(default_factory=dict[str, EpisodeLimits])
    """Overrides of `limits`."""
    router_by_agent: Mapping[str, Router] = field(default_factory=dict[str, Router])
    """Routers of agents with separate policies; empty: all agents share `router`."""
    segment_breaks: SegmentBreaks = field(default_factory=SegmentBreaks)
    """Counts over all attempts."""

    def limits_of(self, task: Task) -> EpisodeLimits:
        return self.limits_by_domain.get(task.domain, self.limits)

    def router_of(self, agent: str) -> Router:
        """Router to the generators of an agent's policy."""
        if not self.router_by_agent:
            return self.router
        if agent not in self.router_by_agent:
            known = ", ".join(self.router_by_agent)
            raise ConfigError(f"policies: no policy plays the agent {agent!r} (played: {known}); add it to a `plays`")
        return self.router_by_agent[agent]

    async def run(self, attempt: Attempt, env: Env) -> tuple[Trajectory, str]:
        """The unscored attempt and its last response; after a failure, the turns so far and the reason."""
        limits, where = self.limits_of(attempt.task), f"task {attempt.task.id!r}"
        waiting = self.router.idle_reasons.waiting_for("environments")
        policy = _PolicyResponder(self, attempt, limits, where)
        conversations = policy.conversations
        try:
            try:
                cut = await take_turns(
                    env,
                    policy,
                    max_turns=limits.max_turns,
                    template=self.template,
                    timeout_s=limits.env_timeout_s,
                    guard=_EnvCalls(waiting, where),
                )
            finally:
                with blame(EnvFailed, "environment of ", where, ", closing"):
                    await env.close()
        except RolloutError as error:
            status, reason = _STATUS_OF[type(error)], str(error)
        else:
            reason = cut or ("the last response reached max_new_tokens" if policy.finish is Finish.LENGTH else "")
            status = Status.TRUNCATED if reason else Status.FINISHED
        trajectory = conversations.trajectory(attempt.task, attempt.sibling, status, reason=reason)
        return trajectory, conversations.last_response


_NOTHING_SAMPLED = Sampled()


class _PolicyResponder:
    """`Responder` whose responses the policies sample."""

    __slots__ = (
        "_attempt",
        "_began_s",
        "_limits",
        "_progress",
        "_responded_s",
        "_runner",
        "_sampled",
        "_stopped",
        "_text",
        "_where",
        "conversations",
    )

    def __init__(self, runner: EpisodeRunner, attempt: Attempt, limits: EpisodeLimits, where: str) -> None:
        self._runner, self._attempt, self._limits, self._where = runner, attempt, limits, where
        self._progress = SavedProgress(attempt)
        self.conversations = AgentConversations(
            runner.template, runner.segment_breaks, where=where, per_turn=limits.per_turn
        )
        self._text, self._sampled = "", _NOTHING_SAMPLED
        self._began_s = self._responded_s = 0.0
        self._stopped = ""

    @property
    def finish(self) -> Finish:
        """Why the last response ended."""
        return self._sampled.finish

    def start(self, messages: Sequence[Message], tools: Sequence[Tool], agents: Sequence[str]) -> None:
        self.conversations.start(messages, tools, agents)

    async def respond(self, turn: int) -> str:
        conversation, limits, attempt = self.conversations.current, self._limits, self._attempt
        point, router = conversation.point, self._runner.router_of(conversation.agent)
        room = min(limits.max_new_tokens, limits.max_seq_len - len(point.context))
        if room <= 0:
            raise CutShort("the context is full")
        self._began_s = time.perf_counter()
        so_far = self._progress.so_far(turn, point.checksum)
        self._sampled = await router.sample(
            _request(attempt, turn, point.context, limits, room),
            order=attempt.order,
            so_far=so_far,
            on_output=self._on_output(turn, point.checksum, 0 if so_far is None else len(so_far.ids)),
            recorded=attempt.recorder is not None,
        )
        self._responded_s = time.perf_counter()
        self._text = self._runner.template.decode(self._sampled.ids)
        if self._stopped:
            self.observe(turn, StepResult(done=True))
            raise AttemptStopped(self._stopped)
        return self._text

    def _on_output(self, turn: int, checksum: int, num_saved: int) -> OnOutput | None:
        """Callback that records the parts of a response, and ends it where the attempt is stopped."""
        record_output, stop_reason = self._progress.on_output(turn, checksum), self._attempt.stop_reason
        if stop_reason is None:
            return record_output
        num_tokens = self.conversations.num_sampled + num_saved

        def on_output(output: Output) -> int | None:
            nonlocal num_tokens
            if record_output is not None:
                record_output(output)
            num_tokens += len(output.ids)
            if output.finish in (None, Finish.ABORT):
                self._stopped = stop_reason(num_tokens)
            return len(output.ids) if self._stopped else None

        return on_output

    def observe(self, turn: int, result: StepResult) -> None:
        spent_s = self._responded_s - self._began_s, time.perf_counter() - self._responded_s
        self.conversations.add_turn(self._text, self._sampled, result, spent_s)
        if result.done:
            return
        with blame(EnvFailed, "environment of ", self._where, ", turn ", turn):
            self.conversations.observe(result)
            if self._limits.drop_oldest:
                self.conversations.current.drop_oldest(self._limits.max_seq_len - self._limits.max_new_tokens)


class _EnvCalls(blame):
    """Guards the calls to one environment: the attempt counts as waiting, and errors become `EnvFailed`.

    Called with the name of a call it returns itself: the calls of an attempt never overlap.
    """

    __slots__ = ("_prefix", "_wait")

    def __init__(self, wait: WaitCounter, where: str) -> None:
        self._error, self._prefix, self._wait = EnvFailed, where, wait

    def __call__(self, *call: object) -> _EnvCalls:
        self._where = ("environment of ", self._prefix, *call)
        return self

    def __enter__(self) -> None:
        self._wait.__enter__()

    def __exit__(self, kind: object, cause: BaseException | None, trace: object) -> None:
        self._wait.__exit__()
        if cause is not None:
            super().__exit__(kind, cause, trace)


def _request(attempt: Attempt, turn: int, ids: tuple[int, ...], limits: EpisodeLimits, room: int) -> Request:
    task, sibling = attempt.task, attempt.sibling
    names = _names(attempt.seed, attempt.purpose, task.domain, task.id, attempt.number)
    return Request(
        id=f"{names.prefix}/{sibling}/{turn}",
        ids=ids,
        max_new_tokens=room,
        sampling=limits.sampling,
        stop=limits.stop,
        key=names.keys(sibling, turn),
        family=names.family,
    )


class _Names(NamedTuple):
    """Parts that the requests of siblings share."""

    prefix: str
    family: str
    keys: NoiseKeys


@lru_cache(maxsize=4096)
def _names(seed: int, purpose: str, domain: str, id: str, number: int) -> _Names:
    prefix = "/".join((_quote(purpose), _quote(domain), _quote(id), str(number)))
    return _Names(prefix, f"{domain}/{id}", NoiseKeys(seed, purpose, domain, id, number))


def _quote(part: str) -> str:
    """A part of a request id; names may contain slashes."""
    return part if part.isalnum() else quote(part, safe="")
