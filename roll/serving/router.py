"""Routes requests to the generators of one policy and carries them across versions of the weights.

Every output of a generator is validated. One that is late, duplicated, too long or has non-finite logprobs is not
delivered, and a request without outputs for too long is sent to another generator together with its tokens.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from itertools import count
from typing import TypeVar

from roll.cluster.handle import Cluster, Killable, present_ranks
from roll.engines.base import Generator, HasStatistics, Output, Request
from roll.errors import EngineFailed, RunStopped, WorkerDied
from roll.serving.counts import GenerationCounts, GeneratorActivities, IdleReasons
from roll.serving.dispatch import Concurrency, LoadBalancer, OnOutput, Pending, Sampled, Timeouts, VersionRows
from roll.serving.liveness import Liveness
from roll.types import Finish

T = TypeVar("T")
ReplaceGenerator = Callable[[int, WorkerDied], Awaitable[None]]
_ABORT = Finish.ABORT


class Router:
    """Sends each request to the generator where it costs least, and resumes it after a change of version.

    sample(request)   waits for the whole response                woken by the generator's outputs
    hold()            waits until every dispatched request     woken by the generator's outputs; after
                      has returned with its partial response      `Timeouts.request_s` the rest is redispatched
    release(version)  waits for `resume` calls alone; held requests are dispatched again
    """

    def __init__(
        self,
        generators: Cluster[Generator],
        *,
        max_wait_s: float = 1.0,
        timeouts: Timeouts | None = None,
        concurrency: Concurrency | None = None,
        with_logprobs: bool = True,
        idle_reasons: IdleReasons | None = None,
    ) -> None:
        self._generators, self._max_wait_s, self._with_logprobs = generators, max_wait_s, with_logprobs
        self._timeouts, self.balancer = timeouts or Timeouts(), LoadBalancer(generators.size, concurrency)
        self._liveness = Liveness(generators, self._timeouts.request_s) if isinstance(generators, Killable) else None
        self._adaptive = concurrency is not None and concurrency.adaptive
        self._pending: dict[str, Pending] = {}
        self._in_flight: dict[str, Pending] = {}  # by dispatch name
        self._waiting: list[tuple[int, int, Pending]] = []  # a heap
        self._abandoned: list[tuple[int, str]] = []
        self._numbers, self._names, self._versions = count(), count(), VersionRows()
        self._held = True
        """Nothing is dispatched before the first `release`, which sets the served version."""
        self._work, self._returned, self._sending = asyncio.Event(), asyncio.Event(), asyncio.Lock()
        self.counts, self.idle_reasons = GenerationCounts(), idle_reasons or IdleReasons()
        self.absent = set(range(generators.size)) - set(present_ranks(generators))
        """Ranks without a generator, under which one may join."""
        self._joined, self._leaving = [asyncio.Event() for _ in range(generators.size)], set[int]()
        for rank in present_ranks(generators):
            self._joined[rank].set()
        self.lent = set[int]()
        """Ranks that serve at times only: a dead one leaves, and is replaced when it is to serve again."""
        self.balancer.unavailable |= self.absent
        self.activities = GeneratorActivities(self.idle_reasons, self._busy, self.absent, self.lent)
        self.replace_generator: ReplaceGenerator | None = None
        """Replaces a dead generator and calls `mark_ready`, or raises; None: a dead generator ends the run."""

    async def run(self) -> None:
        """Move requests and outputs until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._dispatch())
            tasks.create_task(self._watch())
            if self._liveness is not None:
                tasks.create_task(self._liveness.run(lambda: self._held))
            for rank in range(self._generators.size):
                tasks.create_task(self._collect(rank))

    async def sample(
        self,
        request: Request,
        *,
        order: int = 0,
        so_far: Sampled | None = None,
        on_output: OnOutput | None = None,
        recorded: bool = True,
    ) -> Sampled:
        """The response to a request, continued from `so_far`; lower orders go first. Cancelling aborts the request.

        `recorded` tells whether `on_output` writes its tokens to the journal.
        """
        assert request.id not in self._pending, f"request {request.id} is already in flight"
        num_before, loop = 0 if so_far is None else len(so_far.ids), asyncio.get_running_loop()
        item = Pending(
            request=request,
            priority=(order, next(self._numbers)),
            future=loop.create_future(),
            on_output=on_output,
            recorded=recorded,
            parts=[so_far] if so_far is not None and num_before else [],
            num_tokens=num_before,
            last_active=loop.time(),
        )
        if (finish := item.complete) is not None:
            return replace(so_far or Sampled(), finish=finish)
        self._pending[request.id] = item
        self._wait_for_dispatch(item)
        try:
            return await item.future
        finally:
            del self._pending[request.id]
            if item.rank is not None:  # cancelled while a generator works on it
                self._abandon(item)

    @property
    def num_waiting(self) -> int:
        """Requests that wait for a generator with room."""
        return len(self._waiting)

    def inflight_counts(self) -> dict[str, int]:
        """Numbers of attempts on generators, waiting for dispatch, for environments and for rewards; without zeros."""
        counts = {"with generators": len(self._in_flight), "waiting to be dispatched": self.num_waiting}
        counts |= {f"waiting for {name}": number for name, number in self.idle_reasons.counts().items()}
        return {state: number for state, number in counts.items() if number}

    async def hold(self) -> None:
        """Stop dispatch and take all requests back from the generators."""
        self._held = self.activities.held = True
        self.activities.record_idle()
        async with self._sending:  # a request submitted after the abort would never return
            await self.each(lambda rank: self._generators.at(rank, Generator.pause), "pause")
            await self.each(lambda rank: self._generators.at(rank, Generator.abort, None), "abort")
        await self._wait_until_returned(lambda: list(self._in_flight.values()), "the change of version")

    async def withdraw(self, rank: int) -> tuple[int, int]:
        """Take all requests back from a generator that leaves; their number, and that of their tokens so far.

        They continue on other generators with these tokens. If the generator dies meanwhile, so do they.
        """
        self.balancer.unavailable.add(rank)
        self._leaving.add(rank)
        items = [item for item in self._in_flight.values() if item.rank == rank]
        async with self._sending:
            await self._control(self._generators.at(rank, Generator.pause), f"pause on generator {rank}")
            await self._control(self._generators.at(rank, Generator.abort), f"abort on generator {rank}")
        await self._wait_until_returned(lambda: [item for item in items if item.rank == rank], "its leave")
        self._end(rank)
        return len(items), sum(item.num_tokens for item in items)

    async def _wait_until_returned(self, remaining: Callable[[], list[Pending]], event: str) -> None:
        """Wait until no request remains; after `Timeouts.request_s` those that do are redispatched."""
        try:
            async with asyncio.timeout(self._timeouts.request_s):
                while remaining():
                    self._returned.clear()
                    await self._returned.wait()
        except TimeoutError:
            for item in remaining():
                self._redispatch(item, event)

    def _end(self, rank: int) -> None:
        """A generator has left."""
        self._leaving.discard(rank)
        self.absent.add(rank)
        self._joined[rank].clear()
        self.activities.record(rank)

    async def release(self, version: int) -> tuple[int, int]:
        """Resume every generator at this version; numbers of continued requests and of tokens to prefill for them."""
        resumed = [item for item in self._pending.values() if item.num_tokens]
        await self.each(lambda rank: self._generators.at(rank, Generator.resume, version), "resume")
        self._held = self.activities.held = False
        self.activities.record_idle()
        self._work.set()
        return len(resumed), sum(len(item.request.ids) + item.num_tokens for item in resumed)

    async def each(self, call: Callable[[int], Awaitable[T]], order: str | None = None) -> dict[int, T]:
        """The results of `call(rank)` on all available generators, by rank; one that dies meanwhile is left out.

        A control call is named by `order` and has to return within `Timeouts.call_s`.
        """
        results: dict[int, T] = {}

        async def call_one(rank: int) -> None:
            try:
                results[rank] = await call(rank)
            except WorkerDied:
                if self.replace_generator is None:
                    raise

        ranks = [rank for rank in range(self._generators.size) if rank not in self.balancer.unavailable]
        calls = asyncio.gather(*map(call_one, ranks))
        await (calls if order is None else self._control(calls, order))
        return {rank: results[rank] for rank in sorted(results)}

    def mark_ready(self, rank: int) -> None:
        """A generator that was replaced or has joined gets requests from now on."""
        self.absent.discard(rank)
        self._joined[rank].set()
        self.balancer.mark_ready(rank)
        self.activities.record(rank)
        self._work.set()

    async def _dispatch(self) -> None:
        while True:
            await self._work.wait()
            self._work.clear()
            await asyncio.sleep(0)  # callers that are about to sample too join this call
            abandoned, self._abandoned = self._abandoned, []
            names_by_rank: dict[int, list[str]] = {}
            for rank, name in abandoned:
                names_by_rank.setdefault(rank, []).append(name)
            for rank, names in names_by_rank.items():
                await self._control(self._generators.at(rank, Generator.abort, names), f"abort on generator {rank}")
            async with self._sending:
                if not self._held:
                    await self._send()

    async def _send(self) -> None:
        """Dispatch waiting requests in order of priority while generators have room."""
        shares: dict[int, list[Pending]] = {}
        now = _now()
        while self._waiting:
            item = self._waiting[0][2]
            if item.future.done():
                heapq.heappop(self._waiting)
                continue
            request = item.request
            rank = self.balancer.choose(len(request.ids) + item.num_tokens, request.family, item.avoid)
            if rank is None:
                break
            heapq.heappop(self._waiting)
            item.queued_s += now - item.last_active
            item.rank, item.name, item.last_active = rank, f"{request.id}~{next(self._names)}", now
            self._in_flight[item.name] = item
            self.balancer.add_request(rank, item.num_left, request.family)
            shares.setdefault(rank, []).append(item)
        for rank in shares:
            self.activities.record(rank)
        await asyncio.gather(*(self._submit(rank, share) for rank, share in shares.items()))

    async def _submit(self, rank: int, share: Sequence[Pending]) -> None:
        """Submit a share; if the generator refuses it, one request at a time, so that only the faulty ones fail."""
        requests = [item.remainder() for item in share]
        try:
            await self._control(self._generators.at(rank, Generator.submit, requests), f"submit on generator {rank}")
        except EngineFailed as error:
            if len(share) > 1:
                for item in share:
                    await self._submit(rank, [item])
            elif share[0].rank is not None:  # not cancelled meanwhile
                self._drop(share[0])
                if not share[0].future.done():
                    share[0].future.set_exception(error)

    async def _collect(self, rank: int) -> None:
        while True:
            await self._joined[rank].wait()
            try:
                await self._collect_once(rank)
            except WorkerDied as error:
                await self._recover(rank, error)

    async def _collect_once(self, rank: int) -> None:
        """Process the next outputs of one generator."""
        poll = self._generators.at(rank, Generator.events, self._max_wait_s)
        outputs = await (poll if self._liveness is None else self._liveness.track(rank, poll))
        now, num_requests = _now(), self.balancer.num_requests[rank]
        num_tokens = sum(len(output.ids) for output in outputs)
        self.balancer.record_outputs(rank, tokens=num_tokens, outputs=len(outputs), num_requests=num_requests, now=now)
        for output in outputs:
            item = self._in_flight.get(output.id)
            if item is None:
                self.counts.late += 1
                self.counts.tokens += len(output.ids)
                self.counts.discarded += len(output.ids)
            elif fault := item.fault(output, with_logprobs=self._with_logprobs):
                self.counts.bad += 1
                self._abandon(item)
                item.fail(f"generator {rank} answered with {fault}")
            else:
                self._accept(item, output, now)
        if self._adaptive:
            statistics = await self._generators.at(rank, HasStatistics.statistics)
            self.balancer.report_preemptions(rank, statistics.preempted)

    async def _recover(self, rank: int, error: WorkerDied) -> None:
        """Redispatch the requests of a dead generator with their tokens, and wait for its replacement."""
        if self.replace_generator is None:
            raise error
        self.balancer.unavailable.add(rank)
        for item in [item for item in self._in_flight.values() if item.rank == rank]:
            self._drop(item)
            self.counts.redispatched += 1
            self._queue(item)
        if rank in self._leaving | self.lent:
            self._end(rank)
        while rank in self.balancer.unavailable and rank not in self.absent:
            try:
                await self.replace_generator(rank, error)
            except WorkerDied as again:
                error = again

    def _accept(self, item: Pending, output: Output, now: float) -> None:
        assert item.rank is not None
        num_new, finish = len(output.ids), output.finish
        if num_new:
            kept = item.add(output, self._versions)
            num_kept = num_new if kept is None else kept
            self.counts.tokens += num_new
            self.counts.discarded += num_new - num_kept
            self.counts.unrecorded += 0 if item.recorded else num_kept
            self.balancer.add_progress(item.rank, num_kept)
            finish = finish if kept is None else Finish.STOP
        item.last_active = now
        if finish is None:
            return
        if output.finish is None:  # the generator continues
            self._abandoned.append((item.rank, item.name))
            self._work.set()
        self._drop(item, ended=finish is not _ABORT)
        if finish is _ABORT:
            self._queue(item)
        else:
            item.resolve(finish)

    async def _watch(self) -> None:
        """Redispatch requests without outputs for `Timeouts.request_s`."""
        limit = self._timeouts.request_s
        while True:
            await asyncio.sleep(limit / 4)
            for item in [item for item in self._in_flight.values() if _now() - item.last_active > limit]:
                self._redispatch(item, f"{limit:g} s")

    def _redispatch(self, item: Pending, waited: str) -> None:
        rank = item.rank
        self._abandon(item)
        item.redispatches += 1
        if item.redispatches > self._timeouts.max_redispatches:
            item.fail(f"no output from generator {rank} in {waited}, nor from others before")
            return
        self.counts.redispatched += 1
        item.avoid = rank
        self._queue(item)

    def _queue(self, item: Pending) -> None:
        if (finish := item.complete) is not None:  # aborted right at its end
            item.resolve(finish)
        else:
            item.last_active = _now()
            self._wait_for_dispatch(item)

    def _wait_for_dispatch(self, item: Pending) -> None:
        heapq.heappush(self._waiting, (*item.priority, item))
        self._work.set()

    def _abandon(self, item: Pending) -> None:
        """Take a request back from its generator, and queue the abort."""
        assert item.rank is not None
        self._abandoned.append((item.rank, item.name))
        self._work.set()
        self._drop(item)

    def _drop(self, item: Pending, *, ended: bool = False) -> None:
        """Remove a request from its generator's books."""
        rank, item.rank = item.rank, None
        assert rank is not None
        del self._in_flight[item.name]
        self.balancer.remove_request(rank, item.num_left, ended=ended)
        if not self.balancer.num_requests[rank]:
            self.activities.record(rank)
            self._returned.set()
        if self._waiting:
            self._work.set()

    def _busy(self, rank: int) -> bool:
        return bool(self.balancer.num_requests[rank])

    async def _control(self, call: Awaitable[object], name: str) -> None:
        """Await a control call; raises `RunStopped` past `Timeouts.call_s`."""
        try:
            async with asyncio.timeout(self._timeouts.call_s):
                await call
        except WorkerDied:
            if self.replace_generator is None:
                raise
            # `_collect` gets the same error and redispatches its requests
        except TimeoutError:
            raise RunStopped(
                f"no generator answered to {name} for {self._timeouts.call_s:g} s; "
                "see its log, then `roll resume` the run"
            ) from None


def _now() -> float:
    return asyncio.get_running_loop().time()
