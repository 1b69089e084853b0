"""Environments in processes, many in each; one that never gives way costs its process, and not the run.

| call | waits for | woken by |
|---|---|---|
| `start` | every process, and the imports of environments in it | their answers; the limit of time |
| `make` | a turn to start, then a process, then the environment's start | an environment that has started or failed |
| `step` | the environment's answer | the answer; the process's death; whoever cancels it |
| `close` | the same, at most `grace_s` | the same |
| `stop` | the end of every environment, at most `grace_s`, and of every process | their answers, or the limit |

An environment that is cancelled, as one past its time is, is cancelled in its process too. If the process does not give
way within `grace_s` it is killed: the other environments in it fail with it, each on its own attempt.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, TypeAlias, TypeVar

from roll.cluster.handle import Cluster, Replacing
from roll.cluster.host import Host
from roll.cluster.host_member import Member
from roll.data.tools import Spoken, Tool
from roll.envs.base import Env, Reply
from roll.envs.worker import EnvWorker
from roll.errors import EnvFailed, WorkerDied
from roll.rollout.environments import Turns, place_of
from roll.types import Call, Message, Task

T = TypeVar("T")
_MEGABYTE = 2**20
WORKER = Call("roll.envs.worker:EnvWorker")
_NAME = "environment worker"
EnvHost: TypeAlias = Host[EnvWorker] | Member[EnvWorker]
OpenHost: TypeAlias = Callable[[int], Awaitable[EnvHost]]
"""A worker by its rank: a fresh one, whoever had that rank before."""


async def open_process(rank: int) -> EnvHost:
    """An `OpenHost`: a process of this machine."""
    return await Host[EnvWorker].open(WORKER, rank, name=_NAME)


def members_of(cluster: Cluster[EnvWorker]) -> OpenHost:
    """An `OpenHost`: workers of a cluster that is up, each replaced when its rank is opened again."""
    opened: set[int] = set()

    async def member(rank: int) -> EnvHost:
        if rank in opened and isinstance(cluster, Replacing):
            await cluster.replace(rank)
        opened.add(rank)
        return Member(cluster, rank, name=_NAME, answer=EnvWorker.answer)

    return member


@dataclass(frozen=True, slots=True, kw_only=True)
class HostLimits:
    """How patient a pool is with its processes."""

    open_s: float = 300.0
    """For a process to come up."""
    grace_s: float = 10.0
    """For a process to give way, and for an environment to close."""
    memory: int | None = None
    """Bytes that a process may hold before it is replaced; twice as many end it."""
    look_s: float = 1.0
    """Between two looks at the memory."""


@dataclass(slots=True, eq=False)
class _Seat:
    """One process, and how many environments live in it."""

    host: EnvHost
    num_envs: int = 0
    suspected: bool = False
    """Whether it is being asked if it still gives way."""


class EnvPool:
    """Processes full of environments. A process that dies or is killed costs the attempts in it, and is replaced."""

    def __init__(
        self,
        size: int,
        *,
        names: Sequence[str] = (),
        start_limit: int | None = None,
        limit_s: float | None = None,
        limits: HostLimits | None = None,
        open_host: OpenHost = open_process,
    ) -> None:
        """`names` are the environments to be expected, imported before any of them is made."""
        assert size > 0, "a pool has at least one process"
        self.limits = limits or HostLimits()
        self.num_replaced = 0
        """Processes that died, were killed, or had grown too big."""
        self._num_told = 0
        self._names, self._open_host = tuple(names), open_host
        self._turns = Turns(start_limit, limit_s)
        self._seats: list[_Seat | None] = [None] * size
        self._opening = [asyncio.Lock() for _ in range(size)]
        self._retired: list[_Seat] = []
        self._waiting = [0] * size
        """Environments on their way to a process that is not up yet."""
        self._numbers = count()
        self._chores: set[asyncio.Task[None]] = set()

    @property
    def pids(self) -> list[int]:
        """Of the processes that live, those about to be replaced included."""
        return [seat.host.pid for seat in (*self._seats, *self._retired) if seat is not None and not seat.host.why]

    async def start(self) -> None:
        await asyncio.gather(*(self._seat(rank) for rank in range(len(self._seats))))
        if self.limits.memory is not None:
            self.do(self._watch_memory(self.limits.memory))

    async def stop(self) -> None:
        chores = list(self._chores)
        for chore in chores:
            chore.cancel()
        await asyncio.gather(*chores, return_exceptions=True)
        seats = [seat for seat in (*self._seats, *self._retired) if seat is not None]
        await asyncio.gather(*(self._end(seat) for seat in seats))
        self._seats = [None] * len(self._seats)
        self._retired = []

    async def make(self, call: Call, task: Task) -> Env:
        """A `MakeEnv`: in the process with the fewest environments."""
        return await self._turns.started(lambda: self._placed(call, task), place_of(call, task))

    async def unfit(self, call: Call, task: Task, *, tools: bool = True) -> str:
        """As the first process finds it; where that hangs or dies, it is not known, and attempts will tell."""
        try:
            seat = await self._seat(0)
            async with asyncio.timeout(self.limits.open_s):
                return await seat.host.ask(EnvWorker.unfit, call, task, tools=tools)
        except (WorkerDied, TimeoutError):
            return ""

    def drain_counts(self) -> dict[str, float]:
        """Processes that had to be replaced since the last call, where any had."""
        num, self._num_told = self.num_replaced - self._num_told, self.num_replaced
        return {"envs/replaced": float(num)} if num else {}

    def leave(self, seat: _Seat) -> None:
        """One environment fewer; a process that waits for its last one ends with it."""
        seat.num_envs -= 1
        if seat in self._retired and not seat.num_envs:
            self._retired.remove(seat)
            self.do(self._end(seat))

    def suspect(self, seat: _Seat) -> None:
        """An environment was broken off in the middle of a call: see whether its process still gives way."""
        if not seat.suspected and not seat.host.why:
            seat.suspected = True
            self.do(self._tested(seat))

    def do(self, chore: Coroutine[Any, Any, None]) -> None:
        """See to it that this is done, in nobody's time."""
        task = asyncio.get_running_loop().create_task(chore)
        self._chores.add(task)
        task.add_done_callback(self._chores.discard)

    async def _placed(self, call: Call, task: Task) -> Env:
        """In the process that has, or is about to have, the fewest; one that may hang only where all may."""
        loads = [
            (False, waiting) if seat is None or seat.host.why else (seat.suspected, waiting + seat.num_envs)
            for seat, waiting in zip(self._seats, self._waiting, strict=True)
        ]
        rank = loads.index(min(loads))
        self._waiting[rank] += 1
        try:
            seat = await self._seat(rank)
        finally:
            self._waiting[rank] -= 1
        seat.num_envs += 1
        return _Remote(self, seat, (next(self._numbers), call, task))

    async def _seat(self, rank: int) -> _Seat:
        async with self._opening[rank]:
            found = self._seats[rank]
            if found is None or found.host.why:
                self.num_replaced += found is not None
                found = self._seats[rank] = _Seat(await self._opened(rank))
            return found

    async def _opened(self, rank: int) -> EnvHost:
        limit_s = self.limits.open_s
        try:
            async with asyncio.timeout(limit_s):
                host = await self._open_host(rank)
                try:
                    await host.ask(EnvWorker.prepare, self._names)
                except BaseException:
                    host.kill("it could not start")
                    raise
        except TimeoutError:
            what = f"was not up within {limit_s:g} s; raise envs.start_timeout_s"
            raise WorkerDied(f"environment worker {rank}: {what}") from None
        return host

    async def _tested(self, seat: _Seat) -> None:
        alive = await seat.host.gives_way(self.limits.grace_s)
        seat.suspected = False
        if not alive:
            seat.host.kill(f"an environment in it did not give way within {self.limits.grace_s:g} s; it was killed")

    async def _end(self, seat: _Seat) -> None:
        with contextlib.suppress(WorkerDied, TimeoutError):
            async with asyncio.timeout(self.limits.grace_s):
                await seat.host.ask(EnvWorker.stop)
        seat.host.kill("it was stopped")

    async def _watch_memory(self, most: int) -> None:
        while True:
            await asyncio.sleep(self.limits.look_s)
            for seat in (*self._seats, *self._retired):
                size = 0 if seat is None or seat.host.why else seat.host.memory()
                if seat is not None and size > most:
                    self._relieve(seat, size, most)

    def _relieve(self, seat: _Seat, size: int, most: int) -> None:
        """A process is too big: it gets nothing new, and if it is far too big it ends now."""
        held = f"it held {size // _MEGABYTE} MB of memory where {most // _MEGABYTE} are allowed (envs.memory_mb)"
        if size > 2 * most:
            seat.host.kill(f"{held}; it was killed")
        elif seat in self._seats:
            self._seats[self._seats.index(seat)] = None
            self.num_replaced += 1
            self._retired.append(seat)
            seat.num_envs += 1
            self.leave(seat)  # ends it at once where it is empty


