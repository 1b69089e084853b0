"""One view over all generators of a pool: requests go in, replies come out, versions change in between.

Nothing a generator says is believed unseen. An answer that is late, comes twice, is longer than was asked for or has
logprobs that are no numbers reaches nobody, and a request of which nothing is heard is sent elsewhere with its tokens.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import TypeVar

from roll.cluster.handle import Cluster
from roll.engines.base import Counting, Generator, Output, Request
from roll.errors import EngineFailed, RunStopped, WorkerDied
from roll.journal.activity import Activity
from roll.journal.records import IDLE
from roll.serving.counts import Tally
from roll.serving.idle import Waits
from roll.serving.load_balancing import Balance, Concurrency
from roll.serving.pending import Note, Pending, Sampled, Versions
from roll.types import Finish

T = TypeVar("T")
Mend = Callable[[int, WorkerDied], Awaitable[None]]
_ABORT = Finish.ABORT


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long the router waits, and for what."""

    request_s: float = 600.0
    """For any sign of life of a request, before it is sent elsewhere."""
    call_s: float = 600.0
    """For a generator to take an order; after that it counts as lost, and the run stops."""
    max_redispatches: int = 3
    """How often one request is sent elsewhere for want of an answer."""


class Router:
    """Sends each request where it costs least, and carries it across versions.

    sample(request)   waits for the whole reply                woken by the generator's outputs
    hold()            waits until every dispatched request     woken by the generator's outputs; after
                      has come back, partial tokens kept       `Patience.request_s` what is missing is lost
    release(version)  never waits; what was held goes out again
    """

    def __init__(
        self,
        generators: Cluster[Generator],
        *,
        max_wait_s: float = 1.0,
        patience: Patience | None = None,
        concurrency: Concurrency | None = None,
        spoken: bool = True,
    ) -> None:
        self._generators, self._max_wait_s, self._spoken = generators, max_wait_s, spoken
        self._patience, self.balance = patience or Patience(), Balance(generators.size, concurrency)
        self._adaptive = concurrency is not None and concurrency.adaptive
        self._pending: dict[str, Pending] = {}
        self._in_flight: dict[str, Pending] = {}  # by the name of their dispatch
        self._waiting: list[tuple[int, int, Pending]] = []  # a heap
        self._abandoned: list[tuple[int, str]] = []
        self._numbers, self._names, self._versions = count(), count(), Versions()
        self._held = True
        """Nothing goes out before the first `release` says which version is served."""
        self._work, self._returned, self._sending = asyncio.Event(), asyncio.Event(), asyncio.Lock()
        self.tally, self.waits = Tally(), Waits(self._tell_soon)
        self._telling = False
        self.ending = False
        """Whether the run comes to its end: what that breaks off waits in the journal, to go on with."""
        self.activities: Sequence[Activity] = ()
        """Where it is written down what each generator does, if it is."""
        self.mend: Mend | None = None
        """Puts a fresh generator, with what is served, in the place of one that died, and calls `rejoin`; or raises
        what ends the run. None: a death ends it."""

    async def run(self) -> None:
        """Move requests and outputs until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._dispatch())
            tasks.create_task(self._watch())
            for rank in range(self._generators.size):
                tasks.create_task(self._collect(rank))

    async def sample(
        self, request: Request, *, order: int = 0, so_far: Sampled | None = None, note: Note | None = None
    ) -> Sampled:
        """The reply to one request, going on from `so_far`; lower orders go first. Cancelling this aborts it."""
        assert request.id not in self._pending, f"request {request.id} is under way already"
        num_before, loop = 0 if so_far is None else len(so_far.ids), asyncio.get_running_loop()
        item = Pending(
            request=request,
            place=(order, next(self._numbers)),
            future=loop.create_future(),
            note=note,
            parts=[so_far] if so_far is not None and num_before else [],
            num=num_before,
            seen=loop.time(),
        )
        if (finish := item.complete) is not None:
            return replace(so_far or Sampled(), finish=finish)
        self._pending[request.id] = item
        self._wait_for_dispatch(item)
        try:
            return await item.future
        except asyncio.CancelledError:  # also of one whose reply is whole, if nobody has seen it yet
            self.broken_off(item.num - num_before)
            raise
        finally:
            del self._pending[request.id]
            if item.rank is not None:  # cancelled while a generator has it
                self._abandon(item)

    def broken_off(self, num_tokens: int) -> None:
        """So many tokens are of an attempt that was cancelled."""
        if not self.ending:
            self.tally.aborted += num_tokens

    def whereabouts(self) -> dict[str, int]:
        """How many attempts are with generators, and how many wait for what."""
        found = {"with generators": len(self._in_flight), "waiting to be dispatched": len(self._waiting)}
        found |= {f"waiting for {name}": number for name, number in self.waits.counts().items()}
        return {what: number for what, number in found.items() if number}

    async def hold(self) -> None:
        """Stop dispatch and take back all that runs or queues."""
        self._held = True
        self._tell_idle()
        async with self._sending:  # a request handed over after the abort would never come back
            await self.each(lambda rank: self._generators.at(rank, Generator.pause), "pause")
            await self.each(lambda rank: self._generators.at(rank, Generator.abort, None), "abort")
        try:
            async with asyncio.timeout(self._patience.request_s):
                while self._in_flight:
                    self._returned.clear()
                    await self._returned.wait()
        except TimeoutError:
            for item in list(self._in_flight.values()):
                self._redispatch(item, "the change of version")

    async def release(self, version: int) -> tuple[int, int]:
        """Go on, with every generator at this version; requests that go on, and tokens they have to be given again."""
        resumed = [item for item in self._pending.values() if item.num]
        await self.each(lambda rank: self._generators.at(rank, Generator.resume, version), "resume")
        self._held = False
        self._tell_idle()
        self._work.set()
        return len(resumed), sum(len(item.request.ids) + item.num for item in resumed)

    async def each(self, call: Callable[[int], Awaitable[T]], order: str | None = None) -> dict[int, T]:
        """What every generator that is there answers, by rank; one that dies under it is left out, to be mended.

        An `order` is to be taken within `Patience.call_s`.
        """
        found: dict[int, T] = {}

        async def ask(rank: int) -> None:
            try:
                found[rank] = await call(rank)
            except WorkerDied:
                if self.mend is None:
                    raise

        ranks = [rank for rank in range(self._generators.size) if rank not in self.balance.away]
        asked = asyncio.gather(*map(ask, ranks))
        await (asked if order is None else self._order(asked, order))
        return {rank: found[rank] for rank in sorted(found)}

    def rejoin(self, rank: int) -> None:
        """A generator that was replaced serves from now on."""
        self.balance.rejoin(rank)
        self._tell(rank)
        self._work.set()

    async def _dispatch(self) -> None:
        while True:
            await self._work.wait()
            self._work.clear()
            await asyncio.sleep(0)  # whoever is about to ask as well goes into the same call
            abandoned, self._abandoned = self._abandoned, []
            names: dict[int, list[str]] = {}
            for rank, name in abandoned:
                names.setdefault(rank, []).append(name)
            for rank, found in names.items():
                await self._abort(rank, found)
            async with self._sending:
                if not self._held:
                    await self._send()

    async def _send(self) -> None:
        """Hand out what waits, oldest first, as far as the generators may take it."""
        shares: dict[int, list[Pending]] = {}
        now = _now()
        while self._waiting:
            item = self._waiting[0][2]
            if item.future.done():
                heapq.heappop(self._waiting)
                continue
            request = item.request
            rank = self.balance.choose(len(request.ids) + item.num, request.family, item.avoid)
            if rank is None:
                break
            heapq.heappop(self._waiting)
            item.queued_s += now - item.seen
            item.rank, item.name, item.seen = rank, f"{request.id}~{next(self._names)}", now
            self._in_flight[item.name] = item
            self.balance.enter(rank, item.left, request.family)
            shares.setdefault(rank, []).append(item)
        for rank in shares:
            self._tell(rank)
        await asyncio.gather(*(self._submit(rank, share) for rank, share in shares.items()))

    async def _submit(self, rank: int, share: Sequence[Pending]) -> None:
        """Hand over a share; where the generator refuses it, one by one, so that each fails for itself alone."""
        requests = [item.remainder() for item in share]
        try:
            await self._order(self._generators.at(rank, Generator.submit, requests), f"submit on generator {rank}")
        except WorkerDied:
            if self.mend is None:
                raise
            # `_collect` hears of it as well, and takes back what it had
        except EngineFailed as error:
            if len(share) > 1:
                for item in share:
                    await self._submit(rank, [item])
            elif share[0].rank is not None:  # not cancelled meanwhile
                self._drop(share[0])
                if not share[0].future.done():
                    share[0].future.set_exception(error)

    async def _abort(self, rank: int, names: Sequence[str]) -> None:
        try:
            await self._order(self._generators.at(rank, Generator.abort, names), f"abort on generator {rank}")
        except WorkerDied:
            if self.mend is None:
                raise

    async def _collect(self, rank: int) -> None:
        while True:
            try:
                await self._hear(rank)
            except WorkerDied as error:
                await self._replaced(rank, error)

    async def _hear(self, rank: int) -> None:
        """Take what a generator has to say, once."""
        outputs = await self._generators.at(rank, Generator.events, self._max_wait_s)
        now = _now()
        for output in outputs:
            item = self._in_flight.get(output.id)
            if item is None:
                self.tally.late += 1
                self.tally.tokens += len(output.ids)
                self.tally.aborted += len(output.ids)
            elif fault := item.fault(output, spoken=self._spoken):
                self.tally.bad += 1
                self._abandon(item)
                item.fail(f"generator {rank} answered with {fault}")
            else:
                self._take(item, output, now)
        if self._adaptive:
            self.balance.pressed(rank, (await self._generators.at(rank, Counting.statistics)).preempted)

    async def _replaced(self, rank: int, error: WorkerDied) -> None:
        """Send elsewhere what a dead generator had, with its tokens, and wait for another in its place."""
        if self.mend is None:
            raise error
        self.balance.away.add(rank)
        for item in [item for item in self._in_flight.values() if item.rank == rank]:
            self._drop(item)
            self.tally.redispatched += 1
            self._queue(item)
        while rank in self.balance.away:
            try:
                await self.mend(rank, error)
            except WorkerDied as again:
                error = again

    def _take(self, item: Pending, output: Output, now: float) -> None:
        assert item.rank is not None
        num_new, finish = len(output.ids), output.finish
        if num_new:
            versions = self._versions.row(output.version, num_new)
            part = Sampled(
                ids=output.ids,
                logprobs=output.logprobs,
                versions=versions,
                finish=finish or _ABORT,
                queued_s=item.queued_s,
            )
            item.parts.append(part)
            item.num += num_new
            self.tally.tokens += num_new
            self.balance.progress(item.rank, num_new)
            if item.note is not None:
                item.note(output)
        item.seen = now
        if finish is None:
            return
        self._drop(item, ended=finish is not _ABORT)
        if finish is _ABORT:
            self._queue(item)
        else:
            item.resolve(finish)

    async def _watch(self) -> None:
        """Send elsewhere what no generator has said anything of for too long."""
        limit = self._patience.request_s
        while True:
            await asyncio.sleep(limit / 4)
            silent = [item for item in self._in_flight.values() if _now() - item.seen > limit]
            for item in silent:
                self._redispatch(item, f"{limit:g} s")

    def _redispatch(self, item: Pending, waited: str) -> None:
        rank = item.rank
        self._abandon(item)
        item.redispatches += 1
        if item.redispatches > self._patience.max_redispatches:
            item.fail(f"no answer from generator {rank} in {waited}, nor from others before")
            return
        self.tally.redispatched += 1
        item.avoid = rank
        self._queue(item)

    def _queue(self, item: Pending) -> None:
        if (finish := item.complete) is not None:  # cut off right at its end
            item.resolve(finish)
        else:
            item.seen = _now()
            self._wait_for_dispatch(item)

    def _wait_for_dispatch(self, item: Pending) -> None:
        heapq.heappush(self._waiting, (*item.place, item))
        self._work.set()

    def _abandon(self, item: Pending) -> None:
        """Take a request from its generator, which may not know yet."""
        assert item.rank is not None
        self._abandoned.append((item.rank, item.name))
        self._work.set()
        self._drop(item)

    def _drop(self, item: Pending, *, ended: bool = False) -> None:
        """No generator has it any more."""
        rank, item.rank = item.rank, None
        assert rank is not None
        del self._in_flight[item.name]
        self.balance.leave(rank, item.left, ended=ended)
        if not self.balance.held[rank]:
            self._tell(rank)
        if not self._in_flight:
            self._returned.set()
        if self._waiting:
            self._work.set()

    def _tell(self, rank: int) -> None:
        """Write down what this generator does now."""
        if not self.activities:
            return
        if self.balance.held[rank]:
            doing = "generate"
        else:
            doing = IDLE + ("version change" if self._held else self.waits.reason())
        self.activities[rank].enter(doing)

    def _tell_soon(self) -> None:
        """Once for all that changes until the event loop comes round again."""
        if self.activities and not self._telling:
            self._telling = True
            asyncio.get_running_loop().call_soon(self._tell_idle)

    def _tell_idle(self) -> None:
        self._telling = False
        for rank in range(len(self.activities)):
            if not self.balance.held[rank]:
                self._tell(rank)

    async def _order(self, call: Awaitable[T], what: str) -> T:
        """An order that a generator takes at once, if it lives."""
        try:
            async with asyncio.timeout(self._patience.call_s):
                return await call
        except TimeoutError:
            raise RunStopped(
                f"no generator answered to {what} for {self._patience.call_s:g} s; "
                "see its log, then `roll resume` the run"
            ) from None


def _now() -> float:
    return asyncio.get_running_loop().time()
