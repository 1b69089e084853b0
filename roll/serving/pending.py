"""One request on its way through the router, and what was sampled for it so far."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from math import isfinite
from typing import TYPE_CHECKING

import numpy as np

from roll.engines.base import Output, Request
from roll.errors import EngineFailed
from roll.types import Finish, record

if TYPE_CHECKING:
    import asyncio

    from roll.types import Floats, Ints

    Future = asyncio.Future["Sampled"]

Note = Callable[[Output], None]
"""Hears of every part of a reply, its end included."""


@record
class Sampled:
    """Everything sampled for one request, over however many versions it took."""

    ids: Ints = field(default_factory=lambda: np.zeros(0, np.int32))
    logprobs: Floats = field(default_factory=lambda: np.zeros(0, np.float32))
    versions: Ints = field(default_factory=lambda: np.zeros(0, np.int32))
    """One a token; they only grow."""
    finish: Finish = Finish.ABORT
    queued_s: float = 0.0
    """How long no generator had the request."""


class Versions:
    """Rows that have one version for every token, all cut from one: to make each of them costs more than a request."""

    def __init__(self) -> None:
        self._version, self._row = -1, np.zeros(0, np.int32)

    def row(self, version: int, num_tokens: int) -> Ints:
        """So many tokens of this version; not to be written to."""
        if version != self._version or num_tokens > len(self._row):
            self._version, self._row = version, np.full(max(num_tokens, len(self._row)), version, np.int32)
            self._row.flags.writeable = False
        return self._row[:num_tokens]


@dataclass(slots=True, kw_only=True, eq=False)
class Pending:
    """A request on its way, with what it has so far."""

    request: Request
    place: tuple[int, int]
    """Its order, and when it was asked for; lower ones go first."""
    future: Future
    note: Note | None
    parts: list[Sampled]
    """What there is of the reply, by who sampled it when."""
    num: int
    """Tokens of it."""
    rank: int | None = None
    """The generator that has it; None while it waits for dispatch."""
    name: str = ""
    """Under which that generator knows it. Every dispatch has its own, so that late answers find nobody."""
    seen: float
    """When something was last heard of it; while it waits for dispatch, since when."""
    queued_s: float = 0.0
    """How long it has waited for dispatch so far."""
    redispatches: int = 0
    avoid: int | None = None

    @property
    def left(self) -> int:
        return self.request.max_new_tokens - self.num

    @property
    def complete(self) -> Finish | None:
        """How it ended, if what it has is already a whole reply."""
        if self.num and int(self.parts[-1].ids[-1]) in self.request.stop:
            return Finish.STOP
        return Finish.LENGTH if self.num >= self.request.max_new_tokens else None

    def remainder(self) -> Request:
        """What is still to be sampled: prompt and partial reply in, the rest of the budget out."""
        asked, parts = self.request, self.parts
        return Request(
            id=self.name,
            ids=(*asked.ids, *(id for part in parts for id in part.ids.tolist())) if parts else asked.ids,
            max_new_tokens=asked.max_new_tokens - self.num,
            sampling=asked.sampling,
            stop=asked.stop,
            key=asked.key,
            produced=asked.produced + self.num,
            family=asked.family,
        )

    def resolve(self, finish: Finish) -> None:
        if not self.future.done():
            self.future.set_result(_joined(self.parts, finish, self.queued_s))

    def fail(self, reason: str) -> None:
        if not self.future.done():
            self.future.set_exception(EngineFailed(f"request {self.request.id}: {reason}"))

    def fault(self, output: Output, *, spoken: bool = True) -> str:
        """What cannot be true of this answer, if something cannot; without `spoken` its logprobs are not known."""
        num_new, logprobs = len(output.ids), output.logprobs
        if self.num + num_new > self.request.max_new_tokens:
            return f"{self.num + num_new} tokens where {self.request.max_new_tokens} were asked for"
        if len(logprobs) != num_new:
            return f"{num_new} tokens and {len(logprobs)} logprobs"
        if spoken and not _finite(logprobs):
            return "logprobs that are not finite"
        return ""


def _joined(parts: Sequence[Sampled], finish: Finish, queued_s: float) -> Sampled:
    if not parts:
        return Sampled(finish=finish, queued_s=queued_s)
    if len(parts) == 1:
        whole = parts[0].finish is finish  # then it was made when the request had waited for the last time
        return parts[0] if whole else replace(parts[0], finish=finish, queued_s=queued_s)
    return Sampled(
        ids=np.concatenate([part.ids for part in parts]),
        logprobs=np.concatenate([part.logprobs for part in parts]),
        versions=np.concatenate([part.versions for part in parts]),
        finish=finish,
        queued_s=queued_s,
    )


def _finite(row: Floats) -> bool:
    return isfinite(row.dot(row)) or bool(np.isfinite(row).all())  # the first is quick
