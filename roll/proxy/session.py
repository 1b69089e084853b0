"""One attempt on the server's side: requests come in, are matched with earlier messages, and are sampled.

| call | waits for | woken by |
|---|---|---|
| `complete` | the whole response; a repeated request waits for the same one | the router, or `close` |
| `close` | nothing; running requests are aborted | |
"""

from __future__ import annotations

import asyncio
import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeAlias

from roll.engines.base import Output, Request
from roll.engines.native.sampling import noise_key
from roll.errors import ConfigError, EngineFailed
from roll.proxy.completions import Completion, build_completion, end_markers
from roll.proxy.message_tree import MessageTree, TreeNode
from roll.proxy.messages import ApiError, response_message
from roll.proxy.requests import ChatRequest
from roll.proxy.stopping import StopDetector
from roll.rollout.episode.conversation import SamplePoint
from roll.rollout.episode.runner import Attempt, EpisodeRunner, SavedProgress
from roll.serving.dispatch import Sampled
from roll.types import Finish, Turn

if TYPE_CHECKING:
    from roll.types import Ints

OnTokens: TypeAlias = "Callable[[int, Ints], None]"
"""Callback for every part of a response while it is sampled: the index of the choice, and the new ids."""


@dataclass(slots=True, eq=False, kw_only=True)
class _RunningCompletion:
    """A response that was requested."""

    choice: int
    after: asyncio.Task[Completion] | None
    """The choice before, which is recorded first; None for the first choice."""
    task: asyncio.Task[Completion] = field(init=False)
    parts: list[Ints] = field(default_factory=list["Ints"])
    """All ids so far."""
    listeners: list[OnTokens] = field(default_factory=list[OnTokens])
    num_waiting: int = 0
    """Clients that wait for it."""

    def add(self, ids: Ints) -> None:
        self.parts.append(ids)
        for listener in self.listeners:
            listener(self.choice, ids)

    def listen(self, listener: OnTokens) -> None:
        """Send all parts to the listener, including the past ones."""
        for ids in self.parts:
            listener(self.choice, ids)
        self.listeners.append(listener)


