"""Tensors end to end in places of device memory, described by what can travel as text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch

_ALIGN = 256
"""Tensors begin at multiples of this many bytes."""
Named = tuple[str, torch.Tensor]


@dataclass(frozen=True, slots=True)
class Entry:
    """Where a tensor lies in a bucket, and how to look at it."""

    name: str
    dtype: str
    shape: Sequence[int]
    """As it lies in memory."""
    order: Sequence[int]
    """Which dimension of that each of its own is."""
    begin: int
    """Its first byte."""

    def within(self, memory: torch.Tensor) -> torch.Tensor:
        """A view of bytes, as they lie."""
        kind: torch.dtype = getattr(torch, self.dtype)
        size = kind.itemsize * torch.Size(self.shape).numel()
        return memory[self.begin : self.begin + size].view(kind).view(tuple(self.shape))

    def tensor(self, memory: torch.Tensor) -> torch.Tensor:
        """The same with its own dimensions."""
        return self.within(memory).permute(list(self.order))


Bucket = list[tuple[Entry, torch.Tensor]]
"""What goes into one place, with the tensors it is copied from."""


def buckets(tensors: Iterable[Named], num_bytes: int) -> Iterator[Bucket]:
    """Tensors in runs that fit into places of `num_bytes`; one that fits nowhere comes alone."""
    bucket: Bucket = []
    used = 0
    for name, tensor in tensors:
        lying, order = as_it_lies(tensor.detach())
        begin = -(-used // _ALIGN) * _ALIGN
        if bucket and begin + lying.nbytes > num_bytes:
            yield bucket
            bucket, begin = [], 0
        kind = str(lying.dtype).removeprefix("torch.")
        bucket.append((Entry(name, kind, tuple(lying.shape), order, begin), lying))
        used = begin + lying.nbytes
    if bucket:
        yield bucket


def size_of(bucket: Bucket) -> int:
    """Bytes that it takes."""
    entry, last = bucket[-1]
    return entry.begin + last.nbytes


def as_it_lies(tensor: torch.Tensor) -> tuple[torch.Tensor, Sequence[int]]:
    """The tensor with its dimensions in the order of memory, and how to put them back; turning it is slow to copy."""
    by_stride = sorted(range(tensor.ndim), key=lambda at: -tensor.stride(at))
    return tensor.permute(by_stride), tuple(by_stride.index(at) for at in range(tensor.ndim))
