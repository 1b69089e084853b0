"""Weight channels over gloo and NCCL: one sender broadcasts buckets of tensors while it packs the next one.

Their process groups are separate from those of the trainer and the generator. All members meet at the first
publication; sender and receivers must then be called at the same time.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import astuple, dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from roll.weights.buckets import NUM_BUFFERS, Entry, NamedTensor, blame_transfer, buckets, copy_into, size_of

_dist: Any = dist  # its types are incomplete
_SEND_IN_PLACE = 4 * 2**20
"""Bytes from which a contiguous CPU tensor is sent from its own memory, without a copy into a bucket."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendezvous:
    """The address at which the members of a transfer meet, and the rank of this one."""

    url: str
    """`tcp://host:port` of the sender, or `file:///path` in a directory that all members see."""
    rank: int
    """0 sends, all others receive."""
    size: int
    timeout_s: float = 600.0
    """For each bucket, and for all members to arrive."""


class GlooChannel:
    """`Channel` from rank 0 to all other ranks of a rendezvous.

    After a gap in the versions all members form a new group, in which a replacement may have the rank of a member that
    died. A member whose transfer fails leaves the group, so that the others fail at once instead of after the timeout.
    """

    _device = "cpu"

    def __init__(self, rendezvous: Rendezvous, *, bucket_bytes: int = 64 * 2**20) -> None:
        self.rendezvous, self.bucket_bytes = rendezvous, bucket_bytes
        self._store: Any = None
        self._group: Any = None
        self._last: int | None = None
        """The most recent version."""
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

    @contextmanager
    def _transfer(self, version: int) -> Generator[None]:
        """A transfer in the current group or a new one; after an error this member has left it."""
        try:
            with blame_transfer(version):
                self._join(version)
                yield
        except BaseException:
            group, self._group, self._last = self._group, None, None
            if group is not None:
                group.abort()
            raise

    def _join(self, version: int) -> None:
        """Form a group unless `version` follows the last one; versions are equal everywhere, so all members agree."""
        member = self._last is not None and version == self._last + 1
        self._last = version
        if member:
            return
        timeout = self._open_store()
        store = _dist.PrefixStore(str(version), self._store)
        self._group = _dist.ProcessGroupGloo(store, self.rendezvous.rank, self.rendezvous.size, timeout)

    def _open_store(self) -> timedelta:
        """Meet the other members, unless that is done; returns the timeout."""
        meeting = self.rendezvous
        timeout = timedelta(seconds=meeting.timeout_s)
        if self._store is None:
            self._store = next(_dist.rendezvous(meeting.url, meeting.rank, meeting.size, timeout=timeout))[0]
            self._store.set_timeout(timeout)
        return timeout

    def _pack(self, tensors: Iterable[NamedTensor]) -> Iterator[tuple[list[Entry], torch.Tensor]]:
        """The entries and bytes of each bucket; two buffers alternate, and large tensors are sent from their memory."""
        number = 0
        for bucket in buckets(tensors, self.bucket_bytes, separate=self._separate):
            stored = bucket[0][1]
            if self._separate(stored):
                payload = stored.cpu().contiguous().view(-1).view(torch.uint8)
            else:
                payload = self._buffer(number, size_of(bucket))
                copy_into(payload, bucket)
                number += 1
            yield [entry for entry, _ in bucket], payload

    def _separate(self, stored: torch.Tensor) -> bool:
        in_place = stored.device.type == "cpu" and stored.is_contiguous() and stored.nbytes >= _SEND_IN_PLACE
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
        parts = [sizes, header, *([payload] if len(payload) else [])]
        return [(self._group.broadcast(part, 0), part) for part in parts]

    def _expect(self, number: int, version: int) -> tuple[list[Entry], torch.Tensor, Any]:
        """The entries of the next bucket, its memory, and the operation that fills it."""
        sizes = torch.zeros(2, dtype=torch.int64)
        self._group.broadcast(sizes, 0).wait()
        header = torch.empty(int(sizes[0]), dtype=torch.uint8)
        self._group.broadcast(header, 0).wait()
        arrived, entries = json.loads(header.numpy().tobytes())
        assert arrived == version, f"version {arrived} arrived instead of version {version}"
        payload = self._buffer(number, int(sizes[1]))
        work = self._group.broadcast(payload, 0) if len(payload) else None
        return [Entry(*entry) for entry in entries], payload, work


def _finish(posted: list[tuple[Any, torch.Tensor]]) -> None:
    for work, _ in posted:
        work.wait()


class NcclChannel(GlooChannel):
    """`Channel` from rank 0 to all other ranks of a rendezvous, each with its own GPU.

    The entries of a bucket travel through the store at which the members meet; its bytes never leave the devices. Not
    tested with more than one device yet.
    """

    _device = "cuda"

    def __init__(self, rendezvous: Rendezvous, *, bucket_bytes: int = 512 * 2**20) -> None:
        super().__init__(rendezvous, bucket_bytes=bucket_bytes)

    def send(self, tensors: Iterable[NamedTensor], *, version: int) -> None:
        assert self.rendezvous.rank == 0, "only rank 0 sends"
        with blame_transfer(version):
            self._form_group()
            in_flight: deque[Any] = deque()
            number = 0
            for bucket in buckets(tensors, self.bucket_bytes):
                if len(in_flight) == NUM_BUFFERS:  # this bucket overwrites the buffer of the last but one
                    in_flight.popleft().wait()
                payload = self._buffer(number, size_of(bucket))
                copy_into(payload, bucket)
                in_flight.append(self._group.broadcast(payload, 0))
                entries = [astuple(entry) for entry, _ in bucket]
                self._store.set(f"{version}/{number}", json.dumps([size_of(bucket), entries]))
                number += 1
            self._store.set(f"{version}/{number}", json.dumps([0, []]))
            for work in in_flight:
                work.wait()

    def receive(self, *, version: int) -> Iterator[NamedTensor]:
        """The tensors in the order they were sent, each valid until the next is read."""
        assert self.rendezvous.rank > 0, "rank 0 sends"
        with blame_transfer(version):
            self._form_group()
            number = 0
            while True:
                size, entries = json.loads(self._store.get(f"{version}/{number}"))
                if not entries:
                    return
                payload = self._buffer(number, size)
                self._group.broadcast(payload, 0).wait()
                for entry in (Entry(*fields) for fields in entries):
                    yield entry.name, entry.tensor(payload)
                number += 1

    def _form_group(self) -> None:
        """At the first call of all members, form their group."""
        if self._group is None:
            options = _dist.ProcessGroupNCCL.Options()
            options._timeout = self._open_store()
            self._group = _dist.ProcessGroupNCCL(self._store, self.rendezvous.rank, self.rendezvous.size, options)


def gloo(rank: int, *, url: str, num_receivers: int, sends: bool = False) -> GlooChannel:
    """The sender's end for the single training worker, or the end of the generator with this rank."""
    return GlooChannel(_rendezvous(rank, url, num_receivers, sends))


def nccl(rank: int, *, url: str, num_receivers: int, sends: bool = False) -> NcclChannel:
    """As `gloo`, between GPUs."""
    return NcclChannel(_rendezvous(rank, url, num_receivers, sends))


def _rendezvous(rank: int, url: str, num_receivers: int, sends: bool) -> Rendezvous:
    assert not (sends and rank), "one worker sends"
    return Rendezvous(url=url, rank=0 if sends else rank + 1, size=num_receivers + 1)
