"""Pending requests, and the choice of a generator for each: the least loaded one, or one with a cached prefix."""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from math import isfinite
from typing import TYPE_CHECKING

import numpy as np

from roll.engines.base import Output, Request
from roll.errors import EngineFailed
from roll.serving.speeds import GeneratorSpeeds
from roll.types import Finish, record

if TYPE_CHECKING:
    import asyncio

    from roll.types import Experts, Floats, Ints

    Future = asyncio.Future["Sampled"]


_HOMES = 65_536
"""Prompt families whose last generator is remembered."""
_START, _SHRINK = 64, 0.7
"""Initial adaptive limit, and the factor applied to it after a preemption."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Concurrency:
    """Limit on the requests of one generator; the rest stay in the router's queue, free to go to any generator.

    Also how they are shared out.
    """

    limit: int | None = None
    """None: no limit."""
    adaptive: bool = False
    """Additive increase, multiplicative decrease: up by one per `limit` finished requests, down after a preemption."""
    by_speed: bool = True
    """Share outstanding tokens out by the measured speeds of generators; otherwise equally."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeouts:
    """Timeouts of the router, in seconds, and the limit on retries."""

    request_s: float = 600.0
    """Between two outputs of a request, before it is sent to another generator."""
    call_s: float = 600.0
    """For a control call to a generator; past it the run stops."""
    max_redispatches: int = 3
    """How often one request is sent to another generator after a timeout before it fails."""


class LoadBalancer:
    """Outstanding tokens and requests of every generator."""

    def __init__(self, size: int, concurrency: Concurrency | None = None) -> None:
        concurrency = concurrency or Concurrency()
        self._adaptive = concurrency.adaptive
        start = concurrency.limit or (_START if concurrency.adaptive else None)
        self.limits: list[float | None] = [None if start is None else float(start)] * size
        self.tokens, self.num_requests = [0] * size, [0] * size
        self.unavailable: set[int] = set()
        """Ranks that are being replaced; they get no requests."""
        self._num_preempted = [0] * size
        self._speeds = GeneratorSpeeds(size) if concurrency.by_speed and size > 1 else None
        self._heap: list[tuple[float, int]] = []  # may hold outdated entries, which `_least` drops
        self._touched = set(range(size))  # ranks without a current entry
        self._homes: OrderedDict[str, int] = OrderedDict()

    def choose(self, prompt: int, family: str, avoid: int | None = None) -> int | None:
        """The rank where a request with `prompt` tokens costs least; None while every generator is full."""
        if len(self.tokens) == 1:
            return 0 if self._free(0) else None
        least = self._least(avoid)
        home = self._homes.get(family) if family else None
        if least is None or home is None or home == avoid or not self._free(home):
            return least
        return home if self._cost(home) <= self._cost(least, prompt) else least

    def add_request(self, rank: int, tokens: int, family: str) -> None:
        """A request with up to `tokens` tokens to sample was sent to `rank`."""
        self.num_requests[rank] += 1
        self.tokens[rank] += tokens
        self._touched.add(rank)
        if family and len(self.tokens) > 1:
            self._homes[family] = rank
            self._homes.move_to_end(family)
            if len(self._homes) > _HOMES:
                self._homes.popitem(last=False)

    def add_progress(self, rank: int, tokens: int) -> None:
        """`tokens` tokens of a request were sampled."""
        self.tokens[rank] -= tokens
        self._touched.add(rank)

    def remove_request(self, rank: int, tokens: int, *, ended: bool = False) -> None:
        """A request left `rank` with `tokens` tokens not sampled; `ended` if it was completed."""
        self.num_requests[rank] -= 1
        self.tokens[rank] -= tokens
        limit = self.limits[rank]
        if self._adaptive and ended and limit is not None:
            self.limits[rank] = limit + 1 / limit
        self._touched.add(rank)

    def report_preemptions(self, rank: int, num_preempted: int) -> None:
        """The generator has preempted `num_preempted` requests since it started."""
        limit = self.limits[rank]
        if self._adaptive and limit is not None and num_preempted > self._num_preempted[rank]:
            self.limits[rank] = max(1.0, limit * _SHRINK)
        self._num_preempted[rank] = num_preempted

    def record_outputs(self, rank: int, *, tokens: int, outputs: int, num_requests: int, now: float) -> None:
        """A generator that had `num_requests` requests has returned outputs."""
        if self._speeds is not None and self._speeds.record(
            rank, tokens=tokens, outputs=outputs, num_requests=num_requests, now=now
        ):
            self._touched.update(range(len(self.tokens)))

    def _cost(self, rank: int, more: int = 0) -> float:
        """Outstanding tokens of a generator, in the time that those of mean speed need for them."""
        return (self.tokens[rank] + more) / (1.0 if self._speeds is None else self._speeds.weights[rank])

    def mark_ready(self, rank: int) -> None:
        """A generator that was replaced or has joined can be chosen."""
        self.unavailable.discard(rank)
        self._num_preempted[rank] = 0
        if self._speeds is not None:
            self._speeds.forget(rank)
            self._touched.update(range(len(self.tokens)))
        self._touched.add(rank)

    def _free(self, rank: int) -> bool:
        limit = self.limits[rank]
        if rank in self.unavailable:
            return False
        return limit is None or self.num_requests[rank] < int(limit)

    def _catch_up(self) -> None:
        """Push a heap entry for every changed generator that has room."""
        for rank in self._touched:
            if self._free(rank):
                heapq.heappush(self._heap, (self._cost(rank), rank))
        self._touched.clear()
        if len(self._heap) > 64 + 8 * len(self.tokens):
            self._heap = [(self._cost(rank), rank) for rank in range(len(self.tokens)) if self._free(rank)]
            heapq.heapify(self._heap)

    def _least(self, avoid: int | None) -> int | None:
        """The rank with room and the least outstanding work; `avoid` only if there is no other generator."""
        self._catch_up()
        skipped: tuple[float, int] | None = None
        least: int | None = None
        while self._heap and least is None:
            cost, rank = self._heap[0]
            if cost != self._cost(rank) or not self._free(rank):
                heapq.heappop(self._heap)
            elif rank == avoid and len(self.tokens) > 1:
                skipped = heapq.heappop(self._heap)
            else:
                least = rank
        if skipped is None:
            return least
        heapq.heappush(self._heap, skipped)
        alone = len(self.unavailable) == len(self.tokens) - 1
        return skipped[1] if alone else least


