"""Workers in child processes of this machine. A process that hangs is killed from outside and replaced.

| call | waits for | woken by |
|---|---|---|
| `ProcessWorker.start` | the process and its worker | the first reply; the process's death |
| `ProcessCluster.start` | all of its workers | their starts; `start_timeout_s`; too many deaths |
| `ProcessWorker.call` | the reply to this call; calls run concurrently | the reply; the process's death |
| `ProcessWorker.responds` | a turn of the process's event loop | its reply; the timeout; the process's death |
| `ProcessCluster.at` | its turn (one call per worker), then the reply | the reply; the timeout; the process's death |
| `kill`, `stop` | the end of the process and its children, which they kill | |
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import inspect
import logging
import os
import pickle
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Awaitable, Mapping
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, Generic

from roll.cluster.framing import MessageStream
from roll.cluster.handle import Cluster, Method, P, R, W, build_worker
from roll.cluster.pending import PendingCall, PendingStarts
from roll.cluster.process_state import describe_exit
from roll.cluster.process_tree import signal_on_parent_death
from roll.cluster.replacement import FirstStart, Replacement, ReplacementReports
from roll.errors import WorkerDied
from roll.tracking.startup import StartProgress
from roll.types import Spec

_CHILD = "from roll.cluster.process import main; main()"
_PR_SET_NAME = 15
_EXIT_S = 5.0
"""Most seconds between the end of a connection and the end of its process."""
_LOG = logging.getLogger(__name__)
_BUILD, _CALL, _CANCEL, _PING = "build", "call", "cancel", "ping"
"""Kinds of requests: the first entry of a message to the child."""


class TimedOut(WorkerDied):
    """A call exceeded its timeout; its worker was killed and the next call starts another."""


class ExitedInCall(RuntimeError):
    """A call raised `SystemExit` or another exception that ends a process."""


class ProcessWorker(Generic[W]):
    """One child process with one worker. Calls run concurrently, as tasks of its main thread.

    Arguments and results are pickled. Cancelling a call cancels it in the child. Once the process is gone, calls in
    flight and later ones raise `WorkerDied` with the reason.
    """

    def __init__(self, name: str, process: subprocess.Popen[bytes]) -> None:
        self.name, self._process = name, process
        self.exit_reason = ""
        """Why the process ended; empty while it runs."""
        self._stream = MessageStream(self._receive, self._on_close)
        self._replies: dict[int, asyncio.Future[Any]] = {}
        self._pending: dict[int, PendingCall] = {}
        self._numbers = count()

    @classmethod
    async def start(cls, worker: Spec, rank: int, *, name: str) -> ProcessWorker[W]:
        """A new process with its worker built; raises what kept it from that."""
        ours, theirs = socket.socketpair()
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-c", _CHILD, str(theirs.fileno()), f"{name} {rank}"],  # the name is for `ps`
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        started = cls(f"{name} {rank}", process)
        try:
            await asyncio.get_running_loop().create_connection(lambda: started._stream, sock=ours)
            await started._request((_BUILD, sys.path, worker, rank), "its start")
        except BaseException:
            started.kill("it could not start")
            raise
        return started

    @property
    def pid(self) -> int:
        return self._process.pid

    def pending_calls(self) -> list[PendingCall]:
        """The calls in flight."""
        return list(self._pending.values())

    async def call(self, method: Method[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """The worker's result; raises what the worker raised."""
        return await self._request((_CALL, method.__name__, args, kwargs), method.__name__)

    async def responds(self, within_s: float) -> bool:
        """Whether the child's event loop reacts within that time; it does not if a call blocks it."""
        try:
            async with asyncio.timeout(within_s):
                await self._request((_PING,), "a ping")
        except (TimeoutError, WorkerDied):
            return False
        return True

    def memory(self) -> int:
        """Resident memory in bytes; 0 if the process is gone or the system does not report it."""
        try:
            resident = Path(f"/proc/{self.pid}/statm").read_text(encoding="ascii").split()[1]
        except (OSError, IndexError):
            return 0
        return int(resident) * os.sysconf("SC_PAGE_SIZE")

    def kill(self, reason: str, hint: str = "") -> None:
        """End the process and its children; returns when it is gone. Calls in flight raise the reason and the hint."""
        if self.exit_reason:
            return
        self.exit_reason = reason
        with contextlib.suppress(ProcessLookupError):  # it may have ended already
            os.killpg(self.pid, signal.SIGKILL)  # it leads its own session
        self._process.wait()
        self._stream.close()
        for reply in self._replies.values():
            if not reply.done():
                reply.set_exception(WorkerDied(f"{self.name}: {reason}", hint))

    def _on_close(self) -> None:
        """The connection has ended: unless `kill` did it, the process has ended by itself or was killed."""
        if self.exit_reason:
            return
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_EXIT_S)
        reason, hint = describe_exit(self.pid, self._process.returncode)
        self.kill(reason, hint)
        _LOG.warning("%s", WorkerDied(f"{self.name}: {reason}", hint))

    async def _request(self, message: tuple[Any, ...], what: str) -> Any:
        if self.exit_reason:
            raise WorkerDied(f"{self.name}: {self.exit_reason}")
        number, body, idle = next(self._numbers), pickle.dumps(message), not self._replies
        reply = self._replies[number] = asyncio.get_running_loop().create_future()
        self._pending[number] = PendingCall(worker=self.name, method=what, since=time.monotonic(), pid=self.pid)
        self._stream.send(number, body, now=idle)
        try:
            ok, value = await reply
        except asyncio.CancelledError:
            if not self.exit_reason:
                self._stream.send(next(self._numbers), pickle.dumps((_CANCEL, number)))
            raise
        except WorkerDied as error:
            raise WorkerDied(f"{error.what} during {what}", error.fix) from None
        finally:
            self._replies.pop(number, None)
            self._pending.pop(number, None)
        if ok:
            return value
        if isinstance(value, asyncio.CancelledError):
            raise RuntimeError(f"{self.name}: {what} was cancelled in the child, not by its caller")
        raise value

    def _receive(self, number: int, message: Any) -> None:
        reply = self._replies.get(number)
        if reply is not None and not reply.done():  # else its caller was cancelled
            reply.set_result((False, message) if isinstance(message, Exception) else message)


