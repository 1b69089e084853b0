"""Tensors packed end to end into buckets of bytes, with entries that can be sent as text."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from roll.errors import RunStopped

_ALIGN = 256
"""Tensors begin at multiples of this many bytes."""
NUM_BUFFERS = 2
"""Bucket memories that a channel fills in turn: one is read while the next is filled."""
NamedTensor = tuple[str, torch.Tensor]


@dataclass(frozen=True, slots=True)
class Entry:
    """Position and layout of one tensor in a bucket."""

    name: str
    dtype: str
    shape: Sequence[int]
    """Dimensions in memory order."""
    order: Sequence[int]
    """For each dimension of the tensor, its index in `shape`."""
    begin: int
    """Offset of its first byte."""

    @property
    def num_bytes(self) -> int:
        dtype: torch.dtype = getattr(torch, self.dtype)
        return dtype.itemsize * torch.Size(self.shape).numel()

    def stored(self, memory: torch.Tensor) -> torch.Tensor:
        """View of its bytes, with dimensions in memory order."""
        dtype: torch.dtype = getattr(torch, self.dtype)
        return memory[self.begin : self.begin + self.num_bytes].view(dtype).view(tuple(self.shape))

    def tensor(self, memory: torch.Tensor) -> torch.Tensor:
        """The same view with the tensor's original dimension order."""
        return self.stored(memory).permute(list(self.order))


Bucket = list[tuple[Entry, torch.Tensor]]
"""The entries of one bucket, each with the tensor to copy, in memory order."""


def buckets(
    tensors: Iterable[NamedTensor], num_bytes: int, *, separate: Callable[[torch.Tensor], bool] = lambda _: False
) -> Iterator[Bucket]:
    """Consecutive tensors in buckets of at most `num_bytes`; a larger one gets a bucket of its size.

    A tensor for which `separate` is true gets a separate bucket, ahead of those that are still being collected.
    """
    bucket: Bucket = []
    used = 0
    for name, tensor in tensors:
        stored, order = in_memory_order(tensor.detach())
        entry = Entry(name, str(stored.dtype).removeprefix("torch."), tuple(stored.shape), order, 0)
        if separate(stored):
            yield [(entry, stored)]
            continue
        begin = -(-used // _ALIGN) * _ALIGN
        if bucket and begin + stored.nbytes > num_bytes:
            yield bucket
            bucket, begin = [], 0
        bucket.append((replace(entry, begin=begin), stored))
        used = begin + stored.nbytes
    if bucket:
        yield bucket


def size_of(bucket: Bucket) -> int:
    """Bytes that a bucket occupies."""
    entry, last = bucket[-1]
    return entry.begin + last.nbytes


def copy_into(memory: torch.Tensor, bucket: Bucket) -> None:
    """Copy the tensors of a bucket to their positions."""
    for entry, tensor in bucket:
        entry.stored(memory).copy_(tensor)


def in_memory_order(tensor: torch.Tensor) -> tuple[torch.Tensor, Sequence[int]]:
    """The tensor with dimensions sorted by stride, and the order that restores them; copying it so is fastest."""
    by_stride = sorted(range(tensor.ndim), key=lambda dim: -tensor.stride(dim))
    return tensor.permute(by_stride), tuple(by_stride.index(dim) for dim in range(tensor.ndim))


@contextlib.contextmanager
def blame_transfer(version: int) -> Generator[None]:
    """Raise `RunStopped` in one line where a member of the transfer died or timed out."""
    try:
        yield
    except (OSError, EOFError, RuntimeError) as error:
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise RunStopped(
            f"weights: version {version} was not transferred ({reason}); see the logs of trainer and generators, "
            "then `roll resume` the run"
        ) from None
