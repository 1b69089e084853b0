"""One request on its way through the router, and what was sampled for it so far."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from roll.engines.base import Output, Request
from roll.errors import EngineFailed
from roll.types import Finish

if TYPE_CHECKING:
    import asyncio

    Future = asyncio.Future["Sampled"]

Note = Callable[[Output], None]
"""Hears of every part of a reply, its end included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampled:
    """Everything sampled for one request, over however many versions it took."""

    ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    versions: tuple[int, ...] = ()
    finish: Finish = Finish.ABORT


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
    seen: float = 0.0
    """When something was last heard of it."""
    redispatches: int = 0
    avoid: int | None = None

    @property
    def left(self) -> int:
        return self.request.max_new_tokens - self.num

    @property
    def complete(self) -> Finish | None:
        """How it ended, if what it has is already a whole reply."""
        if self.num and self.parts[-1].ids[-1] in self.request.stop:
            return Finish.STOP
        return Finish.LENGTH if self.left <= 0 else None

    def remainder(self) -> Request:
        """What is still to be sampled: prompt and partial reply in, the rest of the budget out."""
        return replace(
            self.request,
            id=self.name,
            ids=(*self.request.ids, *(id for part in self.parts for id in part.ids)),
            max_new_tokens=self.left,
            produced=self.request.produced + self.num,
        )

    def resolve(self, finish: Finish) -> None:
        if not self.future.done():
            self.future.set_result(_joined(self.parts, finish))

    def fail(self, reason: str) -> None:
        if not self.future.done():
            self.future.set_exception(EngineFailed(f"request {self.request.id}: {reason}"))

    def fault(self, output: Output) -> str:
        """What cannot be true of this answer, if something cannot."""
        if len(output.ids) > self.left:
            return f"{self.num + len(output.ids)} tokens where {self.request.max_new_tokens} were asked for"
        if len(output.logprobs) != len(output.ids):
            return f"{len(output.ids)} tokens and {len(output.logprobs)} logprobs"
        if not math.isfinite(sum(output.logprobs)) and not all(map(math.isfinite, output.logprobs)):
            return "logprobs that are not finite"
        return ""


def _joined(parts: Sequence[Sampled], finish: Finish) -> Sampled:
    if len(parts) == 1:
        return replace(parts[0], finish=finish)
    return Sampled(
        ids=tuple(id for part in parts for id in part.ids),
        logprobs=tuple(number for part in parts for number in part.logprobs),
        versions=tuple(version for part in parts for version in part.versions),
        finish=finish,
    )