class _Remote:
    """An `Env` in a process of the pool."""

    def __init__(self, pool: EnvPool, seat: _Seat, what: tuple[int, Call, Task]) -> None:
        """`what` is its number, its name and its task."""
        self._pool, self._seat, self._what = pool, seat, what
        self._broken = self._closed = False
        self.tools: tuple[Tool, ...] = ()
        self.agents: tuple[str, ...] = ()

    async def start(self) -> tuple[Message, ...]:
        opening, self.tools, self.agents = await self._answer(self._seat.host.ask(EnvWorker.start, *self._what))
        return opening

    async def call(self, said: Spoken) -> Reply:
        return await self._answer(self._seat.host.ask(EnvWorker.call, self._what[0], said))

    async def step(self, reply: str) -> Reply:
        return await self._answer(self._seat.host.ask(EnvWorker.step, self._what[0], reply))

    async def close(self) -> None:
        if self._closed:
            return
        self._closed, grace_s = True, self._pool.limits.grace_s
        try:
            async with asyncio.timeout(grace_s):
                await self._answer(self._seat.host.ask(EnvWorker.close, self._what[0]))
        except WorkerDied:
            pass  # so it is closed
        except TimeoutError:
            if not self._broken:
                raise TimeoutError(f"not closed within {grace_s:g} s (envs.grace_s)") from None
        except EnvFailed:
            if not self._broken:
                raise
        finally:
            self._pool.leave(self._seat)

    async def _answer(self, answer: Awaitable[T]) -> T:
        try:
            return await answer
        except asyncio.CancelledError:
            self._broken = self._broken or not self._closed
            self._pool.suspect(self._seat)
            raise
        except Exception:
            self._broken = self._broken or not self._closed
            raise
