"""Publication between processes on one GPU: the sender fills buckets of device memory that receivers look into.

Two buckets take turns. What is in one travels as a message over a socket; when it may be read, and when it may be
filled again, is said by events on the device, so that no process waits for the device but the device for itself.
Sender and receivers must be called at the same time.
"""

from __future__ import annotations

import contextlib
import importlib
import time
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Client, Connection, Listener
from typing import Any, cast

import torch

from roll.errors import RunStopped
from roll.weights.buckets import Bucket, Entry, Named, buckets, size_of

_PLACES = 2
_ALONE = _PLACES
"""Stands for memory of its own, for a tensor that fits into no bucket."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Socket:
    """Where the members of a publication find each other: a name that only they know, on one machine."""

    name: str
    num_receivers: int
    timeout_s: float = 600.0
    """For the sender to listen, and for any one message."""


@dataclass(slots=True)
class _Receiver:
    """The sender's view of one of them."""

    line: Connection
    read: list[Any]
    """By place: the event after which it has been read."""
    owed: int = 0
    """Buckets it has been told of and has not answered for."""


@dataclass(slots=True)
class _Opened:
    """What a receiver has of the sender."""

    line: Connection
    memory: list[torch.Tensor]
    full: list[Any]
    read: list[Any] = field(default_factory=list[Any])


class IpcSender:
    """The end of a `Channel` that trains."""

    def __init__(self, socket: Socket, *, bucket_bytes: int = 512 * 2**20) -> None:
        self.socket, self.bucket_bytes = socket, bucket_bytes
        self._memory: list[torch.Tensor] = []
        self._full: list[Any] = []
        self._receivers: list[_Receiver] = []

    def send(self, tensors: Iterable[Named], *, version: int) -> None:
        with _blamed(version):
            self._meet()
            place = 0
            for bucket in buckets(tensors, self.bucket_bytes):
                if size_of(bucket) > self.bucket_bytes:
                    self._show(*bucket[0], version)
                else:
                    self._fill(place, bucket, version)
                    place = (place + 1) % _PLACES
            self._tell((version, 0, None, []))
            self._settle()

    def receive(self, *, version: int) -> Iterable[Named]:
        raise AssertionError("the trainer's end sends")

    def _meet(self) -> None:
        """At the first publication: show every receiver the memory, and hear of its events."""
        if self._receivers:
            return
        place = f"\0{self.socket.name}"
        self._memory = [torch.empty(self.bucket_bytes, dtype=torch.uint8, device="cuda") for _ in range(_PLACES)]
        self._full = _events()
        with Listener(place, "AF_UNIX", authkey=self.socket.name.encode()) as listener:
            for _ in range(self.socket.num_receivers):
                line = listener.accept()
                shown = [_shown(memory) for memory in self._memory]
                line.send((shown, [event.ipc_handle() for event in self._full]))
                read = [_event(handle) for handle in self._heard(line)]
                self._receivers.append(_Receiver(line, read))

    def _fill(self, place: int, bucket: Bucket, version: int) -> None:
        for receiver in self._receivers:
            while receiver.owed >= _PLACES:
                self._answered(receiver)
            receiver.read[place].wait()
        for entry, lying in bucket:
            entry.within(self._memory[place]).copy_(lying)
        self._full[place].record()
        self._tell((version, place, None, [entry for entry, _ in bucket]))

    def _show(self, entry: Entry, lying: torch.Tensor, version: int) -> None:
        """Let receivers look into a copy, which is here until they have."""
        own = lying.contiguous().view(-1).view(torch.uint8)
        self._full[_ALONE].record()
        self._tell((version, _ALONE, _shown(own), [entry]))
        self._settle()
        for receiver in self._receivers:
            receiver.read[_ALONE].synchronize()

    def _tell(self, message: tuple[int, int, Any, list[Entry]]) -> None:
        for receiver in self._receivers:
            receiver.line.send(message)
            receiver.owed += bool(message[-1])

    def _settle(self) -> None:
        """Until all that was told has been answered."""
        for receiver in self._receivers:
            while receiver.owed:
                self._answered(receiver)

    def _answered(self, receiver: _Receiver) -> None:
        self._heard(receiver.line)
        receiver.owed -= 1

    def _heard(self, line: Connection) -> Any:
        return _heard(line, self.socket.timeout_s)


class IpcReceiver:
    """The end of a `Channel` that samples."""

    def __init__(self, socket: Socket) -> None:
        self.socket = socket
        self._opened: _Opened | None = None

    def send(self, tensors: Iterable[Named], *, version: int) -> None:
        raise AssertionError("a generator's end receives")

    def receive(self, *, version: int) -> Iterator[Named]:
        """In the order they were sent; each tensor is good until the next one is asked for."""
        with _blamed(version):
            opened = self._meet()
            while True:
                found, place, shown, entries = _heard(opened.line, self.socket.timeout_s)
                if found != version:
                    raise RunStopped(
                        f"weights: version {found} came where version {version} was due; start the run again"
                    )
                if not entries:
                    return
                opened.full[place].wait()
                memory = opened.memory[int(place)] if shown is None else _remade(shown)
                for entry in entries:
                    yield entry.name, entry.tensor(memory)
                opened.read[place].record()
                opened.line.send(place)

    def _meet(self) -> _Opened:
        if self._opened is None:
            line = self._called()
            shown, handles = _heard(line, self.socket.timeout_s)
            self._opened = _Opened(line, [_remade(each) for each in shown], [_event(each) for each in handles])
            self._opened.read = _events()
            line.send([event.ipc_handle() for event in self._opened.read])
        return self._opened

    def _called(self) -> Connection:
        """The line to the sender, as soon as it listens."""
        deadline = time.monotonic() + self.socket.timeout_s
        while True:
            try:
                return Client(f"\0{self.socket.name}", "AF_UNIX", authkey=self.socket.name.encode())
            except (ConnectionRefusedError, FileNotFoundError):
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.01)


def _shown(memory: torch.Tensor) -> tuple[Any, Any]:
    """What another process makes the same memory of: a function and its arguments."""
    reductions: Any = importlib.import_module("torch.multiprocessing.reductions")  # untyped
    return reductions.reduce_tensor(memory)


def _remade(shown: tuple[Any, Any]) -> torch.Tensor:
    return shown[0](*shown[1])


def _events() -> list[Any]:
    """One for each place, and one for what stands alone, all of them past."""
    found: list[Any] = [torch.cuda.Event(interprocess=True) for _ in range(_PLACES + 1)]
    for event in found:
        event.record()
    return found


def _event(handle: bytes) -> Any:
    return cast(Any, torch.cuda.Event).from_ipc_handle(torch.device("cuda", torch.cuda.current_device()), handle)


def _heard(line: Connection, timeout_s: float) -> Any:
    if not line.poll(timeout_s):
        raise TimeoutError(f"nothing was heard for {timeout_s:g} s")
    return line.recv()


@contextlib.contextmanager
def _blamed(version: int) -> Generator[None]:
    """What is raised when a member is gone or silent, as one line."""
    try:
        yield
    except (OSError, EOFError, RuntimeError) as error:
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise RunStopped(
            f"weights: version {version} did not get through ({reason}); see the logs of trainer and generators, "
            "then `roll resume` the run"
        ) from None


def ipc(rank: int, *, name: str, num_receivers: int, sends: bool = False) -> IpcSender | IpcReceiver:
    """The sender's end for the one worker that trains, or the end of a generator; all of them on one GPU."""
    assert not (sends and rank), "one worker sends"
    socket = Socket(name=name, num_receivers=num_receivers)
    return IpcSender(socket) if sends else IpcReceiver(socket)
