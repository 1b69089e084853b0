"""Weight channel between processes on one GPU: the sender fills buckets of device memory that receivers map.

Two buffers alternate. The entries of a bucket travel as a message over a socket. Device events say when a buffer may be
read and when it may be filled again, so the device waits and no process does. Sender and receivers must be called at
the same time.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Client, Connection, Listener
from typing import Any, cast

import torch

from roll.errors import RunStopped
from roll.weights.buckets import NUM_BUFFERS, Bucket, Entry, NamedTensor, buckets, copy_into, size_of
from roll.weights.membership import Membership

_SEPARATE = NUM_BUFFERS
"""Index of the events for a tensor that is larger than a buffer and travels in memory allocated for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IpcAddress:
    """The socket at which the members of a transfer meet: a secret name on one machine."""

    name: str
    num_receivers: int
    timeout_s: float = 600.0
    """For each message."""
    arrival_s: float = 60.0
    """For all members to arrive, all of which are called at the same time."""

    def socket(self, version: int) -> str:
        """The socket of the group that is formed for this version; a sender that has died may still hold another."""
        return f"\0{self.name}-{version}"


@dataclass(slots=True)
class _Receiver:
    """The sender's view of one receiver."""

    connection: Connection
    read_events: list[Any]
    """By buffer, the event that the receiver records once it has read it."""
    unacknowledged: int = 0
    """Buckets announced that the receiver has not acknowledged."""


@dataclass(slots=True)
class _Sender:
    """A receiver's view of the sender."""

    connection: Connection
    buffers: list[torch.Tensor]
    filled_events: list[Any]
    read_events: list[Any]


class IpcSender(Membership):
    """The trainer's end of a `Channel`."""

    _device = "cuda"

    def __init__(self, address: IpcAddress, *, bucket_bytes: int = 512 * 2**20) -> None:
        self.address, self.bucket_bytes = address, bucket_bytes
        self._buffers: list[torch.Tensor] = []
        self._filled_events: list[Any] = []
        self._receivers: list[_Receiver] = []

    def send(self, tensors: Iterable[NamedTensor], *, version: int) -> None:
        with self._transfer(version):
            index = 0
            for bucket in buckets(tensors, self.bucket_bytes):
                if size_of(bucket) > self.bucket_bytes:
                    self._send_separately(*bucket[0], version)
                else:
                    self._fill(index, bucket, version)
                    index = (index + 1) % NUM_BUFFERS
            self._announce((version, 0, None, []))
            self._await_acknowledgements()

    def receive(self, *, version: int) -> Iterable[NamedTensor]:
        raise AssertionError("the trainer's end sends")

    def _join(self, version: int) -> None:
        """Share the buffers with every receiver, and exchange event handles."""
        name, timeout_s = self.address.name, self.address.timeout_s
        while len(self._buffers) < NUM_BUFFERS:
            self._buffers.append(torch.empty(self.bucket_bytes, dtype=torch.uint8, device=self._device))
        self._filled_events = _new_events()
        with Listener(self.address.socket(version), "AF_UNIX", authkey=name.encode()) as listener:
            cast(Any, listener)._listener._socket.settimeout(self.address.arrival_s)  # it has no parameter for it
            for _ in range(self.address.num_receivers):
                connection = listener.accept()
                handles = [_export(buffer) for buffer in self._buffers]
                connection.send((handles, [event.ipc_handle() for event in self._filled_events]))
                read_events = [_import_event(handle) for handle in _receive_message(connection, timeout_s)]
                self._receivers.append(_Receiver(connection, read_events))

    def _leave(self) -> None:
        while self._receivers:
            self._receivers.pop().connection.close()

    def _fill(self, index: int, bucket: Bucket, version: int) -> None:
        for receiver in self._receivers:
            while receiver.unacknowledged >= NUM_BUFFERS:
                self._await_acknowledgement(receiver)
            receiver.read_events[index].wait()
        copy_into(self._buffers[index], bucket)
        self._filled_events[index].record()
        self._announce((version, index, None, [entry for entry, _ in bucket]))

    def _send_separately(self, entry: Entry, stored: torch.Tensor, version: int) -> None:
        """Share a copy of one large tensor, and hold it until every receiver has read it."""
        payload = stored.contiguous().view(-1).view(torch.uint8)
        self._filled_events[_SEPARATE].record()
        self._announce((version, _SEPARATE, _export(payload), [entry]))
        self._await_acknowledgements()
        for receiver in self._receivers:
            receiver.read_events[_SEPARATE].synchronize()

    def _announce(self, message: tuple[int, int, Any, list[Entry]]) -> None:
        for receiver in self._receivers:
            receiver.connection.send(message)
            receiver.unacknowledged += bool(message[-1])

    def _await_acknowledgements(self) -> None:
        for receiver in self._receivers:
            while receiver.unacknowledged:
                self._await_acknowledgement(receiver)

    def _await_acknowledgement(self, receiver: _Receiver) -> None:
        _receive_message(receiver.connection, self.address.timeout_s)
        receiver.unacknowledged -= 1


