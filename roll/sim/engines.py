"""Engines that take time and compute nothing, and the cost of calling them over a network."""

from __future__ import annotations

import asyncio
import heapq
import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING

import numpy as np

from roll.algorithms.recipe import Objective
from roll.cluster.handle import Method, P, R, W
from roll.cluster.inline import InlineCluster
from roll.engines.base import Output, Part, Request, Statistics
from roll.engines.fake import FakeTrainer
from roll.sim.clock import VirtualLoop
from roll.sim.workload import Lengths, TurnLengths
from roll.types import Batch, Finish
from roll.weights.digest import Digest

if TYPE_CHECKING:
    from roll.types import Ints

EOS = 1
_ZERO = 4
"""Id of `0`; the ids of the other digits follow."""
_NUM_DIGITS = 12
"""Number of key digits at the start of a response, which make every response unique."""
EARLY_S = 1e-9
"""Tolerance for timers that fire early."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneratorSpeed:
    """Speed of one generator."""

    slots: int
    """Sequences decoded concurrently; more requests queue inside the generator."""
    tokens_per_s: float
    """Per sequence, regardless of their number."""
    receive_s: float = 0.0
    """Time to receive a version of the weights."""
    resume_s: float = 0.0
    """Time to resume serving afterwards."""


@dataclass(slots=True, kw_only=True)
class RunningSequence:
    """A sequence in a slot."""

    request: Request
    num_tokens: int
    """Number of tokens to sample."""
    finish: Finish
    number: int
    began: float
    end: float = 0.0
    """Its end on the generator's clock, which counts seconds."""


