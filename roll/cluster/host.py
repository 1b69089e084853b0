"""A process whose worker does many calls at once. One call that never gives way costs the process, not the run.

| call | waits for | woken by |
|---|---|---|
| `Host.open` | the process and its worker | the first answer; the process's death |
| `ask` | the answer to this call | the answer; the process's death |
| `gives_way` | the process's event loop to come round | its answer; the limit of time; the process's death |
| `kill` | the end of the process and all it started | their death, which it brings about |
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
from itertools import count
from pathlib import Path
from typing import Any, Generic

from roll.cluster.framing import Wire
from roll.cluster.handle import Method, P, R, W
from roll.cluster.host_child import CALL, CANCEL, MAKE, PING
from roll.errors import WorkerDied
from roll.types import Call

_CHILD = "from roll.cluster.host_child import main; main()"


class Host(Generic[W]):
    """One process with one worker, made as `worker` names it; calls run there side by side, in the main thread.

    Arguments and answers are pickled. Cancelling a call cancels it there. Once the process is gone, every call that was
    under way or comes later raises `WorkerDied`, with `why` where it was told.
    """

    def __init__(self, name: str, process: subprocess.Popen[bytes]) -> None:
        self.name, self._process = name, process
        self.why = ""
        """Why it is no more; empty while it lives."""
        self._wire = Wire(self._heard, lambda: self.kill("its process ended"))
        self._asked: dict[int, asyncio.Future[Any]] = {}
        self._numbers = count()

    @classmethod
    async def open(cls, worker: Call, rank: int, *, name: str) -> Host[W]:
        """A fresh process with its worker made; raises what kept it from that."""
        ours, theirs = socket.socketpair()
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-c", _CHILD, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        host = cls(f"{name} {rank}", process)
        try:
            await asyncio.get_running_loop().create_connection(lambda: host._wire, sock=ours)
            await host._answer_to((MAKE, sys.path, worker, rank), "its start")
        except BaseException:
            host.kill("it could not start")
            raise
        return host

    @property
    def pid(self) -> int:
        return self._process.pid

    async def ask(self, method: Method[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """What the worker answers; raises what it raised there."""
        return await self._answer_to((CALL, method.__name__, args, kwargs), method.__name__)

    async def gives_way(self, within_s: float) -> bool:
        """Whether its event loop comes round in that time: where it does not, a call holds everything up."""
        try:
            async with asyncio.timeout(within_s):
                await self._answer_to((PING,), "a question")
        except (TimeoutError, WorkerDied):
            return False
        return True

    def memory(self) -> int:
        """Bytes of memory that the process holds; 0 where it is gone, or the system does not say."""
        try:
            resident = Path(f"/proc/{self.pid}/statm").read_text(encoding="ascii").split()[1]
        except (OSError, IndexError):
            return 0
        return int(resident) * os.sysconf("SC_PAGE_SIZE")

    def kill(self, why: str) -> None:
        """End the process and all it started; returns when it is gone."""
        if self.why:
            return
        self.why = why
        with contextlib.suppress(ProcessLookupError):  # it may be gone already
            os.killpg(self.pid, signal.SIGKILL)  # it leads a session of its own
        self._process.wait()
        self._wire.close()
        for answer in self._asked.values():
            if not answer.done():
                answer.set_exception(WorkerDied(f"{self.name}: {why}"))

    async def _answer_to(self, message: tuple[Any, ...], what: str) -> Any:
        if self.why:
            raise WorkerDied(f"{self.name}: {self.why}")
        number = next(self._numbers)
        body = pickle.dumps(message)
        answer = self._asked[number] = asyncio.get_running_loop().create_future()
        self._wire.send(number, body)
        try:
            fine, found = await answer
        except asyncio.CancelledError:
            if not self.why:
                self._wire.send(next(self._numbers), pickle.dumps((CANCEL, number)))
            raise
        except WorkerDied as error:
            raise WorkerDied(f"{error} (during {what})") from None
        finally:
            self._asked.pop(number, None)
        if fine:
            return found
        if isinstance(found, asyncio.CancelledError):
            raise RuntimeError(f"{self.name}: {what} was cancelled there, by nobody here")
        raise found

    def _heard(self, number: int, message: Any) -> None:
        answer = self._asked.get(number)
        if answer is not None and not answer.done():  # else nobody waits any more
            answer.set_result((False, message) if isinstance(message, Exception) else message)
