"""Weight channel between GPUs: one sender broadcasts buckets of tensors over NCCL while it packs the next one.

The entries of a bucket travel through the store at which the members meet; its bytes never leave the devices. Sender
and receivers must be called at the same time, and each needs its own device. Not tested with more than one device yet.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import astuple
from datetime import timedelta
from typing import Any, cast

import torch
import torch.distributed as dist

from roll.weights.buckets import NUM_BUFFERS, Entry, NamedTensor, blame_transfer, buckets, copy_into, size_of
from roll.weights.gloo import Rendezvous


class NcclChannel:
    """`Channel` from rank 0 to all other ranks of a rendezvous."""

    def __init__(self, rendezvous: Rendezvous, *, bucket_bytes: int = 512 * 2**20) -> None:
        self.rendezvous, self.bucket_bytes = rendezvous, bucket_bytes
        self._joined: tuple[Any, Any] | None = None
        self._buffers: list[torch.Tensor] = []

    def send(self, tensors: Iterable[NamedTensor], *, version: int) -> None:
        assert self.rendezvous.rank == 0, "only rank 0 sends"
        with blame_transfer(version):
            group, store = self._join()
            in_flight: deque[Any] = deque()
            number = 0
            for bucket in buckets(tensors, self.bucket_bytes):
                if len(in_flight) == NUM_BUFFERS:  # this bucket overwrites the buffer of the last but one
                    in_flight.popleft().wait()
                payload = self._buffer(number, size_of(bucket))
                copy_into(payload, bucket)
                in_flight.append(group.broadcast(payload, 0))
                entries = [astuple(entry) for entry, _ in bucket]
                store.set(f"{version}/{number}", json.dumps([size_of(bucket), entries]))
                number += 1
            store.set(f"{version}/{number}", json.dumps([0, []]))
            for work in in_flight:
                work.wait()

    def receive(self, *, version: int) -> Iterator[NamedTensor]:
        """The tensors in the order they were sent, each valid until the next is read."""
        assert self.rendezvous.rank > 0, "rank 0 sends"
        with blame_transfer(version):
            group, store = self._join()
            number = 0
            while True:
                size, entries = json.loads(store.get(f"{version}/{number}"))
                if not entries:
                    return
                payload = self._buffer(number, size)
                group.broadcast(payload, 0).wait()
                for entry in (Entry(*fields) for fields in entries):
                    yield entry.name, entry.tensor(payload)
                number += 1

    def _buffer(self, number: int, num_bytes: int) -> torch.Tensor:
        """`num_bytes` for bucket `number`: a buffer in turn, or new memory for a large tensor."""
        if num_bytes > self.bucket_bytes:
            return torch.empty(num_bytes, dtype=torch.uint8, device="cuda")
        while len(self._buffers) < NUM_BUFFERS:
            self._buffers.append(torch.empty(self.bucket_bytes, dtype=torch.uint8, device="cuda"))
        return self._buffers[number % NUM_BUFFERS][:num_bytes]

    def _join(self) -> tuple[Any, Any]:
        """The group and its store, created by the first call of all members."""
        if self._joined is None:
            meeting = self.rendezvous
            timeout = timedelta(seconds=meeting.timeout_s)
            store, rank, size = next(
                cast(Any, dist).rendezvous(meeting.url, meeting.rank, meeting.size, timeout=timeout)
            )
            store.set_timeout(timeout)
            group = cast(Any, dist).ProcessGroupNCCL
            options = group.Options()
            options._timeout = timeout
            self._joined = group(store, rank, size, options), store
        return self._joined


def nccl(rank: int, *, url: str, num_receivers: int, sends: bool = False) -> NcclChannel:
    """The sender's end for the single training worker, or the end of the generator with this rank."""
    assert not (sends and rank), "one worker sends"
    return NcclChannel(Rendezvous(url=url, rank=0 if sends else rank + 1, size=num_receivers + 1))