class SimGenerator:
    """`Generator` whose response lengths depend on the key alone, regardless of where and how often they resume.

    It jumps from one end of a response to the next and works independently of calls: a free slot is refilled at once,
    even if the controller learns of it later. Only complete tokens count; an abort loses a started one.
    """

    def __init__(self, lengths: Lengths, speed: GeneratorSpeed, loop: VirtualLoop) -> None:
        self._lengths, self._speed, self._loop = lengths, speed, loop
        self._version = -1
        self._paused_at: float | None = None
        self._waiting: deque[Request] = deque()
        self._running: dict[str, RunningSequence] = {}
        self._ends: list[tuple[float, int, str]] = []  # a heap; aborted sequences remain in it
        self._outputs: list[Output] = []
        self._numbers = count()
        self._alarm: asyncio.Future[None] | None = None
        self._rings_at = math.inf
        self.num_tokens = self.num_replies = 0
        """Sampled tokens, and complete responses."""
        self.slot_s = 0.0
        """Decoding seconds, summed over all slots."""
        self.on_end: Callable[[RunningSequence, float, int], None] = lambda item, at, num_tokens: None
        """Callback with each sequence that leaves its slot, the time, and its number of tokens."""
        self.move_s = 0.0
        """Time to move parts to the host or back."""
        self._off = set[Part]()

    async def start(self) -> None:
        """Nothing to do."""

    async def stop(self) -> None:
        """Nothing to do."""

    async def statistics(self) -> Statistics:
        return Statistics()

    async def offload(self, parts: Sequence[Part]) -> None:
        assert not self._running and not self._waiting, "parts move only while nothing is served"
        self._off |= set(parts)
        await asyncio.sleep(self.move_s)

    async def onload(self, parts: Sequence[Part]) -> None:
        await asyncio.sleep(self.move_s)
        self._off -= set(parts)

    async def submit(self, requests: Sequence[Request]) -> None:
        assert not self._off, "requests are served with all parts on the device"
        with self._loop.elsewhere():
            self._settle()
            self._waiting.extend(requests)
            self._fill(self._now())
            self._wake()

    async def events(self, max_wait_s: float) -> list[Output]:
        deadline = self._loop.time() + max_wait_s
        while True:
            with self._loop.elsewhere():
                self._settle()
            if self._outputs or self._loop.time() >= deadline - EARLY_S:
                outputs, self._outputs = self._outputs, []
                return outputs
            await self._sleep_until(min(deadline, self._next_end()))

    async def abort(self, ids: Sequence[str] | None = None) -> None:
        with self._loop.elsewhere():
            self._settle()
            requested = None if ids is None else set(ids)
            for id, item in list(self._running.items()):
                if requested is None or id in requested:
                    done = max(0, min(self._num_done(item), item.num_tokens - 1))
                    self._end(item, self._now(), done, Finish.ABORT)
            queued, self._waiting = self._waiting, deque()
            for request in queued:
                if requested is None or request.id in requested:
                    self._outputs.append(self._output(request, 0, Finish.ABORT))
                else:
                    self._waiting.append(request)
            self._fill(self._now())
            self._wake()

    async def pause(self) -> None:
        self.freeze()

    async def resume(self, version: int) -> None:
        await asyncio.sleep(self._speed.resume_s)
        assert version == self._version or not self._running, "a running sequence keeps its weights"
        self._version = version
        self.thaw()

    async def receive(self, version: int) -> Digest:
        assert not self._off, "weights arrive with all parts on the device"
        assert self._paused_at is not None, "weights change only while nothing is served"
        assert not self._running and not self._waiting, "weights change only while nothing is served"
        await asyncio.sleep(self._speed.receive_s)
        return Digest({"fake": (version, version * version)})

    def freeze(self) -> None:
        """Stop decoding until `thaw`."""
        self._settle()
        self._paused_at = self._loop.time()

    def thaw(self) -> None:
        """Continue decoding, unless it never stopped."""
        if self._paused_at is None:
            return
        slept_s, self._paused_at = self._loop.time() - self._paused_at, None
        self._shift(slept_s)
        self._fill(self._loop.time())
        self._wake()

    def _shift(self, slept_s: float) -> None:
        """Move the ends of all sequences after a pause."""
        for item in self._running.values():
            item.began += slept_s
        self._ends = [(end + slept_s, number, id) for end, number, id in self._ends]

    def _num_done(self, item: RunningSequence) -> int:
        """Complete tokens of a running sequence."""
        return math.floor((self._now() - item.began) * self._speed.tokens_per_s + EARLY_S)

    def _now(self) -> float:
        """Time up to which decoding has progressed."""
        return self._loop.time() if self._paused_at is None else self._paused_at

    def _settle(self) -> None:
        """Process all sequences that have ended by now."""
        now = self._now() + EARLY_S
        while self._ends and self._ends[0][0] <= now:
            ended, number, id = heapq.heappop(self._ends)
            item = self._running.get(id)
            if item is not None and item.number == number:
                self._end(item, ended, item.num_tokens, item.finish)
                self._fill(ended)

    def _fill(self, at: float) -> None:
        while self._waiting and len(self._running) < self._speed.slots and self._paused_at is None:
            self._begin(self._waiting.popleft(), at)

    def _begin(self, request: Request, at: float) -> None:
        left = max(1, math.ceil(self._draw(request))) - request.produced
        assert left > 0, f"request {request.id} is already complete"
        finish = Finish.STOP if left <= request.max_new_tokens else Finish.LENGTH
        number, num_tokens = next(self._numbers), min(left, request.max_new_tokens)
        item = RunningSequence(request=request, num_tokens=num_tokens, finish=finish, number=number, began=at)
        item.end = self._end_of(item)
        self._running[request.id] = item
        heapq.heappush(self._ends, (item.end, number, request.id))

    def _draw(self, request: Request) -> float:
        """Number of tokens of the whole response."""
        lengths = self._lengths
        return lengths.draw_for(request) if isinstance(lengths, TurnLengths) else lengths.draw(request.key)

    def _end_of(self, item: RunningSequence) -> float:
        """End of a sequence that begins now."""
        return item.began + item.num_tokens / self._speed.tokens_per_s

    def _end(self, item: RunningSequence, at: float, num_tokens: int, finish: Finish) -> None:
        del self._running[item.request.id]
        self.slot_s += at - item.began
        self.num_tokens += num_tokens
        self.num_replies += finish is not Finish.ABORT
        self.on_end(item, at, num_tokens)
        self._outputs.append(self._output(item.request, num_tokens, finish))

    def _output(self, request: Request, num_tokens: int, finish: Finish) -> Output:
        ids = _ids(request.key, request.produced, num_tokens)
        if finish is Finish.STOP:
            ids[-1] = EOS
        logprobs = np.full(num_tokens, -1.0, np.float32)
        return Output(id=request.id, ids=ids, logprobs=logprobs, version=self._version, finish=finish)

    def _next_end(self) -> float:
        return self._ends[0][0] if self._ends and self._paused_at is None else math.inf

    async def _sleep_until(self, when: float) -> None:
        alarm = self._alarm = self._loop.create_future()
        self._rings_at = when
        timer = self._loop.call_at(when, _ring, alarm)
        try:
            await alarm
        finally:
            timer.cancel()
            self._alarm = None

    def _wake(self) -> None:
        """Wake `events` if there is something new."""
        if self._alarm is not None and (self._outputs or self._next_end() < self._rings_at):
            _ring(self._alarm)


