"""Fingerprints of weights, to prove that what was sent is what is served."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from roll.types import Digest

_INTEGER_OF_SIZE = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def digest(tensors: Iterable[torch.Tensor]) -> Digest:
    """By dtype, the sums modulo 2^64 of the bit patterns and of their squares.

    A sum does not care about order, so tensors may be fused, split or padded with zeros on one side and not on the
    other. Each parameter must be given once: a tied or replicated one counts as one.
    """
    sums: dict[str, tuple[int, int]] = {}
    for tensor in tensors:
        integers = tensor.detach().contiguous().view(_INTEGER_OF_SIZE[tensor.element_size()])
        bits = integers.to(torch.int64, copy=True)
        first, second = sums.get(str(tensor.dtype), (0, 0))
        sums[str(tensor.dtype)] = (
            (first + int(bits.sum())) % 2**64,  # int64 sums wrap, which is the modulus
            (second + int(bits.mul_(bits).sum())) % 2**64,
        )
    return Digest(sums)
