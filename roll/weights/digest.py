"""Fingerprints of weights, to prove that what was sent is what is served."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import torch

from roll.types import Digest

_INTEGER_OF_SIZE = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_ROW, _ROWS = 1024, 128
"""Numbers whose squares are added up in fp64 at once, and how many such rows each call of numpy is for."""
_ONES = np.ones(_ROW)


def digest(tensors: Iterable[torch.Tensor]) -> Digest:
    """By dtype, the sums modulo 2^64 of the bit patterns and of their squares.

    A sum does not care about order, so tensors may be fused, split or padded with zeros on one side and not on the
    other. Each parameter must be given once: a tied or replicated one counts as one.
    """
    sums: dict[str, tuple[int, int]] = {}
    for tensor in tensors:
        bits = _as_it_lies(tensor.detach()).view(-1).view(_INTEGER_OF_SIZE[tensor.element_size()])
        plain = bits.device.type == "cpu" and tensor.element_size() < 8
        found = _sums_in_cache(bits.numpy()) if plain else _sums(bits)
        before = sums.get(str(tensor.dtype), (0, 0))
        sums[str(tensor.dtype)] = ((before[0] + found[0]) % 2**64, (before[1] + found[1]) % 2**64)
    return Digest(sums)


def added(parts: Iterable[Digest]) -> Digest:
    """The digest of a whole from those of its parts."""
    sums: dict[str, tuple[int, int]] = {}
    for part in parts:
        for kind, (first, second) in part.sums.items():
            before = sums.get(kind, (0, 0))
            sums[kind] = ((before[0] + first) % 2**64, (before[1] + second) % 2**64)
    return Digest(sums)


class Folding:
    """The digest of tensors that come one by one, made by a thread beside whatever brings them."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="digest")
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


def _as_it_lies(tensor: torch.Tensor) -> torch.Tensor:
    """The same numbers in the order of memory, which is no copy unless there are others between them."""
    return tensor.permute(sorted(range(tensor.ndim), key=lambda at: -tensor.stride(at))).contiguous()


def _sums(bits: torch.Tensor) -> tuple[int, int]:
    wide = bits.to(torch.int64, copy=True)
    return int(wide.sum()), int(wide.mul_(wide).sum())  # int64 sums wrap, which is the modulus


def _sums_in_cache(bits: Any) -> tuple[int, int]:
    """The same by numpy, piece by piece, and without 64-bit products, for which many cores have no vectors."""
    num_whole = len(bits) // _ROW
    rest = np.zeros((1, _ROW), bits.dtype)  # zeros change no sum
    rest[0, : len(bits) - num_whole * _ROW] = bits[num_whole * _ROW :]
    whole = bits[: num_whole * _ROW].reshape(-1, _ROW)
    wide, narrow = np.empty((_ROWS, _ROW)), np.empty((_ROWS, _ROW), np.uint32)
    first = second = 0
    for rows in (*(whole[at : at + _ROWS] for at in range(0, num_whole, _ROWS)), rest):
        exact = wide[: len(rows)]
        np.copyto(exact, rows)
        first += int((exact @ _ONES).sum())  # below 2^53
        squares = np.vecdot(exact, exact)
        if bits.itemsize < 4:  # below 2^53 as well
            second += int(squares.sum())
        else:
            second += _mended(squares, rows.view(np.uint32), narrow[: len(rows)])
    return first, second


def _mended(squares: Any, bits: Any, space: Any) -> int:
    """The exact sum of the squares of all rows, from what fp64 makes of each row's.

    A row's sum is at most 1024 * 2^62, of which fp64 loses at most 1024 * 2^-53, whatever the order: 2^29. Its last 32
    bits are known exactly, from products that wrap, and one number alone within reach ends in them.
    """
    last = np.add.reduce(np.multiply(bits, bits, out=space), axis=1, dtype=np.uint32)
    above = np.rint((squares - last) * 2.0**-32)
    return (int(above.sum()) << 32) + int(last.sum(dtype=np.uint64))