class ProcessCluster(Cluster[W]):
    """`Cluster` over `size` child processes, each with one worker and one call at a time.

    A call that exceeds `timeout_s`, or the entry of `timeouts` for its method, raises `TimedOut`. If the process ends
    during a call, the call raises `WorkerDied`. In both cases, and after a cancelled call, the next call starts a new
    worker: a call that blocks its process cannot be stopped in another way.
    """

    def __init__(
        self,
        worker: Spec,
        size: int,
        *,
        name: str,
        timeout_s: float | None = None,
        timeouts: Mapping[str, float] | None = None,
        start_timeout_s: float | None = None,
    ) -> None:
        assert size > 0, "a cluster has at least one worker"
        self.name, self.timeout_s, self.timeouts = name, timeout_s, timeouts or {}
        self.start_timeout_s = start_timeout_s
        self._spec = worker
        self._workers: list[ProcessWorker[W] | None] = [None] * size
        self._locks = [asyncio.Lock() for _ in range(size)]
        self._starts = PendingStarts()
        self.replaced = ReplacementReports()

    @property
    def size(self) -> int:
        return len(self._workers)

    @property
    def alive(self) -> list[int]:
        """Ranks whose process runs; a call to another rank starts its process."""
        return [rank for rank, worker in enumerate(self._workers) if worker is not None and not worker.exit_reason]

    def pending_calls(self) -> list[PendingCall]:
        """The calls in flight of all workers, and the starts of new ones."""
        calls = [call for worker in self._workers if worker is not None for call in worker.pending_calls()]
        return [*calls, *self._starts.pending_calls()]

    async def start(self, first: FirstStart | None = None) -> None:
        """Start all workers; raises what keeps one from starting."""
        progress, first = StartProgress(f"processes of {self.name}", self.size), first or FirstStart()
        starts = [
            first.run(partial(self._ensure_started, rank), f"{self.name} {rank}", self.replaced)
            for rank in range(self.size)
        ]
        await asyncio.gather(*map(progress.track, starts))

    async def stop(self) -> None:
        for worker in self._workers:
            if worker is not None:
                worker.kill("it was stopped")

    async def at(self, rank: int, method: Method[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        timeout_s = self.timeouts.get(method.__name__, self.timeout_s)
        return await self.at_within(timeout_s, rank, method, *args, **kwargs)

    async def at_within(
        self, timeout_s: float | None, rank: int, method: Method[P, R], *args: P.args, **kwargs: P.kwargs
    ) -> R:
        """As `at`, with a timeout for this call alone."""
        async with self._locks[rank]:
            worker = await self._ensure_started(rank)
            deadline = asyncio.timeout(timeout_s)
            try:
                async with deadline:
                    return await worker.call(method, *args, **kwargs)
            except TimeoutError:
                if not deadline.expired():
                    raise  # the worker's own
                worker.kill("it was killed")
                what = f"{method.__name__} did not end within {timeout_s:g} s"
                raise TimedOut(f"{worker.name}: {what}; its worker was killed") from None
            except ExitedInCall as error:
                worker.kill("its process ended")
                what = f"its process (pid {worker.pid}) ended during {method.__name__} ({error})"
                raise WorkerDied(f"{worker.name}: {what}") from None
            except asyncio.CancelledError:
                worker.kill("its call was cancelled")
                raise

    async def _ensure_started(self, rank: int) -> ProcessWorker[W]:
        worker = before = self._workers[rank]
        if worker is None or worker.exit_reason:
            began = time.monotonic()
            with self._starts.record(f"{self.name} {rank}"):
                worker = self._workers[rank] = await self._start_worker(rank)
            if before is not None:
                seconds = time.monotonic() - began
                self.replaced.add(Replacement(worker=worker.name, reason=before.exit_reason, seconds=seconds))
        return worker

    async def _start_worker(self, rank: int) -> ProcessWorker[W]:
        deadline = asyncio.timeout(self.start_timeout_s)
        try:
            async with deadline:
                return await ProcessWorker[W].start(self._spec, rank, name=self.name)
        except TimeoutError:
            if not deadline.expired():
                raise  # the worker's own
            what = f"did not start within {self.start_timeout_s:g} s; its process was killed"
            raise WorkerDied(f"{self.name} {rank}: {what}") from None


def main() -> None:
    """Run a child process: serve the socket of the first argument, a file descriptor, until it closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the controller handles Ctrl-C
    signal_on_parent_death(signal.SIGKILL)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_NAME, sys.argv[2].encode())  # for `top`; at most 15 bytes of it
    asyncio.run(_serve(socket.socket(fileno=int(sys.argv[1]))))


async def _serve(connection: socket.socket) -> None:
    child = _Child()
    await asyncio.get_running_loop().create_connection(lambda: child.stream, sock=connection)
    await asyncio.Event().wait()


class _Child:
    """The child's end: its worker, and a task per call. A ping is answered between two calls."""

    def __init__(self) -> None:
        self.stream = MessageStream(self._receive, lambda: os._exit(0))
        self._worker: Any = None
        self._calls: dict[int, asyncio.Task[None]] = {}

    def _receive(self, number: int, message: Any) -> None:
        if isinstance(message, Exception):
            self._reply(number, False, message)
            return
        kind, *rest = message
        if kind == _PING:
            self._reply(number, True, None)
        elif kind == _CANCEL:
            if (call := self._calls.get(rest[0])) is not None:
                call.cancel()
        else:
            work = self._build(*rest) if kind == _BUILD else self._call(*rest)
            self._calls[number] = asyncio.get_running_loop().create_task(self._run(number, work))

    async def _run(self, number: int, work: Awaitable[Any]) -> None:
        try:
            ok, value = True, await work
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - the caller raises any error
            ok, value = False, error
        except BaseException as error:  # noqa: BLE001 - SystemExit must not end the other calls
            ok, value = False, ExitedInCall(f"{type(error).__name__}: {error}")
        del self._calls[number]
        self._reply(number, ok, value)

    async def _build(self, paths: list[str], worker: Spec, rank: int) -> None:
        sys.path[:] = paths
        self._worker = build_worker(worker, rank)

    async def _call(self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = getattr(self._worker, method)(*args, **kwargs)
        return await result if inspect.isawaitable(result) else result

    def _reply(self, number: int, ok: bool, value: Any) -> None:
        try:
            body = pickle.dumps((ok, value))
        except Exception as error:  # noqa: BLE001 - results and errors that cannot be pickled are described
            text = f"{type(value).__name__} cannot be sent to another process ({error}): {value!r}"
            body = pickle.dumps((False, TypeError(text)))
        self.stream.send(number, body, now=not self._calls)
