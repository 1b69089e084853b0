"""Devices of the trainer on which generators serve while it waits for a batch; the other generators serve always.

| call | waits for | woken by |
|---|---|---|
| `enter("update")` | a move in progress, the requests of the generators that leave, then the moves | the workers |
| `enter("weight_sync")`, `enter("rollout")` | the moves, if these generators serve | the workers |
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field

from roll.errors import WorkerDied
from roll.journal.events import DevicesReturned
from roll.journal.store import Journal
from roll.placement.records import Phase
from roll.serving.device_sharing import DeviceSharing
from roll.serving.lending_rule import LendingRule


@dataclass(slots=True, kw_only=True)
class LentDevices(DeviceSharing):
    """Takes devices back before the trainer works. Initially they are lent: the first version is published to all."""

    journal: Journal
    rule: LendingRule
    ranks: tuple[int, ...]
    """Generators on devices of other roles."""
    moving: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while devices change hands."""
    waiting: asyncio.Event = field(default_factory=asyncio.Event)
    """Set while the trainer waits for a batch."""
    _waits_since: float = 0.0

    @property
    def serving(self) -> tuple[int, ...]:
        """Generators that serve on lent devices."""
        return tuple(rank for rank in self.ranks if rank not in self.router.absent)

    @property
    def waited_s(self) -> float:
        """Seconds for which the trainer has waited."""
        return _now() - self._waits_since

    async def enter(self, phase: Phase) -> None:
        """Take the devices back for an update; otherwise move parts only while they are lent."""
        if phase == "update":
            await self._take_back()
        elif self.serving:
            await self.move(phase)
        if phase == "rollout":
            self._waits_since = _now()
            self.waiting.set()

    async def _take_back(self) -> None:
        waited_s, has_waited = self.waited_s, self.waiting.is_set()
        self.waiting.clear()
        async with self.moving:
            ranks, began = self.serving, _now()
            if has_waited:
                self.rule.record_wait(waited_s, lent=bool(ranks))
            withdrawn = await asyncio.gather(*map(self.router.withdraw, ranks))
            await self.move("update")
        if not ranks:
            return
        requests, tokens = (sum(numbers) for numbers in zip(*withdrawn, strict=True))
        self.rule.record_return(_now() - began)
        self.journal.record(
            DevicesReturned(generators=ranks, num_requests=requests, num_tokens=tokens, seconds=_now() - began)
        )

    async def _each_generator(self, call: Callable[[int], Awaitable[None]]) -> None:
        """Dead ones are replaced when they are to serve again."""

        async def call_one(rank: int) -> None:
            with suppress(WorkerDied):
                await call(rank)

        await asyncio.gather(*map(call_one, self.ranks))


def _now() -> float:
    return asyncio.get_running_loop().time()