class IpcReceiver(Membership):
    """A generator's end of a `Channel`."""

    def __init__(self, address: IpcAddress) -> None:
        self.address = address
        self._sender: _Sender | None = None

    def send(self, tensors: Iterable[NamedTensor], *, version: int) -> None:
        raise AssertionError("a generator's end receives")

    def receive(self, *, version: int) -> Iterator[NamedTensor]:
        """The tensors in the order they were sent, each valid until the next is read."""
        with self._transfer(version):
            sender = self._sender
            assert sender is not None
            while True:
                arrived, index, handle, entries = _receive_message(sender.connection, self.address.timeout_s)
                if arrived != version:
                    raise RunStopped(
                        f"weights: version {arrived} arrived instead of version {version}; start the run again"
                    )
                if not entries:
                    return
                sender.filled_events[index].wait()
                payload = sender.buffers[int(index)] if handle is None else _import(handle)
                for entry in entries:
                    yield entry.name, entry.tensor(payload)
                sender.read_events[index].record()
                sender.connection.send(index)

    def _join(self, version: int) -> None:
        connection = self._dial(self.address.socket(version))
        handles, events = _receive_message(connection, self.address.timeout_s)
        buffers = [_import(handle) for handle in handles]
        self._sender = _Sender(connection, buffers, [_import_event(handle) for handle in events], _new_events())
        connection.send([event.ipc_handle() for event in self._sender.read_events])

    def _leave(self) -> None:
        if self._sender is not None:
            self._sender.connection.close()
            self._sender = None

    def _dial(self, socket: str) -> Connection:
        """A connection to the sender, as soon as it listens."""
        deadline = time.monotonic() + self.address.arrival_s
        while True:
            try:
                return Client(socket, "AF_UNIX", authkey=self.address.name.encode())
            except (ConnectionRefusedError, FileNotFoundError):
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.01)


def _export(memory: torch.Tensor) -> tuple[Any, Any]:
    """A function and its arguments, with which another process maps the same memory."""
    reductions: Any = importlib.import_module("torch.multiprocessing.reductions")  # untyped
    return reductions.reduce_tensor(memory)


def _import(handle: tuple[Any, Any]) -> torch.Tensor:
    return handle[0](*handle[1])


def _new_events() -> list[Any]:
    """One event per buffer and one for separate tensors, all of them already recorded."""
    events: list[Any] = [torch.cuda.Event(interprocess=True) for _ in range(NUM_BUFFERS + 1)]
    for event in events:
        event.record()
    return events


def _import_event(handle: bytes) -> Any:
    return cast(Any, torch.cuda.Event).from_ipc_handle(torch.device("cuda", torch.cuda.current_device()), handle)


def _receive_message(connection: Connection, timeout_s: float) -> Any:
    if not connection.poll(timeout_s):
        raise TimeoutError(f"no message for {timeout_s:g} s")
    return connection.recv()


def ipc(rank: int, *, name: str, num_receivers: int, sends: bool = False) -> IpcSender | IpcReceiver:
    """The sender's end for the single training worker, or the end of a generator; all of them on one GPU."""
    assert not (sends and rank), "one worker sends"
    address = IpcAddress(name=name, num_receivers=num_receivers)
    return IpcSender(address) if sends else IpcReceiver(address)
