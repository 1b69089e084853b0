"""Publication between GPUs: one sender broadcasts buckets of tensors over NCCL while it packs the next one.

What is in a bucket travels through the store at which the members meet; bytes never leave the devices. Sender and
receivers must be called at the same time, and each needs a device of its own. Not tried with more than one device yet.
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

from roll.weights.buckets import Bucket, Entry, Named, buckets, size_of
from roll.weights.gloo import Meeting, blamed

_PLACES = 2


class NcclChannel:
    """`Channel` of rank 0 to all other ranks of a meeting."""

    def __init__(self, meeting: Meeting, *, bucket_bytes: int = 512 * 2**20) -> None:
        self.meeting, self.bucket_bytes = meeting, bucket_bytes
        self._joined: tuple[Any, Any] | None = None
        self._memory: list[torch.Tensor] = []

    def send(self, tensors: Iterable[Named], *, version: int) -> None:
        assert self.meeting.rank == 0, "only rank 0 sends"
        with blamed(version):
            group, store = self._join()
            under_way: deque[Any] = deque()
            number = 0
            for bucket in buckets(tensors, self.bucket_bytes):
                if len(under_way) == _PLACES:  # this bucket goes where the last but one was
                    under_way.popleft().wait()
                under_way.append(group.broadcast(self._packed(number, bucket), 0))
                entries = [astuple(entry) for entry, _ in bucket]
                store.set(f"{version}/{number}", json.dumps([size_of(bucket), entries]))
                number += 1
            store.set(f"{version}/{number}", json.dumps([0, []]))
            for work in under_way:
                work.wait()

    def receive(self, *, version: int) -> Iterator[Named]:
        """In the order they were sent; each tensor is good until the next one is asked for."""
        assert self.meeting.rank > 0, "rank 0 sends"
        with blamed(version):
            group, store = self._join()
            number = 0
            while True:
                size, found = json.loads(store.get(f"{version}/{number}"))
                if not found:
                    return
                memory = self._place(number, size)[:size]
                group.broadcast(memory, 0).wait()
                for each in found:
                    entry = Entry(*each)
                    yield entry.name, entry.tensor(memory)
                number += 1

    def _packed(self, number: int, bucket: Bucket) -> torch.Tensor:
        memory = self._place(number, size_of(bucket))[: size_of(bucket)]
        for entry, lying in bucket:
            entry.within(memory).copy_(lying)
        return memory

    def _place(self, number: int, num_bytes: int) -> torch.Tensor:
        """Memory for bucket `number`, which was that of the last but one; a large one gets its own for once."""
        if num_bytes > self.bucket_bytes:
            return torch.empty(num_bytes, dtype=torch.uint8, device="cuda")
        while len(self._memory) < _PLACES:
            self._memory.append(torch.empty(self.bucket_bytes, dtype=torch.uint8, device="cuda"))
        return self._memory[number % _PLACES]

    def _join(self) -> tuple[Any, Any]:
        """The group and its store, made by the first call of all members."""
        if self._joined is None:
            meeting = self.meeting
            patience = timedelta(seconds=meeting.timeout_s)
            store, rank, size = next(
                cast(Any, dist).rendezvous(meeting.url, meeting.rank, meeting.size, timeout=patience)
            )
            store.set_timeout(patience)
            kind = cast(Any, dist).ProcessGroupNCCL
            options = kind.Options()
            options._timeout = patience
            self._joined = kind(store, rank, size, options), store
        return self._joined


def nccl(rank: int, *, url: str, num_receivers: int, sends: bool = False) -> NcclChannel:
    """The sender's end for the one worker that trains, or the end of the generator of this rank."""
    assert not (sends and rank), "one worker sends"
    return NcclChannel(Meeting(url=url, rank=0 if sends else rank + 1, size=num_receivers + 1))
