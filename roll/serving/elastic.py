"""Generators that join and leave a running job.

A generator that joins gets the served version and attests it before it serves. One that leaves returns its requests
with their tokens, which continue on others.

| call | waits for | woken by |
|---|---|---|
| `run` | the next poll of the nodes and of the user's request | the clock |
| a join | the start of the process, then a publication in progress | the worker; the publisher |
| a leave | a publication in progress, then the requests | the publisher; the generator's outputs |
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from roll.cluster.handle import ElasticCluster
from roll.engines.base import Generator
from roll.errors import ClusterLost, ConfigError, NodeLost, NoRoom, RollError, WorkerDied, describe_error, one_line
from roll.journal.events import GeneratorJoined, GeneratorLeft, GeneratorRefused
from roll.journal.store import Journal
from roll.serving.publisher import Publisher
from roll.tracking.wanted import WantedGenerators

_POLL_S = 1.0
_STOP_S = 10.0
"""Seconds that a generator has to stop before it is killed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ElasticBounds:
    """How many generators a run has."""

    fewest: int
    most: int
    initial: int
    """The number that is wanted until the user asks for another one."""
    start_timeout_s: float
    """Seconds in which a generator that joins has to load the model, and then the weights."""


@dataclass(slots=True, kw_only=True)
class ElasticGenerators:
    """Keeps the number of generators at what is wanted, as far as nodes have room."""

    pool: ElasticCluster
    publisher: Publisher
    bounds: ElasticBounds
    requests: Callable[[], WantedGenerators]
    """What the user asks for, from the file."""
    confirm: Callable[[WantedGenerators], None]
    """Replaces it once ranks have been removed."""
    journal: Journal
    notice: Callable[[str], None]
    poll_s: float = _POLL_S
    _wanted: int = -1
    _joining: set[int] = field(default_factory=set[int])
    _fault: str = ""
    """What is wrong with the file of the request, as it was reported."""
    _full: bool = False
    """Whether no node had room at the last attempt."""

    async def run(self) -> None:
        """Add and remove generators until cancelled."""
        number = self._read().number
        self._wanted = self._bounded(self.bounds.initial if number is None else number)
        async with asyncio.TaskGroup() as joins:
            while True:
                await asyncio.sleep(self.poll_s)
                if self.publisher.attested:  # before it there is nothing to give to a generator
                    await self._adjust(joins)

    async def _adjust(self, joins: asyncio.TaskGroup) -> None:
        await self._follow_request()
        draining = await self.pool.draining()
        for rank in sorted(draining & self._serving):
            await self._leave(rank, "its node is being drained")
        surplus = len(self._present) - self._wanted
        for rank in sorted(self._serving - draining, reverse=True)[: max(0, surplus)]:
            await self._leave(rank, f"{self._wanted} generators are wanted")
        free = [rank for rank in sorted(self.pool.absent) if rank not in self._joining]
        missing = self._wanted - len((self._present - draining) | self._joining)  # others take over from a drained one
        for rank in free[: max(0, min(missing, 1 if self._full else missing))]:
            self._joining.add(rank)
            joins.create_task(self._join(rank))

    @property
    def _present(self) -> set[int]:
        """Ranks that serve, or that are being replaced."""
        return set(range(self.publisher.generators.size)) - self.publisher.router.absent

    @property
    def _serving(self) -> set[int]:
        return self._present - self.publisher.router.balancer.unavailable

    async def _follow_request(self) -> None:
        """Apply the user's request, if it is a new one."""
        request, removed = self._read(), 0
        for rank in request.remove:
            removed += await self._leave(rank, "`roll generators` removed it", asked=True)
        if request.remove:
            request = WantedGenerators(number=self._bounded((request.number or self._wanted) - removed))
            self.confirm(request)
        if request.number is not None and self._bounded(request.number) != self._wanted:
            self._wanted = self._bounded(request.number)
            self.notice(f"{self._wanted} generators are wanted, {len(self._serving)} serve")

    def _read(self) -> WantedGenerators:
        """The user's request; none while its file is at fault, which is reported once."""
        try:
            request, self._fault = self.requests(), ""
        except ConfigError as error:
            if str(error) != self._fault:
                self.notice(str(error))
            request, self._fault = WantedGenerators(), str(error)
        return request

    def _bounded(self, number: int) -> int:
        return min(max(number, self.bounds.fewest), self.bounds.most)

    async def _join(self, rank: int) -> None:
        """Start a generator, give it the served version, and let it serve if it attests that."""
        began = time.monotonic()
        try:
            async with asyncio.timeout(self.bounds.start_timeout_s):
                await self.pool.add(rank)
                await self.publisher.generators.at(rank, Generator.start)
            async with self.publisher.changing, asyncio.timeout(self.bounds.start_timeout_s):
                await self.publisher.catch_up(rank)
                version, digest = self.publisher.version, self.publisher.attested
        except NoRoom:
            self._full = True
        except ClusterLost:
            raise
        except Exception as error:  # noqa: BLE001 - no error of a process that does not serve yet ends the run
            await self._refuse(rank, error)
        else:
            self._full, seconds, node = False, time.monotonic() - began, self.pool.node(rank)
            event = GeneratorJoined(generator=rank, node=node, version=version, digest=digest, seconds=seconds)
            self.journal.record(event)
            self.notice(f"generator {rank} has joined after {seconds:.1f} s and serves version {version}")
        finally:
            self._joining.discard(rank)

    async def _refuse(self, rank: int, error: Exception) -> None:
        node, what = self.pool.node(rank), str(error) if isinstance(error, RollError) else describe_error(error)
        if isinstance(error, WorkerDied):
            what = error.what
        elif isinstance(error, TimeoutError):
            what = f"it did not serve within {self.bounds.start_timeout_s:g} s (ray.start_timeout_s)"
        await self.pool.remove(rank, refused=not isinstance(error, NodeLost))
        self.journal.record(GeneratorRefused(generator=rank, node=node, reason=one_line(what)))
        where = f"generator {rank}" + (f" on {node}" if node else "")
        self.notice(
            f"{where}: may not join, the run continues without it: {one_line(what)}; "
            "give the node the library and the model of this run, and start Ray there again"
        )

    async def _leave(self, rank: int, reason: str, *, asked: bool = False) -> bool:
        """Let a generator leave with none of its requests lost; False where too few would be left."""
        async with self.publisher.changing:
            if rank not in self._serving or len(self._serving) <= self.bounds.fewest:
                if asked:
                    fault = (
                        f"at least {self.bounds.fewest} stay (actor_infer.min_workers)"
                        if rank in self._serving
                        else "it does not serve"
                    )
                    self.notice(f"generator {rank}: cannot leave, {fault}")
                return False
            requests, tokens = await self.publisher.router.withdraw(rank)
            with suppress(WorkerDied, TimeoutError):
                async with asyncio.timeout(_STOP_S):
                    await self.publisher.generators.at(rank, Generator.stop)
            await self.pool.remove(rank)
        event = GeneratorLeft(generator=rank, reason=reason, num_requests=requests, num_tokens=tokens)
        self.journal.record(event)
        self.notice(f"generator {rank} has left: {reason}; {requests} requests with {tokens} tokens continue elsewhere")
        return True
