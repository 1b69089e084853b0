"""Weight channels over gloo and NCCL: one sender broadcasts buckets of tensors while it packs the next one.

Their process groups are separate from those of the trainer and the generator. All members meet at the first
publication; sender and receivers must then be called at the same time.
"""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import astuple, dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from roll.weights.buckets import NUM_BUFFERS, Entry, NamedTensor, buckets, copy_into, size_of
from roll.weights.meeting import current_meeting, is_cancelled
from roll.weights.membership import Membership

_dist: Any = dist  # its types are incomplete
_SEND_IN_PLACE = 4 * 2**20
"""Bytes from which a contiguous CPU tensor is sent from its own memory, without a copy into a bucket."""
_ARRIVAL_POLL_S = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendezvous:
    """Where the members of a transfer meet, and the rank of this one."""

    meeting: Path
    """The file of `open_meeting`."""
    rank: int
    """0 sends, all others receive."""
    size: int
    timeout_s: float = 600.0
    """For each bucket."""
    arrival_s: float = 60.0
    """For all members to arrive, all of which are called at the same time."""


class GlooChannel(Membership):
    """`Channel` from rank 0 to all other ranks of a rendezvous."""

    _device = "cpu"

    def __init__(self, rendezvous: Rendezvous, *, bucket_bytes: int = 64 * 2**20) -> None:
        self.rendezvous, self.bucket_bytes = rendezvous, bucket_bytes
        self._url = ""
        self._store: Any = None
        self._group: Any = None
        self._payload_group: Any = None
        """The group that moves the bytes of a bucket."""
        self._buffers: list[torch.Tensor] = []

    def send(self, tensors: Iterable[NamedTensor], *, version: int) -> None:
        assert self.rendezvous.rank == 0, "only rank 0 sends"
        with self._transfer(version):
            in_flight: deque[list[tuple[Any, torch.Tensor]]] = deque()
            for entries, payload in self._pack(tensors):
                in_flight.append(self._post(entries, payload, version))
                if len(in_flight) > 1:  # the next bucket overwrites the buffer of the one before this
                    _finish(in_flight.popleft())
            in_flight.append(self._post([], torch.empty(0, dtype=torch.uint8), version))
            while in_flight:
                _finish(in_flight.popleft())

    def receive(self, *, version: int) -> Iterator[NamedTensor]:
        """The tensors in any order, each valid until the next is read: its buffer is then written again."""
        assert self.rendezvous.rank > 0, "rank 0 sends"
        with self._transfer(version):
            arriving: deque[tuple[list[Entry], torch.Tensor, Any]] = deque()
            number, more = 0, True
            while more or arriving:
                while more and len(arriving) < NUM_BUFFERS:  # read one bucket while the next one arrives
                    arriving.append(self._expect(number, version))
                    number, more = number + 1, bool(arriving[-1][0])
                entries, payload, work = arriving.popleft()
                if work is not None:
                    work.wait()
                for entry in entries:
                    yield entry.name, entry.tensor(payload)

    def _moved(self) -> bool:
        url = current_meeting(self.rendezvous.meeting)
        if url == self._url:
            return False
        self._url, self._store = url, None
        return True

    def _join(self, version: int) -> None:
        meeting = self.rendezvous
        arrival, timeout = timedelta(seconds=meeting.arrival_s), timedelta(seconds=meeting.timeout_s)
        if self._store is None:
            self._store = next(_dist.rendezvous(self._url, meeting.rank, meeting.size, timeout=arrival))[0]
            self._store.set_timeout(arrival)
        store = _dist.PrefixStore(str(version), self._store)
        store.set(f"here {meeting.rank}", "")
        self._await_members(store, version)  # gloo would wait for `timeout`
        self._group = _dist.ProcessGroupGloo(store, meeting.rank, meeting.size, timeout)
        self._payload_group = self._form_payload_group(_dist.PrefixStore("payload", store), timeout)

    def _await_members(self, store: Any, version: int) -> None:
        meeting, deadline = self.rendezvous, time.monotonic() + self.rendezvous.arrival_s
        while not store.check([f"here {rank}" for rank in range(meeting.size)]):
            if is_cancelled(meeting.meeting, version):
                raise ConnectionAbortedError("another member ended before it arrived")
            if time.monotonic() > deadline:
                raise TimeoutError(f"not all of {meeting.size} members arrived within {meeting.arrival_s:g} s")
            time.sleep(_ARRIVAL_POLL_S)

    def _form_payload_group(self, store: Any, timeout: timedelta) -> Any:
        return self._group

    def _leave(self) -> None:
        groups, self._group, self._payload_group = {self._payload_group, self._group}, None, None
        for group in groups - {None}:
            group.abort()

    def _pack(self, tensors: Iterable[NamedTensor]) -> Iterator[tuple[list[Entry], torch.Tensor]]:
        """The entries and bytes of each bucket; two buffers alternate, and large tensors are sent from their memory."""
        number = 0
        for bucket in buckets(tensors, self.bucket_bytes, separate=self._separate):
            stored = bucket[0][1]
            if self._separate(stored):
                payload = stored.to(self._device).contiguous().view(-1).view(torch.uint8)
            else:
                payload = self._buffer(number, size_of(bucket))
                copy_into(payload, bucket)
                number += 1
            yield [entry for entry, _ in bucket], payload

    def _separate(self, stored: torch.Tensor) -> bool:
        in_place = (
            stored.device.type == self._device == "cpu" and stored.is_contiguous() and stored.nbytes >= _SEND_IN_PLACE
        )
        return in_place or stored.nbytes > self.bucket_bytes

    def _buffer(self, number: int, num_bytes: int) -> torch.Tensor:
        """`num_bytes` for bucket `number`: a buffer in turn, or new memory for a large tensor."""
        if num_bytes > self.bucket_bytes:
            return torch.empty(num_bytes, dtype=torch.uint8, device=self._device)
        while len(self._buffers) < NUM_BUFFERS:
            self._buffers.append(torch.empty(self.bucket_bytes, dtype=torch.uint8, device=self._device))
        return self._buffers[number % NUM_BUFFERS][:num_bytes]

    def _post(self, entries: list[Entry], payload: torch.Tensor, version: int) -> list[tuple[Any, torch.Tensor]]:
        """Start to send a bucket; returns the running operations, each with the memory that it reads."""
        text = json.dumps([version, [astuple(entry) for entry in entries]]).encode()
        header = torch.frombuffer(bytearray(text), dtype=torch.uint8)
        sizes = torch.tensor([len(header), len(payload)])
        posted = [(self._group.broadcast(part, 0), part) for part in (sizes, header)]
        return [*posted, *([(self._payload_group.broadcast(payload, 0), payload)] if len(payload) else [])]

    def _expect(self, number: int, version: int) -> tuple[list[Entry], torch.Tensor, Any]:
        """The entries of the next bucket, its memory, and the operation that fills it."""
        sizes = torch.zeros(2, dtype=torch.int64)
        self._group.broadcast(sizes, 0).wait()
        header = torch.empty(int(sizes[0]), dtype=torch.uint8)
        self._group.broadcast(header, 0).wait()
        arrived, entries = json.loads(header.numpy().tobytes())
        assert arrived == version, f"version {arrived} arrived instead of version {version}"
        payload = self._buffer(number, int(sizes[1]))
        work = self._payload_group.broadcast(payload, 0) if len(payload) else None
        return [Entry(*entry) for entry in entries], payload, work