class Session:
    """The requests of one attempt's agent, and their responses."""

    def __init__(self, id: str, runner: EpisodeRunner, attempt: Attempt) -> None:
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
        self.history: dict[str, list[dict[str, Any]]] = {}
        """Messages up to each response of the Responses API, by the id of the response."""
        self.text = ""
        """Text of the last response; of several choices, the last one."""
        self.closed = False
        self._num_requested = 0
        """Responses that were requested so far."""
        self._progress = SavedProgress(attempt)
        self._running: set[asyncio.Task[Completion]] = set()
        self._completions: dict[tuple[TreeNode, tuple[Any, ...]], _RunningCompletion] = {}
        """By last message and request key; a repeated request gets the same response."""
        self.router.idle_reasons.add("environments", 1)

    async def complete(self, request: ChatRequest, on_tokens: OnTokens | None = None) -> list[Completion]:
        """The choices of the response to a request; a repeated request gets the same ones. Cancelling this aborts it.

        Raises `ApiError`.
        """
        choices = [replace(request, choice=index) for index in range(request.num_choices)]
        self._check_turns(request, choices)
        completing = [asyncio.ensure_future(self._complete_choice(choice, on_tokens)) for choice in choices]
        try:
            return await asyncio.gather(*completing)
        finally:
            for task in completing:  # after an error in one of them
                task.cancel()

    def _check_turns(self, request: ChatRequest, choices: Sequence[ChatRequest]) -> None:
        """Raise `ApiError` for more new choices than turns that are left; without any left, sampling raises it."""
        node = self.tree.find(request)[-1]
        num_new = sum((node, choice.key) not in self._completions for choice in choices)
        num_left = self.limits.max_turns - self.tree.num_turns - len(self._running)
        if 0 < num_left < num_new and not self.closed:
            left = f"{num_left} of {self.limits.max_turns} are left"
            self.cut = f"n: {len(choices)} choices need {num_new} turns and {left}"
            most = len(choices) - num_new + num_left
            raise ApiError(400, f"{self.cut} (rollout.max_turns); send n <= {most}", param="n", code="turns_over")

    async def _complete_choice(self, request: ChatRequest, on_tokens: OnTokens | None) -> Completion:
        path = self.tree.find(request)
        key = path[-1], request.key
        if key not in self._completions:
            self._completions[key] = self._start(path, request)
        running = self._completions[key]
        if on_tokens is not None:
            running.listen(on_tokens)
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
        before = self._completions.get((path[-1], replace(request, choice=request.choice - 1).key))
        running = _RunningCompletion(choice=request.choice, after=None if before is None else before.task)
        running.task = task = asyncio.create_task(self._sample(request, path[-1], point, number, running))

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
        return running

    async def _sample(
        self, request: ChatRequest, node: TreeNode, point: SamplePoint, number: int, running: _RunningCompletion
    ) -> Completion:
        room, began = self._room(point), time.perf_counter()
        max_new_tokens = room if request.max_new_tokens is None else min(room, request.max_new_tokens)
        try:
            sampled = await self._sample_tokens(request, point, number, max_new_tokens, running)
        except EngineFailed as error:
            self.engine_error = str(error)
            raise
        if running.after is not None:
            await asyncio.wait([running.after])  # choices are recorded in their order
        completion = build_completion(f"{self.id}-{number}", request, sampled, self.template, len(point.context))
        turn = Turn(
            observation=point.observation,
            sampled=sampled.ids,
            sampler_logprobs=sampled.logprobs,
            versions=sampled.versions,
            finish=sampled.finish,
            generated_s=time.perf_counter() - began,
            queued_s=sampled.queued_s,
            experts=sampled.turn_experts(len(point.observation)),
        )
        message = response_message(completion.content, completion.calls)
        self.tree.add(node, point, message, completion.text, turn)
        self.text = completion.visible
        self.too_long = sampled.finish is Finish.LENGTH and len(sampled.ids) == room
        return completion

    async def _sample_tokens(
        self, request: ChatRequest, point: SamplePoint, number: int, max_new_tokens: int, running: _RunningCompletion
    ) -> Sampled:
        """The tokens of a response, up to the first text that ends it."""
        context = zlib.crc32(b"%d" % request.choice, point.checksum) if request.choice else point.checksum
        record, so_far = self._progress.on_output(number, context), self._progress.so_far(number, context)
        detector = StopDetector(self.template.decode, end_markers(request, self.template))

        def on_output(output: Output) -> int | None:
            num_kept = detector.find(output.ids)
            if num_kept is not None:
                ids, logprobs = output.ids[:num_kept], output.logprobs[:num_kept]
                output = replace(output, ids=ids, logprobs=logprobs, finish=Finish.STOP)
            if record is not None:
                record(output)
            running.add(output.ids)
            return num_kept

        if so_far is not None:
            num_kept = detector.find(so_far.ids)
            running.add(so_far.ids[:num_kept])
            if num_kept is not None:
                rows = {name: getattr(so_far, name)[:num_kept] for name in ("ids", "logprobs", "versions")}
                return replace(so_far, **rows, finish=Finish.STOP)
        engine_request = self._request(request, point, number, max_new_tokens)
        return await self.router.sample(
            engine_request,
            order=self.attempt.order,
            so_far=so_far,
            on_output=on_output,
            recorded=self.attempt.recorder is not None,
        )

    def _room(self, point: SamplePoint) -> int:
        """Most tokens that the run allows for a response here."""
        return min(self.limits.max_new_tokens, self.limits.max_seq_len - len(point.context))

    def _request(self, request: ChatRequest, point: SamplePoint, number: int, max_new_tokens: int) -> Request:
        """The engine's request. Its noise depends on the context, not on when it was sent: agents send concurrently."""
        attempt = self.attempt
        noise = f"{point.checksum:08x}/{'' if request.seed is None else request.seed}"
        noise += f"/{request.choice}" if request.choice else ""
        return Request(
            id=f"{self.name}/{self.id}-{number}",
            ids=point.context,
            max_new_tokens=max_new_tokens,
            sampling=self.limits.sampling,
            stop=self.limits.stop,
            key=noise_key(attempt.seed, *self._parts, noise),
            family=f"{attempt.task.domain}/{attempt.task.id}",
        )

    def _closed_error(self) -> ApiError:
        return ApiError(404, f"session {self.id!r} has ended; its attempt is over", code="session_not_found")


def _api_error(error: BaseException) -> ApiError:
    """The error that a client receives when sampling failed."""
    if isinstance(error, EngineFailed):
        return ApiError(503, f"no response ({error}); send the request again", code="engine_failed")
    return ApiError(500, f"no response ({type(error).__name__}: {error}); see the run's log", code="internal")
