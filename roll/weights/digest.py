"""Fingerprints of weights, which prove that generators serve the tensors that the trainer sent."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import torch
from torch import nn

from roll.weights.buckets import NamedTensor, in_memory_order

_INTEGER_OF_SIZE = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int32}
"""Numbers of eight bytes are read as two of four."""


@dataclass(frozen=True, slots=True)
class Digest:
    """A fingerprint of weights, invariant under fusing, sharding and zero padding."""

    sums: dict[str, tuple[int, int]]
    """By dtype: the sums modulo 2^32 of the bit patterns and of their squares."""


def digest(tensors: Iterable[torch.Tensor]) -> Digest:
    """By dtype, the sums modulo 2^32 of the bit patterns and of their squares.

    Sums do not depend on order, so one side may fuse, split or zero-pad tensors and the other not. Each parameter must
    be passed once: a tied or replicated one counts as one. Each sum reads the memory once, because a fingerprint has to
    keep up with the transport; the price is that neither sum sees an even number of changed signs.
    """
    return combine(
        Digest({str(tensor.dtype): _sums(in_memory_order(tensor.detach())[0].contiguous().view(-1).view(dtype))})
        for tensor in tensors
        for dtype in (_INTEGER_OF_SIZE[tensor.element_size()],)
        if tensor.numel()
    )


def combine(parts: Iterable[Digest]) -> Digest:
    """The digest of a whole from those of its parts."""
    sums: dict[str, tuple[int, int]] = {}
    for part in parts:
        for dtype, (first, second) in part.sums.items():
            before = sums.get(dtype, (0, 0))
            sums[dtype] = ((before[0] + first) % 2**32, (before[1] + second) % 2**32)
    return Digest(sums)


def published_tensors(module: nn.Module) -> Iterator[NamedTensor]:
    """What a digest of a model covers: its parameters, and the buffers that its files have, such as routers' biases."""
    yield from module.named_parameters()
    saved = module.state_dict(keep_vars=True)
    yield from ((name, buffer) for name, buffer in module.named_buffers() if name in saved)


class StreamingDigest:
    """The digest of tensors that arrive one by one, computed by a background thread."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="digest", initializer=_lower_priority)
        self._parts: list[Future[Digest]] = []

    def __enter__(self) -> StreamingDigest:
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.shutdown(cancel_futures=True)

    def add(self, tensors: Iterable[torch.Tensor]) -> None:
        """Start on these tensors; they must not change before `digest` returns."""
        self._parts.append(self._thread.submit(digest, tensors))

    def watch(self, tensors: Iterable[NamedTensor], targets: Mapping[str, torch.Tensor]) -> Iterator[NamedTensor]:
        """The same tensors, for a caller that copies each into `targets[name]` before it reads the next.

        The digest covers the target after the copy, not the tensor that arrived.
        """
        for name, tensor in tensors:
            yield name, tensor
            if name in targets:
                self.add([targets[name]])

    def digest(self) -> Digest:
        """The digest of all tensors added; waits for the thread."""
        return combine(part.result() for part in self._parts)


def _lower_priority() -> None:
    """Let other threads run first: a stalled transfer blocks both of its ends."""
    if sys.platform == "linux":  # where threads have priorities
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)


def _sums(bits: torch.Tensor) -> tuple[int, int]:
    wide = bits.to(torch.int32)
    squares = torch.dot(wide, wide) if wide.device.type == "cpu" else wide.square().sum(dtype=torch.int32)
    return int(wide.sum(dtype=torch.int32)) % 2**32, int(squares) % 2**32  # both wrap, which is the modulus
