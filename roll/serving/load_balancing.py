"""Which generator gets the next request: the one with the least to do, or one that knows the beginning already."""

from __future__ import annotations

import heapq
from collections import OrderedDict
from dataclasses import dataclass

_HOMES = 65_536
"""Families whose last generator is remembered."""
_START, _SHRINK = 64, 0.7
"""Where an adaptive limit begins, and what is left of it after a sign of too little memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Concurrency:
    """How many requests one generator may hold; more wait with the router, where they can still go anywhere."""

    limit: int | None = None
    """None: as many as there are."""
    adaptive: bool = False
    """Grow by one for every `limit` requests that end, shrink when the generator had to push requests out."""


class Balance:
    """Tokens outstanding and requests held, generator by generator."""

    def __init__(self, size: int, concurrency: Concurrency | None = None) -> None:
        concurrency = concurrency or Concurrency()
        self._adaptive = concurrency.adaptive
        start = concurrency.limit or (_START if concurrency.adaptive else None)
        self.limits: list[float | None] = [None if start is None else float(start)] * size
        self.tokens, self.held = [0] * size, [0] * size
        self.away: set[int] = set()
        """Those that are being replaced; nothing goes there."""
        self._pushed_out = [0] * size
        self._heap: list[tuple[int, int]] = []  # entries go stale; `_least` drops those
        self._touched = set(range(size))  # those with no entry that holds
        self._homes: OrderedDict[str, int] = OrderedDict()

    def choose(self, prompt: int, family: str, avoid: int | None = None) -> int | None:
        """Where a request with a prompt of so many tokens costs least; None while every generator is full."""
        if len(self.tokens) == 1:
            return 0 if self._free(0) else None
        least = self._least(avoid)
        home = self._homes.get(family) if family else None
        if least is None or home is None or home == avoid or not self._free(home):
            return least
        return home if self.tokens[home] <= self.tokens[least] + prompt else least

    def enter(self, rank: int, tokens: int, family: str) -> None:
        """A request with so many tokens to come goes there."""
        self.held[rank] += 1
        self.tokens[rank] += tokens
        self._touched.add(rank)
        if family and len(self.tokens) > 1:
            self._homes[family] = rank
            self._homes.move_to_end(family)
            if len(self._homes) > _HOMES:
                self._homes.popitem(last=False)

    def progress(self, rank: int, tokens: int) -> None:
        """So many tokens have come."""
        self.tokens[rank] -= tokens
        self._touched.add(rank)

    def leave(self, rank: int, tokens: int, *, ended: bool = False) -> None:
        """A request is gone from there, with so many tokens that will not come; `ended` if it came to its end."""
        self.held[rank] -= 1
        self.tokens[rank] -= tokens
        limit = self.limits[rank]
        if self._adaptive and ended and limit is not None:
            self.limits[rank] = limit + 1 / limit
        self._touched.add(rank)

    def pressed(self, rank: int, pushed_out: int) -> None:
        """The generator has pushed out so many requests since it started."""
        limit = self.limits[rank]
        if self._adaptive and limit is not None and pushed_out > self._pushed_out[rank]:
            self.limits[rank] = max(1.0, limit * _SHRINK)
        self._pushed_out[rank] = pushed_out

    def rejoin(self, rank: int) -> None:
        """One that was away can be chosen again."""
        self.away.discard(rank)
        self._touched.add(rank)

    def _free(self, rank: int) -> bool:
        limit = self.limits[rank]
        if rank in self.away:
            return False
        return limit is None or self.held[rank] < int(limit)

    def _catch_up(self) -> None:
        """An entry for everyone that has changed and has room."""
        for rank in self._touched:
            if self._free(rank):
                heapq.heappush(self._heap, (self.tokens[rank], rank))
        self._touched.clear()
        if len(self._heap) > 64 + 8 * len(self.tokens):
            self._heap = [(tokens, rank) for rank, tokens in enumerate(self.tokens) if self._free(rank)]
            heapq.heapify(self._heap)

    def _least(self, avoid: int | None) -> int | None:
        """Of those with room, the one with the fewest tokens outstanding; `avoid` only where it is the only one."""
        self._catch_up()
        aside: tuple[int, int] | None = None
        found: int | None = None
        while self._heap and found is None:
            tokens, rank = self._heap[0]
            if tokens != self.tokens[rank] or not self._free(rank):
                heapq.heappop(self._heap)
            elif rank == avoid and len(self.tokens) > 1:
                aside = heapq.heappop(self._heap)
            else:
                found = rank
        if aside is not None:
            heapq.heappush(self._heap, aside)
        return found