OnOutput = Callable[[Output], int | None]
"""Called with every output for a request, including the last. A number ends the response after so many tokens of the
output; None lets it continue."""


@record
class Sampled:
    """All tokens sampled for one request, possibly by several versions of the weights."""

    ids: Ints = field(default_factory=lambda: np.zeros(0, np.int32))
    logprobs: Floats = field(default_factory=lambda: np.zeros(0, np.float32))
    versions: Ints = field(default_factory=lambda: np.zeros(0, np.int32))
    """One per token, never decreasing."""
    finish: Finish = Finish.ABORT
    queued_s: float = 0.0
    """Seconds that the request waited for a generator."""
    experts: Experts | None = None
    """[passes, layers, k]: the experts of the last passes, ending with the one that sampled the last token; None if
    they are unknown"""

    def turn_experts(self, num_observed: int) -> Experts | None:
        """The experts of the pass before each token of a turn, with -1 in front where there are fewer passes."""
        if self.experts is None:
            return None
        num_tokens = num_observed + len(self.ids)
        missing = max(0, num_tokens - len(self.experts))
        known = self.experts[len(self.experts) - num_tokens + missing :]
        return np.concatenate([np.full((missing, *known.shape[1:]), -1, np.int16), known]).astype(np.int16)


class VersionRows:
    """Arrays that repeat one version per token, sliced from one buffer: an allocation costs more than a request."""

    def __init__(self) -> None:
        self._version, self._row = -1, np.zeros(0, np.int32)

    def row(self, version: int, num_tokens: int) -> Ints:
        """`num_tokens` times this version, read-only."""
        if version != self._version or num_tokens > len(self._row):
            self._version, self._row = version, np.full(max(num_tokens, len(self._row)), version, np.int32)
            self._row.flags.writeable = False
        return self._row[:num_tokens]


