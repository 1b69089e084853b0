"""A generator whose decode steps take longer the more sequences it runs, and that prefills contexts."""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass

from roll.engines.base import Request
from roll.sim.clock import VirtualLoop
from roll.sim.engines import EARLY_S, GeneratorSpeed, RunningSequence, SimGenerator
from roll.sim.workload import Lengths, turn_of


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeSpeed:
    """Speed of one generator: a decode step of `n` sequences takes `step_s + n * sequence_s`."""

    slots: int
    """Sequences decoded concurrently; more requests queue inside the generator."""
    step_s: float
    sequence_s: float = 0.0
    prefill_s: float = 0.0
    """Per token of a context; decoding stops meanwhile."""
    contexts: tuple[float, ...] = (0.0,)
    """Tokens of the context of each turn; later turns have that of the last."""
    scale: float = 1.0
    """Tokens that one simulated token represents: fewer tokens simulate faster."""
    receive_s: float = 0.0
    """Time to receive a version of the weights."""
    resume_s: float = 0.0
    """Time to resume serving afterwards."""


class BatchedGenerator(SimGenerator):
    """`SimGenerator` whose clock counts decode steps, which all running sequences take together."""

    def __init__(self, lengths: Lengths, speed: DecodeSpeed, loop: VirtualLoop) -> None:
        plain = GeneratorSpeed(slots=speed.slots, tokens_per_s=1.0, receive_s=speed.receive_s, resume_s=speed.resume_s)
        super().__init__(lengths, plain, loop)
        self._batch = speed
        self._at = self._steps = self._prefill_left_s = 0.0
        """Time up to which decoding has progressed, decode steps until then, and prefill that comes before others."""

    def _settle(self) -> None:
        now = self._now()
        while (end := self._next_end_s()) <= now + EARLY_S:
            self._advance(end)
            target, _, id = heapq.heappop(self._ends)
            self._steps = max(self._steps, target)
            self._end(self._running[id], end, self._running[id].num_tokens, self._running[id].finish)
            self._fill(end)
        self._advance(now)

    def _begin(self, request: Request, at: float) -> None:
        self._advance(at)
        contexts = self._batch.contexts
        context = contexts[min(turn_of(request), len(contexts) - 1)] + request.produced * self._batch.scale
        self._prefill_left_s += context * self._batch.prefill_s
        super()._begin(request, at)

    def _draw(self, request: Request) -> float:
        return super()._draw(request) / self._batch.scale

    def _end_of(self, item: RunningSequence) -> float:
        return self._steps + item.num_tokens

    def _num_done(self, item: RunningSequence) -> int:
        return math.floor(self._steps - (item.end - item.num_tokens) + EARLY_S)

    def _shift(self, slept_s: float) -> None:
        self._at = self._loop.time()

    def _next_end(self) -> float:
        return math.inf if self._paused_at is not None else self._next_end_s()

    def _next_end_s(self) -> float:
        """Time of the next end, if nothing else begins before."""
        while self._ends and not self._is_current(*self._ends[0][1:]):
            heapq.heappop(self._ends)
        if not self._ends:
            return math.inf
        return self._at + self._prefill_left_s + max(0.0, self._ends[0][0] - self._steps) * self._step_s

    def _is_current(self, number: int, id: str) -> bool:
        item = self._running.get(id)
        return item is not None and item.number == number

    @property
    def _step_s(self) -> float:
        return self._batch.scale * (self._batch.step_s + self._batch.sequence_s * len(self._running))

    def _advance(self, to: float) -> None:
        """Prefill and decode until this time."""
        elapsed_s = max(0.0, to - self._at)
        self._at += elapsed_s
        prefill_s = min(elapsed_s, self._prefill_left_s)
        self._prefill_left_s -= prefill_s
        if self._running and self._step_s > 0:
            self._steps += (elapsed_s - prefill_s) / self._step_s
