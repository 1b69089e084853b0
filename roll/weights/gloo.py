"""Publication between processes: one sender broadcasts buckets of tensors over gloo while it packs the next one.

The group is made for this alone, so it stands beside whatever groups the trainer and the engine have of their own. All
members meet at the first publication; sender and receivers must then be called at the same time. A gap in the versions
calls the group off: members meet anew, one that has taken the place of another among them.
"""

from __future__ import annotations

import contextlib
import json
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, cast

import torch
import torch.distributed as dist

from roll.errors import RunStopped
from roll.weights.buckets import Named, as_it_lies

_ALIGN = 16
"""Tensors begin at multiples of this many bytes, so that any dtype may look at its own."""
_WORTH_ITS_OWN = 4 * 2**20
"""Bytes from which on a tensor is sent from where it lies, instead of being copied beside others first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Meeting:
    """Where the members of a publication group find each other, and which of them this one is."""

    url: str
    """`tcp://host:port` of the sender, or `file:///path` in a folder that all of them see."""
    rank: int
    """0 sends, all others receive."""
    size: int
    timeout_s: float = 600.0
    """For any one bucket, and for all members to come."""


@dataclass(slots=True)
class _Bucket:
    """Some tensors end to end."""

    payload: torch.Tensor
    entries: list[tuple[str, str, Sequence[int], Sequence[int], int]] = field(default_factory=list[Any])
    """Name, dtype, shape as it lies in memory, which dimension of that each of its own is, and first byte of each."""
    used: int = 0

    def room(self, num_bytes: int) -> bool:
        return _aligned(self.used) + num_bytes <= len(self.payload)

    def add(self, name: str, lying: torch.Tensor, order: Sequence[int]) -> None:
        """Copy it in behind the others."""
        begin = _aligned(self.used)
        self.entries.append((name, _dtype_name(lying), tuple(lying.shape), order, begin))
        self.used = begin + lying.nbytes
        self.payload[begin : self.used].view(lying.dtype).view(lying.shape).copy_(lying)

    def tensors(self) -> Iterator[Named]:
        """Views of all that is in it."""
        for name, dtype, shape, order, begin in self.entries:
            kind: torch.dtype = getattr(torch, dtype)
            size = kind.itemsize * torch.Size(shape).numel()
            yield name, self.payload[begin : begin + size].view(kind).view(shape).permute(list(order))


class GlooChannel:
    """`Channel` of rank 0 to all other ranks of a meeting."""

    def __init__(self, meeting: Meeting, *, bucket_bytes: int = 64 * 2**20) -> None:
        self.meeting, self.bucket_bytes = meeting, bucket_bytes
        self._store: Any = None
        self._group: Any = None
        self._last: int | None = None
        """The version that came last."""
        self._spare: list[torch.Tensor] = []

    def send(self, tensors: Iterable[Named], *, version: int) -> None:
        assert self.meeting.rank == 0, "only rank 0 sends"
        with blamed(version):
            self._meet(version)
            under_way: deque[list[tuple[Any, torch.Tensor]]] = deque()
            for bucket in self._packed(tensors):
                under_way.append(self._post(bucket, version))
                if len(under_way) > 1:  # the next bucket is packed where the one before was
                    _finish(under_way.popleft())
            under_way.append(self._post(_Bucket(torch.empty(0, dtype=torch.uint8)), version))
            while under_way:
                _finish(under_way.popleft())

    def receive(self, *, version: int) -> Iterator[Named]:
        """In any order; each tensor is good until the next one is asked for, when its place is written anew."""
        assert self.meeting.rank > 0, "rank 0 sends"
        with blamed(version):
            self._meet(version)
            arriving: deque[tuple[_Bucket, Any]] = deque()
            number, more = 0, True
            while more or arriving:
                while more and len(arriving) < 2:  # one is read while the next one comes
                    arriving.append(self._expect(number, version))
                    number, more = number + 1, bool(arriving[-1][0].entries)
                bucket, work = arriving.popleft()
                if work is not None:
                    work.wait()
                yield from bucket.tensors()

    def _meet(self, version: int) -> None:
        """Be in a group with all members, who come to the same decision by the versions they were called with."""
        begun = self._last is not None and version == self._last + 1
        self._last = version
        if begun:
            return
        meeting, distributed = self.meeting, cast(Any, dist)
        patience = timedelta(seconds=meeting.timeout_s)
        if self._store is None:
            found = distributed.rendezvous(meeting.url, meeting.rank, meeting.size, timeout=patience)
            self._store = next(found)[0]
            self._store.set_timeout(patience)
        own = distributed.PrefixStore(str(version), self._store)
        self._group = distributed.ProcessGroupGloo(own, meeting.rank, meeting.size, patience)

    def _packed(self, tensors: Iterable[Named]) -> Iterator[_Bucket]:
        """Buckets by turns in two places of memory; what is large and whole is sent at once from where it lies."""
        number, bucket = 0, None
        for name, tensor in tensors:
            lying, order = as_it_lies(tensor.detach())
            whole = lying.device.type == "cpu" and lying.is_contiguous()
            if lying.nbytes > self.bucket_bytes or (whole and lying.nbytes >= _WORTH_ITS_OWN):
                yield _alone(name, lying, order)
                continue
            if bucket is not None and not bucket.room(lying.nbytes):
                yield bucket
                number, bucket = number + 1, None
            if bucket is None:
                bucket = _Bucket(self._place(number, self.bucket_bytes))
            bucket.add(name, lying, order)
        if bucket is not None:
            yield bucket

    def _place(self, number: int, num_bytes: int) -> torch.Tensor:
        """Memory for bucket `number`, which was that of the last but one; a large one gets its own for once."""
        if num_bytes > self.bucket_bytes:
            return torch.empty(num_bytes, dtype=torch.uint8)
        while len(self._spare) < 2:
            self._spare.append(torch.empty(self.bucket_bytes, dtype=torch.uint8))
        return self._spare[number % 2]

    def _post(self, bucket: _Bucket, version: int) -> list[tuple[Any, torch.Tensor]]:
        """Begin to send; what is on its way, with the memory it is read from."""
        text = json.dumps([version, bucket.entries]).encode()
        header = torch.frombuffer(bytearray(text), dtype=torch.uint8)
        sizes = torch.tensor([len(header), bucket.used])
        parts = [sizes, header, *([bucket.payload[: bucket.used]] if bucket.used else [])]
        return [(self._group.broadcast(part, 0), part) for part in parts]

    def _expect(self, number: int, version: int) -> tuple[_Bucket, Any]:
        """The next bucket, still on its way, once it is known what is in it."""
        sizes = torch.zeros(2, dtype=torch.int64)
        self._group.broadcast(sizes, 0).wait()
        header = torch.empty(int(sizes[0]), dtype=torch.uint8)
        self._group.broadcast(header, 0).wait()
        found, entries = json.loads(header.numpy().tobytes())
        assert found == version, f"version {found} came where version {version} was due"
        used = int(sizes[1])
        bucket = _Bucket(self._place(number, used)[:used], [tuple(entry) for entry in entries], used)
        return bucket, self._group.broadcast(bucket.payload, 0) if used else None


def _alone(name: str, lying: torch.Tensor, order: Sequence[int]) -> _Bucket:
    """A bucket that is this one tensor."""
    flat = lying.cpu().contiguous().view(-1).view(torch.uint8)
    return _Bucket(flat, [(name, _dtype_name(lying), tuple(lying.shape), order, 0)], lying.nbytes)


def _finish(posted: list[tuple[Any, torch.Tensor]]) -> None:
    for work, _ in posted:
        work.wait()


def _aligned(num_bytes: int) -> int:
    return -(-num_bytes // _ALIGN) * _ALIGN


def _dtype_name(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


@contextlib.contextmanager
def blamed(version: int) -> Generator[None]:
    """What a group of processes raises when a member is gone or silent, as one line."""
    try:
        yield
    except (RuntimeError, dist.DistError) as error:
        reason = str(error).splitlines()[0]
        raise RunStopped(
            f"weights: version {version} did not get through ({reason}); see the logs of trainer and generators, "
            "then `roll resume` the run"
        ) from None


def gloo(rank: int, *, url: str, num_receivers: int, sends: bool = False) -> GlooChannel:
    """The sender's end for the one worker that trains, or the end of the generator of this rank."""
    assert not (sends and rank), "one worker sends"
    return GlooChannel(Meeting(url=url, rank=0 if sends else rank + 1, size=num_receivers + 1))