class SimTrainer(FakeTrainer):
    """`Trainer` whose updates each take `update_s`, and `token_s` per sampled token; it stores no batches.

    Moving its parts to the host or back takes `move_s`. `shared` are generators on its devices, which stop during an
    update.
    """

    def __init__(
        self, update_s: float, *, token_s: float = 0.0, move_s: float = 0.0, shared: Sequence[SimGenerator] = ()
    ) -> None:
        super().__init__()
        self.update_s, self.token_s, self.move_s, self.shared = update_s, token_s, move_s, shared
        self._off = set[Part]()

    async def offload(self, parts: Sequence[Part]) -> None:
        self._off |= set(parts)
        await asyncio.sleep(self.move_s)

    async def onload(self, parts: Sequence[Part]) -> None:
        await asyncio.sleep(self.move_s)
        self._off -= set(parts)

    async def update(self, batch: Batch, objective: Objective) -> dict[str, float]:
        assert not self._off, "an update needs all parts on the device"
        for generator in self.shared:
            generator.freeze()
        num_tokens = int(batch.trained.sum().item()) if self.token_s else 0
        await asyncio.sleep(self.update_s + self.token_s * num_tokens)
        for generator in self.shared:
            generator.thaw()
        self.num_updates += 1
        return {"loss/policy": 0.0, "loss/grad_norm": 0.0, "loss/refused": 0.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class CallCost:
    """Cost of one remote call."""

    latency_s: float = 0.001
    """Time until the answer arrives."""
    busy_s: float = 1 / 2100
    """Time in which the controller is busy with the call."""


class RemoteCluster(InlineCluster[W]):
    """`Cluster` of workers over a network: answers have latency, and every call costs the controller time."""

    def __init__(self, workers: Sequence[W], cost: CallCost, loop: VirtualLoop) -> None:
        super().__init__(workers)
        self._cost, self._loop = cost, loop
        self.num_calls = 0

    async def at(self, rank: int, method: Method[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        self.num_calls += 1
        self._loop.spend(self._cost.busy_s)
        answer = await super().at(rank, method, *args, **kwargs)
        await asyncio.sleep(self._cost.latency_s)
        return answer


def _ring(alarm: asyncio.Future[None]) -> None:
    if not alarm.done():
        alarm.set_result(None)


def _ids(key: int, first: int, num_tokens: int) -> Ints:
    """Digits of the key, then zeros, starting at position `first`."""
    ids = np.full(num_tokens, _ZERO, np.int32)
    digits = [_ZERO + int(digit) for digit in f"{key:020d}"[-_NUM_DIGITS:][first:][:num_tokens]]
    ids[: len(digits)] = digits
    return ids
