"""Engines that do nothing at once, for benchmarks of what lies between them and the controller."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import numpy as np

from roll.algorithms.recipe import Objective
from roll.engines.base import Output, Request
from roll.types import Batch, Digest, Finish
from roll.weights.plan import Plan

_REPLIES = 64


class Answering:
    """`Generator` whose replies are random digits, as long as was asked for; `events` waits like a real engine's."""

    def __init__(self, rank: int, *, num_tokens: int) -> None:
        source = np.random.default_rng(rank)
        self._replies = [
            (
                source.integers(4, 14, num_tokens, np.int32),
                -source.exponential(size=num_tokens).astype(np.float32),
            )
            for _ in range(_REPLIES)
        ]
        self._version, self._paused = 0, False
        self._waiting: list[Request] = []
        self._outputs: list[Output] = []
        self._some = asyncio.Event()

    async def start(self) -> None:
        """Nothing to bring up."""

    async def stop(self) -> None:
        """Nothing to end."""

    async def submit(self, requests: Sequence[Request]) -> None:
        if self._paused:
            self._waiting += requests
        else:
            self._answer(requests)

    async def events(self, max_wait_s: float) -> list[Output]:
        if not self._outputs:
            self._some.clear()
            try:
                async with asyncio.timeout(max_wait_s):
                    await self._some.wait()
            except TimeoutError:
                return []
        found, self._outputs = self._outputs, []
        return found

    async def abort(self, ids: Sequence[str] | None = None) -> None:
        wanted = None if ids is None else set(ids)
        gone = [request for request in self._waiting if wanted is None or request.id in wanted]
        self._waiting = [request for request in self._waiting if wanted is not None and request.id not in wanted]
        for request in gone:
            self._outputs.append(Output.of(request.id, (), (), version=self._version, finish=Finish.ABORT))
        self._some.set()

    async def pause(self) -> None:
        self._paused = True

    async def resume(self, version: int) -> None:
        self._version, self._paused = version, False
        waiting, self._waiting = self._waiting, []
        self._answer(waiting)

    async def receive(self, plan: Plan, version: int) -> Digest:
        """What the fake trainer sends."""
        return Digest({"fake": (version, version * version)})

    def _answer(self, requests: Sequence[Request]) -> None:
        for request in requests:
            ids, logprobs = self._replies[request.key % _REPLIES]
            num = request.max_new_tokens
            self._outputs.append(
                Output(
                    id=request.id,
                    ids=ids[:num],
                    logprobs=logprobs[:num],
                    version=self._version,
                    finish=Finish.LENGTH,
                )
            )
        if requests:
            self._some.set()


class Absorbing:
    """`Trainer` as far as an update goes: takes its shard over, and says how much it was."""

    def __init__(self, rank: int) -> None:
        self.rank = rank

    async def start(self) -> None:
        """Have torch at hand."""
        import torch

        torch.set_num_threads(1)

    async def update(self, batch: Batch, objective: Objective) -> dict[str, float]:
        return {"tokens": float(len(batch.ids)), "loss/refused": 0.0}