def _finish(posted: list[tuple[Any, torch.Tensor]]) -> None:
    for work, _ in posted:
        work.wait()


class NcclChannel(GlooChannel):
    """`Channel` from rank 0 to all other ranks of a rendezvous, each with its own GPU.

    The entries of a bucket travel over gloo, which notices a dead member at once; its bytes never leave the devices.
    NCCL itself was not run with more than one device yet.
    """

    _device = "cuda"

    def __init__(self, rendezvous: Rendezvous, *, bucket_bytes: int = 512 * 2**20) -> None:
        super().__init__(rendezvous, bucket_bytes=bucket_bytes)

    def _form_payload_group(self, store: Any, timeout: timedelta) -> Any:
        options = _dist.ProcessGroupNCCL.Options()
        options._timeout = timeout
        return _dist.ProcessGroupNCCL(store, self.rendezvous.rank, self.rendezvous.size, options)


def gloo(rank: int, *, meeting: str, num_receivers: int, sends: bool = False) -> GlooChannel:
    """The sender's end for the single training worker, or the end of the generator with this rank."""
    return GlooChannel(_rendezvous(rank, meeting, num_receivers, sends))


def nccl(rank: int, *, meeting: str, num_receivers: int, sends: bool = False) -> NcclChannel:
    """As `gloo`, between GPUs."""
    return NcclChannel(_rendezvous(rank, meeting, num_receivers, sends))


def _rendezvous(rank: int, meeting: str, num_receivers: int, sends: bool) -> Rendezvous:
    assert not (sends and rank), "one worker sends"
    return Rendezvous(meeting=Path(meeting), rank=0 if sends else rank + 1, size=num_receivers + 1)
