"""Fingerprints of weights, to prove that what was sent is what is served."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor

import torch

from roll.types import Digest

_INTEGER_OF_SIZE = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int32}
"""Numbers of eight bytes are read as two of four."""


def digest(tensors: Iterable[torch.Tensor]) -> Digest:
    """By dtype, the sums modulo 2^32 of the bit patterns and of their squares.

    A sum does not care about order, so tensors may be fused, split or padded with zeros on one side and not on the
    other. Each parameter must be given once: a tied or replicated one counts as one. Each sum is one look at the
    memory, for a fingerprint has to keep up with a transport; what it pays for that is that neither sees an even number
    of changed signs.
    """
    return added(
        Digest({str(tensor.dtype): _folded(_as_it_lies(tensor.detach()).view(-1).view(kind))})
        for tensor in tensors
        for kind in (_INTEGER_OF_SIZE[tensor.element_size()],)
        if tensor.numel()
    )


def added(parts: Iterable[Digest]) -> Digest:
    """The digest of a whole from those of its parts."""
    sums: dict[str, tuple[int, int]] = {}
    for part in parts:
        for kind, (first, second) in part.sums.items():
            before = sums.get(kind, (0, 0))
            sums[kind] = ((before[0] + first) % 2**32, (before[1] + second) % 2**32)
    return Digest(sums)


class Folding:
    """The digest of tensors that come one by one, made by a thread beside whatever brings them."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="digest", initializer=_stand_back)
        self._parts: list[Future[Digest]] = []

    def __enter__(self) -> Folding:
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.shutdown(cancel_futures=True)

    def add(self, tensors: Iterable[torch.Tensor]) -> None:
        """Begin with some that nobody changes until the digest was asked for."""
        self._parts.append(self._thread.submit(digest, tensors))

    def landing(
        self, tensors: Iterable[tuple[str, torch.Tensor]], held: Mapping[str, torch.Tensor]
    ) -> Iterator[tuple[str, torch.Tensor]]:
        """The same tensors, for someone who copies each into what is `held` under its name before the next one.

        What is folded is not the tensor that came but what it was copied into.
        """
        for name, tensor in tensors:
            yield name, tensor
            if name in held:
                self.add([held[name]])

    def digest(self) -> Digest:
        """Of all of them, once the last one is done."""
        return added(part.result() for part in self._parts)


def _stand_back() -> None:
    """Let the calling thread run when others wait: a delivery that stalls keeps both of its ends waiting."""
    if sys.platform == "linux":  # where a thread has a priority of its own
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)


def _as_it_lies(tensor: torch.Tensor) -> torch.Tensor:
    """The same numbers in the order of memory, which is no copy unless there are others between them."""
    return tensor.permute(sorted(range(tensor.ndim), key=lambda at: -tensor.stride(at))).contiguous()


def _folded(bits: torch.Tensor) -> tuple[int, int]:
    wide = bits.to(torch.int32)
    squares = torch.dot(wide, wide) if wide.device.type == "cpu" else wide.square().sum(dtype=torch.int32)
    return int(wide.sum(dtype=torch.int32)) % 2**32, int(squares) % 2**32  # both wrap, which is the modulus
