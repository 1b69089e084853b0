"""Protocols of engines. A backend implements some of them.

Every method is a coroutine, so that one thread can run all roles: a generator yields after every decode step, a trainer
after every micro-batch. `submit` and `events` are batched in both directions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

import numpy as np

from roll.algorithms.recipe import Objective
from roll.types import Batch, Digest, Finish, Sampling, record

if TYPE_CHECKING:
    import torch

    from roll.types import Floats, Ints

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

    @classmethod
    def of(
        cls, id: str, ids: Sequence[int], logprobs: Sequence[float], *, version: int, finish: Finish | None = None
    ) -> Output:
        """An output from plain numbers."""
        rows = np.array(ids, np.int32), np.array(logprobs, np.float32)
        return cls(id=id, ids=rows[0], logprobs=rows[1], version=version, finish=finish)


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
        ...

    async def load(self, path: Path) -> None: ...


class AsyncSaver(Protocol):
    """A trainer that can continue while a save is being written."""

    async def save(self, path: Path, *, resumable: bool = True, wait: bool = True) -> None:
        """As `Trainer.save`; without `wait` it returns once the state is copied. One such save may be in flight."""
        ...

    async def save_completed(self) -> bool:
        """Whether the last save is on disk; raises the error that it failed with."""
        ...


class HasBaseModel(Protocol):
    """A trainer of adapters, which also holds their base model."""

    async def base_logprobs(self, batch: Batch) -> torch.Tensor:
        """`logprobs` of the base model without adapters: a reference that takes no memory."""
        ...


class Generator(Protocol):
    """Samples responses with the newest weights it has received.

    submit      never waits
    events      waits until a token is sampled, at most `max_wait_s`; the engine runs during this call
    abort       never waits; partial tokens come back through `events`, with finish `abort`
    receive     only while paused and empty: no step may see a mixture of versions
    """

    async def start(self) -> None: ...

    async def submit(self, requests: Sequence[Request]) -> None: ...

    async def events(self, max_wait_s: float) -> list[Output]: ...

    async def abort(self, ids: Sequence[str] | None = None) -> None:
        """End these requests, running or queued; None means all."""
        ...

    async def pause(self) -> None: ...

    async def resume(self, version: int) -> None: ...

    async def receive(self, version: int) -> Digest: ...

    async def stop(self) -> None: ...


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
