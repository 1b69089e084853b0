"""What the rooms above ask of an engine. Each backend file implements some of these and nothing more.

Every method is a coroutine, so that one thread can carry all roles: a generator gives way after every decode step, a
trainer after every micro-batch. `submit` and `events` are batched both ways.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

import numpy as np

from roll.algorithms.recipe import Objective
from roll.types import Batch, Digest, Finish, Sampling, record
from roll.weights.plan import Plan

if TYPE_CHECKING:
    import torch

    from roll.types import Floats, Ints

Part = Literal["weights", "optimizer", "kv"]


@record
class Request:
    """One reply to be sampled."""

    id: str
    ids: tuple[int, ...]
    """The whole context: prompt, earlier turns, and what was sampled of this reply before an interruption."""
    max_new_tokens: int
    sampling: Sampling
    stop: frozenset[int]
    """Ids that end the reply; the one sampled is part of it."""
    key: int
    """Where this reply's noise comes from; see `noise_key`."""
    produced: int = 0
    """Tokens of this reply that are already in `ids`, so that noise goes on where it stopped."""
    family: str = ""
    """Requests of one family begin alike, so a generator that has one of them warm does less for the next."""


@record
class Output:
    """What a generator has sampled of one request since its last output. Its arrays are the receiver's from then on."""

    id: str
    ids: Ints
    logprobs: Floats
    """Under the distribution each token was drawn from."""
    version: int
    """Of the weights that sampled all of these."""
    finish: Finish | None = None
    """None while the request goes on."""

    @classmethod
    def of(
        cls, id: str, ids: Sequence[int], logprobs: Sequence[float], *, version: int, finish: Finish | None = None
    ) -> Output:
        """An output of plain numbers."""
        rows = np.array(ids, np.int32), np.array(logprobs, np.float32)
        return cls(id=id, ids=rows[0], logprobs=rows[1], version=version, finish=finish)


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistics:
    """What a generator has counted since it started."""

    preempted: int = 0
    """Requests it had to push out of memory and begin again: a sign that it was given too many."""


class Scorer(Protocol):
    """Reads a batch and says how likely its tokens are."""

    async def start(self) -> None: ...

    async def logprobs(self, batch: Batch, *, sampling: Sampling | None = None) -> torch.Tensor:
        """[tokens] fp32, entry t about token t; 0 for the first token of a sequence.

        Under the distribution that rollouts are drawn from, unless `sampling` names another.
        """
        ...

    async def values(self, batch: Batch) -> torch.Tensor:
        """[tokens] fp32: entry t is the value of the state in which token t was chosen; 0 for the first token."""
        ...

    async def stop(self) -> None: ...


class Trainer(Scorer, Protocol):
    """Owns the weights being trained."""

    async def update(self, batch: Batch, objective: Objective) -> dict[str, float]:
        """One optimizer step on the whole batch. A non-finite one is refused: weights stay, `loss/refused` is 1."""
        ...

    async def send(self, plan: Plan, version: int) -> Digest: ...

    async def save(self, path: Path, *, resumable: bool = True) -> None:
        """A Hugging Face model directory; with what `load` needs to go on exactly, if resumable."""
        ...

    async def load(self, path: Path) -> None: ...


class Unhurried(Protocol):
    """A trainer that can go on while what it saves is being written."""

    async def save(self, path: Path, *, resumable: bool = True, wait: bool = True) -> None:
        """As a trainer's; without `wait` it is done once there is a copy, and one such save may be under way."""
        ...

    async def written(self) -> bool:
        """Whether what was saved last is on disk; raises what went wrong with it."""
        ...


class Adapted(Protocol):
    """A trainer of adapters, which has the model that they stand beside as well."""

    async def base_logprobs(self, batch: Batch) -> torch.Tensor:
        """What `logprobs` says, as if there were no adapters: a reference that takes no memory."""
        ...


class Generator(Protocol):
    """Samples replies with the newest weights it was given.

    submit      never waits
    events      waits until something was sampled, at most `max_wait_s`; this is also when the engine works
    abort       never waits; partial tokens come back through `events`, with finish `abort`
    receive     only while paused and empty: nobody serves a mixture
    """

    async def start(self) -> None: ...

    async def submit(self, requests: Sequence[Request]) -> None: ...

    async def events(self, max_wait_s: float) -> list[Output]: ...

    async def abort(self, ids: Sequence[str] | None = None) -> None:
        """End these requests, running or queued; None means all."""
        ...

    async def pause(self) -> None: ...

    async def resume(self, version: int) -> None: ...

    async def receive(self, plan: Plan, version: int) -> Digest: ...

    async def stop(self) -> None: ...


class Counting(Protocol):
    """A generator that says how it fares."""

    async def statistics(self) -> Statistics: ...


class Probed(Protocol):
    """A generator whose serving can be held against a trainer's own arithmetic."""

    async def probe(self, ids: Sequence[int], num_new: int) -> Output:
        """What it says of `ids` after the first, then of `num_new` tokens more that it chooses greedily.

        Logprobs are at temperature 1. Those of `ids` are computed afresh; the new tokens go the way of any request,
        through whatever cache of prefixes there is. Only while paused and empty.
        """
        ...


class Resident(Protocol):
    """Whatever shares a device and can make room on it."""

    async def offload(self, parts: Sequence[Part]) -> None: ...

    async def onload(self, parts: Sequence[Part]) -> None: ...
