"""Engines without a model, for tests of the rooms above. Each fulfils its protocol's contract."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import torch

from roll.algorithms.recipe import Objective
from roll.engines.base import Output, Part, Request, Statistics
from roll.errors import EngineFailed
from roll.types import Batch, Finish, Sampling
from roll.weights.digest import Digest


class FakeTrainer:
    """`Trainer` and `Offloadable`; its only weight is the number of updates."""

    def __init__(self) -> None:
        self.num_updates = 0
        self.batches: list[Batch] = []
        self.sent: list[int] = []
        self.resident: set[Part] = set()

    async def start(self) -> None:
        self.resident = {"weights", "optimizer"}

    async def stop(self) -> None:
        self.resident = set()

    async def logprobs(self, batch: Batch, *, sampling: Sampling | None = None) -> torch.Tensor:
        return batch.sampler_logprobs.clone()

    async def logprobs_and_entropies(self, batch: Batch) -> torch.Tensor:
        return torch.stack([await self.logprobs(batch), torch.ones(batch.num_tokens)])

    async def values(self, batch: Batch) -> torch.Tensor:
        return torch.zeros(batch.num_tokens)

    async def update(self, batch: Batch, objective: Objective) -> dict[str, float]:
        assert batch.advantages is not None
        self.batches.append(batch)
        await asyncio.sleep(0)
        finite = bool(torch.isfinite(batch.advantages).all())
        self.num_updates += finite
        return {"loss/policy": 0.0, "loss/grad_norm": 0.0, "loss/refused": float(not finite)}

    async def send(self, version: int) -> Digest:
        self.sent.append(version)
        return Digest({"fake": (version, version * version)})

    async def save(self, path: Path, *, resumable: bool = True) -> None:
        path.mkdir(parents=True, exist_ok=True)
        (path / "model.safetensors").write_text(str(self.num_updates))

    async def load(self, path: Path) -> None:
        self.num_updates = int((path / "model.safetensors").read_text())

    async def offload(self, parts: Sequence[Part]) -> None:
        self.resident -= set(parts)

    async def onload(self, parts: Sequence[Part]) -> None:
        self.resident |= set(parts)


class FakeGenerator:
    """`Generator` and `Offloadable`; every request gains one token per step, `10 + (key + position) % 10`.

    Requests whose key is in `stragglers` start after `delay` steps.
    """

    def __init__(self, *, max_seq_len: int = 1024, stragglers: frozenset[int] = frozenset(), delay: int = 50) -> None:
        self.max_seq_len, self.stragglers, self.delay = max_seq_len, stragglers, delay
        self.version, self.paused = 0, False
        self.resident: set[Part] = set()
        self._requests: dict[str, tuple[Request, list[int], int]] = {}
        self._outputs: list[Output] = []
        self.received: list[int] = []
        self.preempted = 0

    async def start(self) -> None:
        self.resident = {"weights", "kv"}

    async def statistics(self) -> Statistics:
        return Statistics(preempted=self.preempted)

    async def stop(self) -> None:
        self.resident = set()

    async def submit(self, requests: Sequence[Request]) -> None:
        for request in requests:
            if not request.ids or len(request.ids) + request.max_new_tokens > self.max_seq_len:
                raise EngineFailed(f"request {request.id}: exceeds max_seq_len {self.max_seq_len}")
        for request in requests:  # all or none
            self._requests[request.id] = (request, [], self.delay if request.key in self.stragglers else 0)

    async def events(self, max_wait_s: float) -> list[Output]:
        if not self._outputs and not self.paused:
            for request, ids, delay in list(self._requests.values()):
                self._requests[request.id] = (request, ids, max(0, delay - 1))
                if delay == 0:
                    self._extend(request, ids)
        await asyncio.sleep(0 if self._outputs or self._requests else min(max_wait_s, 0.001))
        outputs, self._outputs = self._outputs, []
        return outputs

    def _extend(self, request: Request, ids: list[int]) -> None:
        ids.append(10 + (request.key + request.produced + len(ids)) % 10)
        if ids[-1] in request.stop:
            self._end(request, ids, Finish.STOP)
        elif len(ids) == request.max_new_tokens:
            self._end(request, ids, Finish.LENGTH)

    def _end(self, request: Request, ids: list[int], finish: Finish) -> None:
        del self._requests[request.id]
        self._outputs.append(Output.of(request.id, ids, (-1.0,) * len(ids), version=self.version, finish=finish))

    async def abort(self, ids: Sequence[str] | None = None) -> None:
        for request, sampled, _ in list(self._requests.values()):
            if ids is None or request.id in ids:
                self._end(request, sampled, Finish.ABORT)

    async def pause(self) -> None:
        self.paused = True

    async def resume(self, version: int) -> None:
        self.version, self.paused = version, False

    async def receive(self, version: int) -> Digest:
        assert self.paused and not self._requests, "weights change only while nothing is served"
        self.received.append(version)
        return Digest({"fake": (version, version * version)})

    async def probe(self, ids: Sequence[int], num_new: int) -> Output:
        assert self.paused and not self._requests, "probes run only while nothing is served"
        tokens = (*ids[1:], *(10 + position % 10 for position in range(num_new)))
        return Output.of("probe", tokens, (-1.0,) * len(tokens), version=self.version, finish=Finish.LENGTH)

    async def offload(self, parts: Sequence[Part]) -> None:
        self.resident -= set(parts)

    async def onload(self, parts: Sequence[Part]) -> None:
        self.resident |= set(parts)
