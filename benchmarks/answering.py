"""Engines that answer immediately without computing, for benchmarks of the controller and of remote calls."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import numpy as np

from roll.algorithms.recipe import Objective
from roll.engines.base import Output, Request
from roll.types import Batch, Finish
from roll.weights.digest import Digest

_NUM_RESPONSES = 64


class InstantGenerator:
    """`Generator` with random digits of the requested length as responses; `events` waits as in a real engine."""

    def __init__(self, rank: int, *, num_tokens: int) -> None:
        rng = np.random.default_rng(rank)
        self._responses = [
            (
                rng.integers(4, 14, num_tokens, np.int32),
                -rng.exponential(size=num_tokens).astype(np.float32),
            )
            for _ in range(_NUM_RESPONSES)
        ]
        self._version, self._paused = 0, False
        self._waiting: list[Request] = []
        self._outputs: list[Output] = []
        self._has_outputs = asyncio.Event()

    async def start(self) -> None:
        """No resources to acquire."""

    async def stop(self) -> None:
        """No resources to release."""

    async def submit(self, requests: Sequence[Request]) -> None:
        if self._paused:
            self._waiting += requests
        else:
            self._answer(requests)

    async def events(self, max_wait_s: float) -> list[Output]:
        if not self._outputs:
            self._has_outputs.clear()
            try:
                async with asyncio.timeout(max_wait_s):
                    await self._has_outputs.wait()
            except TimeoutError:
                return []
        outputs, self._outputs = self._outputs, []
        return outputs

    async def abort(self, ids: Sequence[str] | None = None) -> None:
        selected = None if ids is None else set(ids)
        aborted = [request for request in self._waiting if selected is None or request.id in selected]
        self._waiting = [request for request in self._waiting if selected is not None and request.id not in selected]
        for request in aborted:
            self._outputs.append(Output.of(request.id, (), (), version=self._version, finish=Finish.ABORT))
        self._has_outputs.set()

    async def pause(self) -> None:
        self._paused = True

    async def resume(self, version: int) -> None:
        self._version, self._paused = version, False
        waiting, self._waiting = self._waiting, []
        self._answer(waiting)

    async def receive(self, version: int) -> Digest:
        """The digest that the fake trainer sends."""
        return Digest({"fake": (version, version * version)})

    def _answer(self, requests: Sequence[Request]) -> None:
        for request in requests:
            ids, logprobs = self._responses[request.key % _NUM_RESPONSES]
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
            self._has_outputs.set()


class CountingTrainer:
    """`Trainer` whose update does nothing with its shard but count the tokens; it implements no other method."""

    def __init__(self, rank: int) -> None:
        self.rank = rank

    async def start(self) -> None:
        """Import torch, so that the first update does not."""
        import torch

        torch.set_num_threads(1)

    async def update(self, batch: Batch, objective: Objective) -> dict[str, float]:
        return {"tokens": float(len(batch.ids)), "loss/refused": 0.0}