@dataclass(slots=True, kw_only=True, eq=False)
class Pending:
    """A request in the queue or on a generator, with its partial response."""

    request: Request
    priority: tuple[int, int]
    """Order of the caller, then a running number; lower goes first."""
    future: Future
    on_output: OnOutput | None
    recorded: bool = True
    """Whether the journal has its tokens."""
    parts: list[Sampled]
    """The partial response, one part per output."""
    num_tokens: int
    """Length of the partial response."""
    rank: int | None = None
    """The generator that works on it; None while it waits for dispatch."""
    name: str = ""
    """Its id on that generator. Unique per dispatch, so that late outputs match no request."""
    last_active: float
    """Time of its last output; while it waits for dispatch, the start of that wait."""
    queued_s: float = 0.0
    """Seconds it has waited for dispatch so far."""
    redispatches: int = 0
    avoid: int | None = None
    """The generator that timed out last."""

    @property
    def num_left(self) -> int:
        return self.request.max_new_tokens - self.num_tokens

    @property
    def complete(self) -> Finish | None:
        """The finish reason, if the partial response is complete."""
        if self.num_tokens and int(self.parts[-1].ids[-1]) in self.request.stop:
            return Finish.STOP
        return Finish.LENGTH if self.num_tokens >= self.request.max_new_tokens else None

    def add(self, output: Output, versions: VersionRows) -> int | None:
        """Add an output to the partial response; the tokens kept if its callback ends the response, else None."""
        kept = None if self.on_output is None else self.on_output(output)
        ids, logprobs = output.ids, output.logprobs
        if kept is not None:
            ids, logprobs = ids[:kept], logprobs[:kept]
        part = Sampled(
            ids=ids,
            logprobs=logprobs,
            versions=versions.row(output.version, len(ids)),
            finish=output.finish or Finish.ABORT,
            queued_s=self.queued_s,
            experts=None
            if output.experts is None
            else output.experts[: len(output.experts) - len(output.ids) + len(ids)],
        )
        self.parts.append(part)
        self.num_tokens += len(ids)
        return kept

    def remainder(self) -> Request:
        """The request for the rest: the prompt with the partial response, and the remaining token budget."""
        request, parts = self.request, self.parts
        return Request(
            id=self.name,
            ids=(*request.ids, *(id for part in parts for id in part.ids.tolist())) if parts else request.ids,
            max_new_tokens=request.max_new_tokens - self.num_tokens,
            sampling=request.sampling,
            stop=request.stop,
            key=request.key,
            produced=request.produced + self.num_tokens,
            family=request.family,
        )

    def resolve(self, finish: Finish) -> None:
        if not self.future.done():
            self.future.set_result(_join(self.parts, finish, self.queued_s))

    def fail(self, reason: str) -> None:
        if not self.future.done():
            self.future.set_exception(EngineFailed(f"request {self.request.id}: {reason}"))

    def fault(self, output: Output, *, with_logprobs: bool = True) -> str:
        """Why this output is malformed; empty if it is not. Without `with_logprobs` the logprobs are not checked."""
        num_new, logprobs = len(output.ids), output.logprobs
        if self.num_tokens + num_new > self.request.max_new_tokens:
            return f"{self.num_tokens + num_new} tokens where {self.request.max_new_tokens} were requested"
        if len(logprobs) != num_new:
            return f"{num_new} tokens and {len(logprobs)} logprobs"
        if with_logprobs and not _finite(logprobs):
            return "logprobs that are not finite"
        return ""


def _join(parts: Sequence[Sampled], finish: Finish, queued_s: float) -> Sampled:
    if not parts:
        return Sampled(finish=finish, queued_s=queued_s)
    if len(parts) == 1:
        complete = parts[0].finish is finish  # then its `queued_s` is final
        return parts[0] if complete else replace(parts[0], finish=finish, queued_s=queued_s)
    return Sampled(
        ids=np.concatenate([part.ids for part in parts]),
        logprobs=np.concatenate([part.logprobs for part in parts]),
        versions=np.concatenate([part.versions for part in parts]),
        finish=finish,
        queued_s=queued_s,
        experts=parts[-1].experts,
    )


def _finite(row: Floats) -> bool:
    return isfinite(row.dot(row)) or bool(np.isfinite(row).all())  # the dot product is the fast path
