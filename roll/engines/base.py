"""Protocols of engines. A backend implements some of them.

Every method is a coroutine, so that one thread can run all roles: a generator yields after every decode step, a trainer
after every micro-batch. `submit` and `events` are batched in both directions.
"""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

import numpy as np

from roll.algorithms.distillation import Distillation, TeacherTokens
from roll.algorithms.recipe import Objective
from roll.errors import EngineFailed
from roll.types import Batch, Finish, Sampling, record
from roll.weights.digest import Digest

if TYPE_CHECKING:
    import torch

    from roll.types import Experts, Floats, Ints

Part = Literal["weights", "optimizer", "kv"]


@record
class Request:
    """One response to sample."""

    id: str
    ids: tuple[int, ...]
    """The whole context: prompt, earlier turns, and tokens of this response sampled before an interruption."""
    max_new_tokens: int
    sampling: Sampling
    stop: frozenset[int]
    """Ids that end the response; the sampled one is part of it."""
    key: int
    """Seed of this response's noise; see `noise_key`."""
    produced: int = 0
    """Number of tokens of this response already in `ids`, so that its noise continues from there."""
    family: str = ""
    """Requests of one family share a prefix, so a generator that has it cached computes less for the next one."""


@record
class Output:
    """Tokens that a generator has sampled for one request since its last output. The receiver owns the arrays."""

    id: str
    ids: Ints
    logprobs: Floats
    """Logprobs under the distribution each token was drawn from."""
    version: int
    """Version of the weights that sampled all of these tokens."""
    finish: Finish | None = None
    """None while the request is running."""
    experts: Experts | None = None
    """[passes, layers, k] of the last output of a request: the experts of its last passes, ending with the one that
    sampled the last token. None if they are not recorded."""

    @classmethod
    def of(
        cls,
        id: str,
        ids: Sequence[int],
        logprobs: Sequence[float],
        *,
        version: int,
        finish: Finish | None = None,
        experts: Experts | None = None,
    ) -> Output:
        """An output from plain numbers."""
        rows = np.array(ids, np.int32), np.array(logprobs, np.float32)
        return cls(id=id, ids=rows[0], logprobs=rows[1], version=version, finish=finish, experts=experts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistics:
    """Counts of a generator since it started."""

    preempted: int = 0
    """Requests evicted from memory and restarted: a sign of too many concurrent requests."""


class LogprobModel(Protocol):
    """Computes logprobs or values of a batch."""

    async def start(self) -> None: ...

    async def logprobs(self, batch: Batch, *, sampling: Sampling | None = None) -> torch.Tensor:
        """[tokens] fp32, entry t for token t; 0 for the first token of a sequence.

        Under the distribution that rollouts are sampled from, unless `sampling` names another.
        """
        ...

    async def values(self, batch: Batch) -> torch.Tensor:
        """[tokens] fp32: entry t is the value of the state before token t; 0 for the first token."""
        ...

    async def stop(self) -> None: ...


class Trainer(LogprobModel, Protocol):
    """Owns the weights being trained."""

    async def update(self, batch: Batch, objective: Objective) -> dict[str, float]:
        """One optimizer step on the whole batch. A non-finite one is skipped: weights stay, `loss/refused` is 1."""
        ...

    async def send(self, version: int) -> Digest: ...

    async def save(self, path: Path, *, resumable: bool = True) -> None:
        """Write a Hugging Face model directory; if `resumable`, with all state that `load` needs to resume exactly."""

    async def load(self, path: Path) -> None: ...


class AsyncSaver(Protocol):
    """A trainer that can continue while a save is being written."""

    async def save(self, path: Path, *, resumable: bool = True, wait: bool = True) -> None:
        """As `Trainer.save`; without `wait` it returns once the state is copied. One such save may be in flight."""

    async def save_completed(self) -> bool:
        """Whether the last save is on disk; raises the error that it failed with."""
        ...


class HasEntropies(Protocol):
    """A trainer that measures entropies in the pass that computes logprobs."""

    async def logprobs_and_entropies(self, batch: Batch) -> torch.Tensor:
        """[2, tokens] fp32: `logprobs`, and the entropies in nats of the distributions that tokens are drawn from."""
        ...


class HasBaseModel(Protocol):
    """A trainer of adapters, which also holds their base model."""

    async def base_logprobs(self, batch: Batch) -> torch.Tensor:
        """`logprobs` of the base model without adapters: a reference that takes no memory."""
        ...


@record
class OutputLayer:
    """The map from hidden states to logits."""

    weight: torch.Tensor
    """[vocab, hidden]"""
    cap: float | None = None
    """Smooth limit of the absolute value of logits; None: there is none."""


class TeacherModel(LogprobModel, Protocol):
    """A frozen model whose distributions a student learns."""

    async def output_layer(self) -> OutputLayer:
        """Its output layer, on the host."""
        ...

    async def hidden_states(self, batch: Batch) -> TeacherTokens:
        """The states before the output layer for the trained tokens."""
        ...

    async def most_likely(self, batch: Batch, num: int, objective: Distillation) -> TeacherTokens:
        """The `num` most likely tokens for the trained tokens, at the temperature of the objective."""
        ...


class Distiller(Trainer, Protocol):
    """A trainer that can learn the distributions of a teacher."""

    async def receive_teacher(self, layer: OutputLayer) -> None:
        """Keep the output layer for hidden states of the teacher."""

    async def distil(self, batch: Batch, teacher: TeacherTokens, objective: Distillation) -> dict[str, float]:
        """`update` towards the teacher; also returns `loss/divergence` and `loss/surprise`."""
        ...

    async def distillation_losses(self, batch: Batch, teacher: TeacherTokens, objective: Distillation) -> torch.Tensor:
        """[3, trained] fp32: loss, divergence and negative logprob of each trained token."""
        ...


class Generator(Protocol):
    """Samples responses with the newest weights it has received.

    submit      never waits
    events      waits until a token is sampled, at most `max_wait_s`; the engine runs at least during this call
    abort       never waits; partial tokens come back through `events`, with finish `abort`
    receive     only while paused and empty: no step may see a mixture of versions
    """

    async def start(self) -> None: ...

    async def submit(self, requests: Sequence[Request]) -> None: ...

    async def events(self, max_wait_s: float) -> list[Output]: ...

    async def abort(self, ids: Sequence[str] | None = None) -> None:
        """End these requests, running or queued; None means all."""

    async def pause(self) -> None: ...

    async def resume(self, version: int) -> None: ...

    async def receive(self, version: int) -> Digest: ...

    async def stop(self) -> None: ...


@dataclass(slots=True, kw_only=True)
class ActiveRequest:
    """A request in an engine, with its tokens so far."""

    request: Request
    ids: list[int] = field(default_factory=list[int])
    logprobs: list[float] = field(default_factory=list[float])
    num_reported: int = 0
    name: str = ""
    """What the engine calls it, if that is not its id."""


class SteppedGenerator(ABC):
    """The calls of a `Generator` that do not depend on its engine, which runs step by step in the caller's thread."""

    def __init__(self, max_seq_len: int) -> None:
        self._max_seq_len = max_seq_len
        self._outputs: list[Output] = []
        self._version, self._paused = 0, False
        self._changed = asyncio.Event()
        """Set where the engine may have something to do again."""
        self.continuous = False
        """Whether the engine also runs between two calls of `events`: in a separate process, where a call takes
        milliseconds to come back. Otherwise it runs during these calls, and other roles between them."""
        self._stepping: asyncio.Task[None] | None = None
        self._reported = asyncio.Event()
        """Set where there may be outputs."""

    @property
    @abstractmethod
    def _busy(self) -> bool:
        """Whether there are requests, running or queued."""

    @abstractmethod
    def _advance(self) -> None:
        """Run one step of the engine."""

    async def events(self, max_wait_s: float) -> list[Output]:
        await (self._wait_for_outputs(max_wait_s) if self.continuous else self._step_for_outputs(max_wait_s))
        outputs, self._outputs = self._outputs, []
        return outputs

    async def _wait_for_outputs(self, max_wait_s: float) -> None:
        self._stepping = stepping = self._stepping or asyncio.create_task(self._step())
        self._reported.clear()
        if not self._outputs:
            reported = asyncio.create_task(self._reported.wait())
            try:
                await asyncio.wait([reported, stepping], timeout=max_wait_s, return_when=asyncio.FIRST_COMPLETED)
            finally:
                reported.cancel()
        if stepping.done():
            self._stepping = None
            stepping.result()  # raises the error of the engine

    async def _step(self) -> None:
        """Run the engine for as long as the process."""
        while True:
            if self._paused or not self._busy:
                self._changed.clear()
                await self._changed.wait()
            else:
                self._advance()
                await asyncio.sleep(0)

    def _end_stepping(self) -> None:
        if self._stepping is not None:
            self._stepping.cancel()
            self._stepping = None

    async def _step_for_outputs(self, max_wait_s: float) -> None:
        deadline = time.monotonic() + max_wait_s
        while not self._outputs and (left := deadline - time.monotonic()) > 0:
            if self._paused or not self._busy:
                self._changed.clear()
                try:
                    async with asyncio.timeout(left):  # wait_for may swallow a cancellation that arrives with the event
                        await self._changed.wait()
                except TimeoutError:
                    break
                continue
            self._advance()
            await asyncio.sleep(0)

    async def pause(self) -> None:
        self._paused = True

    async def resume(self, version: int) -> None:
        self._version, self._paused = version, False
        self._changed.set()

    def _check_lengths(self, requests: Sequence[Request]) -> None:
        for request in requests:
            if not request.ids or len(request.ids) + request.max_new_tokens > self._max_seq_len:
                raise EngineFailed(
                    f"request {request.id}: {len(request.ids)} tokens and {request.max_new_tokens} new ones exceed "
                    f"{self._max_seq_len}; raise rollout.max_seq_len"
                )

    def _report(self, row: ActiveRequest, finish: Finish | None, experts: Experts | None = None) -> None:
        """Output the tokens since the last report, and the experts of the request's passes."""
        new = slice(row.num_reported, None)
        if experts is not None:
            experts = experts[: len(row.request.ids) + len(row.ids) - 1]
        self._outputs.append(
            Output.of(
                row.request.id,
                row.ids[new],
                row.logprobs[new],
                version=self._version,
                finish=finish,
                experts=experts,
            )
        )
        row.num_reported = len(row.ids)
        self._reported.set()


class HasStatistics(Protocol):
    """A generator that reports counts."""

    async def statistics(self) -> Statistics: ...


class Probeable(Protocol):
    """A generator whose logprobs can be compared with those of a trainer."""

    async def probe(self, ids: Sequence[int], num_new: int) -> Output:
        """Logprobs of `ids` after the first, then `num_new` greedily chosen tokens with theirs, at temperature 1.

        Those of `ids` are computed without any cache; the new tokens take the path of any request, including a prefix
        cache if there is one. Only while paused and empty.
        """
        ...


class Offloadable(Protocol):
    """An engine that shares a device and can free memory on it."""

    async def offload(self, parts: Sequence[Part]) -> None: ...

    async def onload(self, parts: Sequence[Part]) -> None: ...
