"""Processes that hold the ranks of trainers, started once: imports would take most of the time."""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import pickle
import shutil
import tempfile
import threading
import traceback
import uuid
from collections.abc import Coroutine
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from roll.algorithms.recipe import Objective
from roll.cluster.process import ProcessWorker
from roll.types import Batch, Sampling, Spec
from roll.weights.digest import Digest

_NUM = 4


class RankWorker:
    """The worker in each process: engines by name. A subclass makes them."""

    def __init__(self, rank: int) -> None:
        torch.set_num_threads(1)
        self.rank = rank
        self.engines: dict[str, Any] = {}
        self._held = threading.Event()

    async def call(self, name: str, method: str, *args: Any, **kwargs: Any) -> Any:
        return await getattr(self.engines[name], method)(*args, **kwargs)

    async def hold(self, name: str) -> None:
        """Let no background save begin before `release`."""
        self._held = threading.Event()
        self.engines[name]._saver.background.pool.submit(self._held.wait)

    async def release(self, name: str) -> None:
        self._held.set()

    async def drop(self, name: str) -> None:
        del self.engines[name]
        gc.collect()  # of cycles with process groups, each of which has threads

    async def num_threads(self) -> int:
        """Threads of the process, also those that Python does not know."""
        return len(list(Path("/proc/self/task").iterdir()))


def _serve(worker: RankWorker, wire: Connection) -> None:
    """Run requests one after the other until the connection closes."""
    while True:
        method, args, kwargs = wire.recv()
        try:
            wire.send((True, asyncio.run(getattr(worker, method)(*args, **kwargs))))
        except Exception as error:  # noqa: BLE001 - the caller raises it
            error.add_note(f"rank {worker.rank}: {traceback.format_exc()}")
            wire.send((False, error if _travels(error) else RuntimeError(traceback.format_exc())))


def _travels(error: Exception) -> bool:
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # noqa: BLE001 - an error may refer to anything
        return False
    return True


class RankHost:
    """A process that has imported everything, and all ranks as its children."""

    worker: type[RankWorker] = RankWorker

    def __init__(self, rank: int) -> None:
        self.prepare()
        fork = multiprocessing.get_context("fork")
        self._wires: list[Connection] = []
        for child in range(_NUM):
            ours, theirs = fork.Pipe()
            fork.Process(target=self._child, args=(child, theirs), daemon=True).start()
            self._wires.append(ours)

    def prepare(self) -> None:
        """Import what all ranks need."""

    def _child(self, rank: int, wire: Connection) -> None:
        _serve(self.worker(rank), wire)

    async def all(self, size: int, method: str, *args: Any, **kwargs: Any) -> list[Any]:
        """The results of this many ranks; raises the first error once all of them have replied."""
        calls = [asyncio.to_thread(self._one, wire, (method, args, kwargs)) for wire in self._wires[:size]]
        replies = await asyncio.gather(*calls)  # a reply left on its wire would be taken for that of the next call
        for fine, result in replies:
            if not fine:
                raise result
        return [result for _, result in replies]

    def _one(self, wire: Connection, message: Any) -> Any:
        wire.send(message)
        return wire.recv()


class RankTeam:
    """The processes of a host, such as `package.module:Class`, and an event loop to call them."""

    def __init__(self, host: str, limit_s: float) -> None:
        self._host_name, self._limit_s = host, limit_s
        self._runner = asyncio.Runner()
        self.folder = Path(tempfile.mkdtemp(prefix="roll-ranks-"))
        self._host: ProcessWorker[RankHost] | None = None

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return self._runner.run(coroutine)

    async def ask(self, size: int, method: str, *args: Any, **kwargs: Any) -> list[Any]:
        """Call a method of the workers of the first ranks."""
        if self._host is None:
            self._host = await ProcessWorker.start(Spec(self._host_name), 0, name="ranks")
        try:
            async with asyncio.timeout(self._limit_s):
                return await self._host.call(RankHost.all, size, method, *args, **kwargs)
        except TimeoutError:
            self.kill()
            raise

    def kill(self) -> None:
        """End all processes; the next call starts new ones."""
        if self._host is not None:
            self._host.kill("they are not needed any more")
            self._host = None

    def close(self) -> None:
        async def end() -> None:
            self.kill()

        self._runner.run(end())
        self._runner.close()
        shutil.rmtree(self.folder)


class RemoteTrainer:
    """`Trainer` over ranks, which must return the same results. A subclass makes the engines of the ranks."""

    def __init__(self, processes: RankTeam, size: int) -> None:
        self.processes, self.size, self.name = processes, size, uuid.uuid4().hex

    async def start(self) -> None:
        await self.make()
        await self._same("start")

    async def make(self) -> None:
        raise NotImplementedError

    async def stop(self) -> None:
        await self._same("stop")
        await self.processes.ask(self.size, "drop", self.name)

    async def logprobs(self, batch: Batch, *, sampling: Sampling | None = None) -> torch.Tensor:
        return await self._same("logprobs", batch, sampling=sampling)

    async def base_logprobs(self, batch: Batch) -> torch.Tensor:
        return await self._same("base_logprobs", batch)

    async def logprobs_and_entropies(self, batch: Batch) -> torch.Tensor:
        return await self._same("logprobs_and_entropies", batch)

    async def values(self, batch: Batch) -> torch.Tensor:
        return await self._same("values", batch)

    async def update(self, batch: Batch, objective: Objective) -> dict[str, float]:
        return await self._same("update", batch, objective)

    async def send(self, version: int) -> Digest:
        return await self._same("send", version)

    async def save(self, path: Path, **options: bool) -> None:
        await self._same("save", path, **options)

    async def save_completed(self) -> bool:
        return await self._same("save_completed")

    async def hold(self) -> None:
        """Let no background save begin before `release`."""
        await self.processes.ask(self.size, "hold", self.name)

    async def release(self) -> None:
        """The opposite of `hold`."""
        await self.processes.ask(self.size, "release", self.name)

    async def load(self, path: Path) -> None:
        await self._same("load", path)

    async def _same(self, method: str, *args: Any, **kwargs: Any) -> Any:
        first, *others = await self.processes.ask(self.size, "call", self.name, method, *args, **kwargs)
        for other in others:
            same = torch.equal(first, other) if isinstance(first, torch.Tensor) else repr(first) == repr(other)
            assert same, f"ranks differ after {method}: {first} and {other}"
        return first
