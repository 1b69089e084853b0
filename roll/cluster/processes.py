"""Workers in processes of their own on this machine. One that hangs is killed from outside and replaced.

| call | waits for | woken by |
|---|---|---|
| `at` | the worker's turn, then its answer, at most `limit_s` | the answer; the limit; the worker's death |
| `any` | the first worker that is free, then as `at` | the same |
| `stop` | the end of every process | their death, which it brings about |
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import pickle
import signal
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Concatenate, Generic

from roll.cluster.handle import Method, P, R, S, W
from roll.errors import WorkerDied
from roll.types import Call

_HEADER = 8
_CHILD = "from roll.cluster.child import main; main()"


class TimedOut(WorkerDied):
    """A call lasted longer than it may; its worker was killed and replaced."""


@dataclass(slots=True)
class _Worker:
    """One process, and the wire to it."""

    process: subprocess.Popen[bytes]
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def ask(self, message: Any) -> Any:
        """What the other side answers; raises what it raised there."""
        body = pickle.dumps(message)
        self.writer.write(len(body).to_bytes(_HEADER, "little") + body)
        await self.writer.drain()
        size = int.from_bytes(await self.reader.readexactly(_HEADER), "little")
        fine, found = pickle.loads(await self.reader.readexactly(size))
        if not fine:
            raise found
        return found

    def kill(self) -> None:
        """End the process and all it started; returns when it is gone."""
        self.writer.close()
        with contextlib.suppress(ProcessLookupError):  # it may be gone already
            os.killpg(self.process.pid, signal.SIGKILL)  # it leads a session of its own
        self.process.wait()


class ProcessCluster(Generic[W]):
    """`Cluster` over `size` child processes; each makes its worker as `worker` names it, and does one call at a time.

    Arguments and answers are pickled. A call that lasts longer than `limit_s`, or than `limits` has for the method of
    that name, raises `TimedOut`, one whose process ends under it raises `WorkerDied`; either way the next call finds a
    fresh worker.
    """

    def __init__(
        self,
        worker: Call,
        size: int,
        *,
        name: str,
        limit_s: float | None = None,
        limits: Mapping[str, float] | None = None,
    ) -> None:
        assert size > 0, "a cluster has at least one worker"
        self.name, self.limit_s, self.limits = name, limit_s, limits or {}
        self._worker = worker
        self._workers: list[_Worker | None] = [None] * size
        self._turns = [asyncio.Lock() for _ in range(size)]
        self._free: asyncio.Queue[int] = asyncio.Queue()
        for rank in range(size):
            self._free.put_nowait(rank)

    @property
    def size(self) -> int:
        return len(self._workers)

    @property
    def alive(self) -> list[int]:
        """Ranks whose process is up; the others have one made when they are called."""
        return [rank for rank, worker in enumerate(self._workers) if worker is not None]

    async def start(self) -> None:
        """Bring all workers up; raises what keeps one from starting."""
        await asyncio.gather(*(self._alive(rank) for rank in range(self.size)))

    async def stop(self) -> None:
        for rank, worker in enumerate(self._workers):
            if worker is not None:
                worker.kill()
                self._workers[rank] = None

    async def each(self, method: Method[P, R], *args: P.args, **kwargs: P.kwargs) -> list[R]:
        calls = [self.at(rank, method, *args, **kwargs) for rank in range(self.size)]
        return list(await asyncio.gather(*calls))

    async def scatter(
        self,
        method: Callable[Concatenate[Any, S, P], Awaitable[R]],
        shards: Sequence[S],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> list[R]:
        assert len(shards) == self.size, f"{len(shards)} shards for {self.size} workers"
        calls = [self.at(rank, method, shard, *args, **kwargs) for rank, shard in enumerate(shards)]
        return list(await asyncio.gather(*calls))

    async def at(self, rank: int, method: Method[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        async with self._turns[rank]:
            worker = await self._alive(rank)
            limit_s = self.limits.get(method.__name__, self.limit_s)
            try:
                async with asyncio.timeout(limit_s):
                    return await worker.ask((method.__name__, args, kwargs))
            except TimeoutError:
                self._lose(rank)
                what = f"{method.__name__} did not end within {limit_s:g} s"
                raise TimedOut(f"{self.name} {rank}: {what}; its worker was killed") from None
            except (asyncio.IncompleteReadError, ConnectionError):
                self._lose(rank)
                raise WorkerDied(f"{self.name} {rank}: its process ended during {method.__name__}") from None
            except asyncio.CancelledError:
                self._lose(rank)  # its answer would be taken for that of the next call
                raise

    async def any(self, method: Method[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        rank = await self._free.get()
        try:
            return await self.at(rank, method, *args, **kwargs)
        finally:
            self._free.put_nowait(rank)

    def _lose(self, rank: int) -> None:
        worker, self._workers[rank] = self._workers[rank], None
        if worker is not None:
            worker.kill()

    async def _alive(self, rank: int) -> _Worker:
        found = self._workers[rank]
        if found is None:
            found = self._workers[rank] = await _spawn()
            try:
                await found.ask((sys.path, self._worker, rank))
            except (asyncio.IncompleteReadError, ConnectionError):
                self._lose(rank)
                raise WorkerDied(f"{self.name} {rank}: its process ended before it had started") from None
            except BaseException:  # cancelled, or told why it cannot start: whoever calls next needs a fresh one
                self._lose(rank)
                raise
        return found


async def _spawn() -> _Worker:
    ours, theirs = socket.socketpair()
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-c", _CHILD, str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
    try:
        reader, writer = await asyncio.open_connection(sock=ours)
    except BaseException:
        process.kill()
        process.wait()
        raise
    return _Worker(process, reader, writer)
