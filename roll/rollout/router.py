"""One view over all generators of a pool: requests go in, replies come out, versions change in between."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from roll.cluster.handle import Cluster
from roll.engines.base import Generator, Output, Request
from roll.errors import EngineFailed
from roll.types import Finish

if TYPE_CHECKING:
    Future = asyncio.Future["Sampled"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampled:
    """Everything sampled for one request, over however many versions it took."""

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    versions: tuple[int, ...]
    finish: Finish


@dataclass(slots=True, kw_only=True)
class _Pending:
    """A request on its way, with what it has so far."""

    request: Request
    future: Future
    rank: int | None = None
    """The generator that has it; None while it waits for dispatch."""
    ids: list[int] = field(default_factory=list[int])
    logprobs: list[float] = field(default_factory=list[float])
    versions: list[int] = field(default_factory=list[int])

    @property
    def left(self) -> int:
        return self.request.max_new_tokens - len(self.ids)

    def remainder(self) -> Request:
        """What is still to be sampled: prompt and partial reply in, the rest of the budget out."""
        return replace(
            self.request,
            ids=(*self.request.ids, *self.ids),
            max_new_tokens=self.left,
            produced=self.request.produced + len(self.ids),
        )


class Router:
    """Sends each request to the generator with the fewest tokens outstanding, and carries it across versions.

    sample(request)   waits for the whole reply                woken by the generator's outputs
    hold()            waits until every dispatched request     woken by the generator's outputs
                      has come back, partial tokens kept
    release(version)  never waits; what was held goes out again
    """

    def __init__(self, generators: Cluster[Generator], *, max_wait_s: float = 1.0) -> None:
        self._generators, self._max_wait_s = generators, max_wait_s
        self._pending: dict[str, _Pending] = {}
        self._outstanding = [0] * generators.size
        self._abandoned: list[tuple[int, str]] = []
        self._held = True
        """Nothing goes out before the first `release` says which version is served."""
        self._work, self._returned, self._sending = asyncio.Event(), asyncio.Event(), asyncio.Lock()

    async def run(self) -> None:
        """Move requests and outputs until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._dispatch())
            for rank in range(self._generators.size):
                tasks.create_task(self._collect(rank))

    async def sample(self, request: Request) -> Sampled:
        """The reply to one request. Cancelling this aborts the request."""
        assert request.id not in self._pending, f"request {request.id} is under way already"
        pending = _Pending(request=request, future=asyncio.get_running_loop().create_future())
        self._pending[request.id] = pending
        self._work.set()
        try:
            return await pending.future
        finally:
            del self._pending[request.id]
            if pending.rank is not None:  # cancelled while a generator has it
                self._abandoned.append((pending.rank, request.id))
                self._outstanding[pending.rank] -= pending.left
                self._work.set()
                self._returned.set()

    async def hold(self) -> None:
        """Stop dispatch and take back all that runs or queues."""
        self._held = True
        async with self._sending:  # a request handed over after the abort would never come back
            await self._generators.each(Generator.pause)
            await self._generators.each(Generator.abort, None)
        while any(item.rank is not None for item in self._pending.values()):
            self._returned.clear()
            await self._returned.wait()

    async def release(self, version: int) -> None:
        """Go on, with every generator at this version."""
        await self._generators.each(Generator.resume, version)
        self._held = False
        self._work.set()

    async def _dispatch(self) -> None:
        while True:
            await self._work.wait()
            self._work.clear()
            await asyncio.sleep(0)  # whoever is about to ask as well goes into the same call
            abandoned, self._abandoned = self._abandoned, []
            for rank, request_id in abandoned:
                await self._generators.at(rank, Generator.abort, [request_id])
            async with self._sending:
                if not self._held:
                    await self._send([item for item in self._pending.values() if item.rank is None])

    async def _send(self, waiting: Sequence[_Pending]) -> None:
        shares: list[list[_Pending]] = [[] for _ in self._outstanding]
        for item in waiting:
            item.rank = self._outstanding.index(min(self._outstanding))
            self._outstanding[item.rank] += item.left
            shares[item.rank].append(item)
        for rank, share in enumerate(shares):
            if share:
                await self._submit(rank, share)

    async def _submit(self, rank: int, share: Sequence[_Pending]) -> None:
        """Hand over a share; where the generator refuses it, one by one, so that each fails for itself alone."""
        try:
            await self._generators.at(rank, Generator.submit, [item.remainder() for item in share])
        except EngineFailed as error:
            if len(share) > 1:
                for item in share:
                    await self._submit(rank, [item])
            elif not share[0].future.done():  # cancelled meanwhile: it has left already
                self._outstanding[rank] -= share[0].left
                share[0].rank = None
                share[0].future.set_exception(error)

    async def _collect(self, rank: int) -> None:
        while True:
            for output in await self._generators.at(rank, Generator.events, self._max_wait_s):
                if output.id in self._pending:
                    self._take(self._pending[output.id], output)

    def _take(self, item: _Pending, output: Output) -> None:
        assert item.rank is not None
        item.ids.extend(output.ids)
        item.logprobs.extend(output.logprobs)
        item.versions.extend([output.version] * len(output.ids))
        self._outstanding[item.rank] -= len(output.ids)
        if output.finish is None:
            return
        self._outstanding[item.rank] -= item.left
        item.rank = None
        self._returned.set()
        if output.finish is Finish.ABORT:
            self._work.set()
        elif not item.future.done():
            item.future.set_result(
                Sampled(
                    ids=tuple(item.ids),
                    logprobs=tuple(item.logprobs),
                    versions=tuple(item.versions),
                    finish=output.finish,
                )
            )
