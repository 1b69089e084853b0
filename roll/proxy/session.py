"""One attempt on the server's side: requests come in, are matched with earlier messages, and are sampled.

| call | waits for | woken by |
|---|---|---|
| `complete` | the whole response; a repeated request waits for the same one | the router, or `close` |
| `close` | nothing; running requests are aborted | |
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from roll.engines.base import Output, Request
from roll.engines.native.sampling import noise_key
from roll.errors import ConfigError, EngineFailed
from roll.proxy.completions import Completion, build_completion
from roll.proxy.message_tree import MessageTree, TreeNode
from roll.proxy.requests import ApiError, ChatRequest, check_sampling, response_message
from roll.rollout.episode.conversation import SamplePoint
from roll.rollout.episode.runner import Attempt, EpisodeRunner, SavedProgress
from roll.types import Finish, Turn

if TYPE_CHECKING:
    from roll.types import Ints

OnTokens: TypeAlias = "Callable[[Ints], None]"
"""Callback for every part of a response while it is sampled."""


@dataclass(slots=True, eq=False)
class _RunningCompletion:
    """A response that was requested."""

    task: asyncio.Task[Completion]
    listeners: list[OnTokens]
    num_waiting: int = 0
    """Clients that wait for it."""


class Session:
    """The requests of one attempt's agent, and their responses."""

    def __init__(self, id: str, runner: EpisodeRunner, attempt: Attempt, *, strict: bool = True) -> None:
        """With `strict`, requests for a different sampling than the run's are rejected."""
        self.id, self.runner, self.attempt = id, runner, attempt
        self.limits = runner.limits_of(attempt.task)
        self._parts = (attempt.purpose, attempt.task.domain, attempt.task.id, attempt.number, attempt.sibling)
        self.name = "/".join(map(str, self._parts))
        """Readable name of the attempt."""
        self.template, self.router = runner.template, runner.router
        where, per_turn = f"task {attempt.task.id!r}", self.limits.per_turn
        self.tree = MessageTree(runner.template, runner.segment_breaks, where=where, per_turn=per_turn)
        self.cut = ""
        """Why the attempt was truncated; empty if it was not."""
        self.too_long = False
        """Whether the run's own limit cut the last response."""
        self.engine_error = ""
        """Last error of the engine; empty if there was none."""
        self.closed = False
        self._strict = strict
        self._num_requested = 0
        """Responses that were requested so far."""
        self._progress = SavedProgress(attempt)
        self._running: set[asyncio.Task[Completion]] = set()
        self._completions: dict[tuple[TreeNode, tuple[Any, ...]], _RunningCompletion] = {}
        """By last message and request key; a repeated request gets the same response."""
        self.router.idle_reasons.add("environments", 1)

    async def complete(self, request: ChatRequest, on_tokens: OnTokens | None = None) -> Completion:
        """The response to a request; a repeated request gets the same one. Cancelling this aborts it.

        Raises `ApiError`.
        """
        if self._strict:
            check_sampling(request, self.limits.sampling)
        path = self.tree.find(request)
        key = path[-1], request.key
        if key not in self._completions:
            self._completions[key] = self._start(path, request)
        running = self._completions[key]
        if on_tokens is not None:
            running.listeners.append(on_tokens)
        running.num_waiting += 1
        try:
            await asyncio.wait([running.task])
        finally:
            running.num_waiting -= 1
            if not running.task.done() and not running.num_waiting:
                del self._completions[key]
                running.task.cancel()
        if running.task.cancelled():
            raise self._closed_error()
        if (error := running.task.exception()) is not None:
            self._completions.pop(key, None)  # the next request tries again
            raise _api_error(error)
        return running.task.result()

    def close(self) -> None:
        """Abort running requests and accept no more."""
        if self.closed:
            return
        self.closed = True
        if not self._running:
            self.router.idle_reasons.add("environments", -1)
        for task in list(self._running):
            task.cancel()

    def _start(self, path: list[TreeNode], request: ChatRequest) -> _RunningCompletion:
        if self.closed:
            raise self._closed_error()
        if self.tree.num_turns + len(self._running) >= self.limits.max_turns:
            self.cut = f"{self.limits.max_turns} turns are over"
            raise ApiError(400, f"{self.cut}: an attempt has no more (rollout.max_turns); end it", code="turns_over")
        try:
            point = self.tree.sample_point(path, request.tools)
        except ConfigError as error:
            raise ApiError(400, str(error), param="messages") from None
        if self._room(point) <= 0:
            self.tree.release(point)
            self.cut = "the context is full"
            raise ApiError(
                400,
                f"the messages have {len(point.context)} tokens and the context has {self.limits.max_seq_len}, so "
                "there is no room for a response (rollout.max_seq_len); send less",
                param="messages",
                code="context_length_exceeded",
            )
        number, self._num_requested = self._num_requested, self._num_requested + 1
        listeners: list[OnTokens] = []
        task = asyncio.create_task(self._sample(request, path[-1], point, number, listeners))

        def end(_: object) -> None:
            self._running.discard(task)
            if task.cancelled() or task.exception() is not None:
                self.tree.release(point)
            if not self._running and not self.closed:
                self.router.idle_reasons.add("environments", 1)

        task.add_done_callback(end)
        if not self._running:
            self.router.idle_reasons.add("environments", -1)
        self._running.add(task)
        return _RunningCompletion(task, listeners)

    async def _sample(
        self, request: ChatRequest, node: TreeNode, point: SamplePoint, number: int, listeners: list[OnTokens]
    ) -> Completion:
        room, record = self._room(point), self._progress.on_output(number, point.checksum)
        max_new_tokens = room if request.max_new_tokens is None else min(room, request.max_new_tokens)

        def on_output(output: Output) -> None:
            if record is not None:
                record(output)
            for listener in listeners:
                listener(output.ids)

        began = time.perf_counter()
        try:
            sampled = await self.router.sample(
                self._request(request, point, number, max_new_tokens),
                order=self.attempt.order,
                so_far=self._progress.so_far(number, point.checksum),
                on_output=on_output,
            )
        except EngineFailed as error:
            self.engine_error = str(error)
            raise
        completion = build_completion(f"{self.id}-{number}", request, sampled, self.template, len(point.context))
        turn = Turn(
            observation=point.observation,
            sampled=sampled.ids,
            sampler_logprobs=sampled.logprobs,
            versions=sampled.versions,
            finish=sampled.finish,
            generated_s=time.perf_counter() - began,
            queued_s=sampled.queued_s,
        )
        message = response_message(completion.content, completion.calls)
        self.tree.add(node, point, message, completion.text, turn)
        self.too_long = sampled.finish is Finish.LENGTH and len(sampled.ids) == room
        return completion

    def _room(self, point: SamplePoint) -> int:
        """Most tokens that the run allows for a response here."""
        return min(self.limits.max_new_tokens, self.limits.max_seq_len - len(point.context))

    def _request(self, request: ChatRequest, point: SamplePoint, number: int, max_new_tokens: int) -> Request:
        """The engine's request. Its noise depends on the context, not on when it was sent: agents send concurrently."""
        attempt, seed = self.attempt, "" if request.seed is None else request.seed
        return Request(
            id=f"{self.name}/{self.id}-{number}",
            ids=point.context,
            max_new_tokens=max_new_tokens,
            sampling=self.limits.sampling,
            stop=self.limits.stop,
            key=noise_key(attempt.seed, *self._parts, f"{point.checksum:08x}/{seed}"),
            family=f"{attempt.task.domain}/{attempt.task.id}",
        )

    def _closed_error(self) -> ApiError:
        return ApiError(404, f"session {self.id!r} has ended; its attempt is over", code="session_not_found")


def _api_error(error: BaseException) -> ApiError:
    """The error that a client receives when sampling failed."""
    if isinstance(error, EngineFailed):
        return ApiError(503, f"no response ({error}); send the request again", code="engine_failed")
    return ApiError(500, f"no response ({type(error).__name__}: {error}); see the run's log", code="internal")
