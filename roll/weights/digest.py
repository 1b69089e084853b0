"""Fingerprints of weights, which prove that generators serve the tensors that the trainer sent."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain

import torch
from torch import nn

from roll.weights.buckets import NamedTensor, in_memory_order

_INTEGER_OF_SIZE = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int32}
"""Numbers of eight bytes are read as two of four."""
_Sums = dict[tuple[str, torch.device], list[torch.Tensor]]
"""By dtype and device: pairs of sums, int32."""
_GROUP = 2**26
"""Most numbers that are summed together on a GPU."""


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
    return _read([_sums(tensors)])


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
    """The digest of tensors that arrive one by one: on a CPU computed by a background thread, on a GPU at the end."""

    def __init__(self, device: torch.device) -> None:
        self._at_end: list[Iterable[torch.Tensor]] | None = None if device.type == "cpu" else []
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="digest", initializer=_lower_priority)
        self._parts: list[Future[_Sums]] = []

    def __enter__(self) -> StreamingDigest:
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.shutdown(cancel_futures=True)

    def add(self, tensors: Iterable[torch.Tensor]) -> None:
        """Start on these tensors; they must not change before `digest` returns."""
        if self._at_end is None:
            self._parts.append(self._thread.submit(_sums, tensors))
        else:
            self._at_end.append(tensors)

    def watch(self, tensors: Iterable[NamedTensor], targets: Mapping[str, torch.Tensor]) -> Iterator[NamedTensor]:
        """The same tensors, for a caller that copies each into `targets[name]` before it reads the next.

        The digest covers the target after the copy, not the tensor that arrived.
        """
        for name, tensor in tensors:
            yield name, tensor
            if name in targets:
                self.add([targets[name]])

    def digest(self) -> Digest:
        """The digest of all tensors added."""
        at_end = [] if self._at_end is None else [_sums(chain.from_iterable(self._at_end))]
        return _read([*(part.result() for part in self._parts), *at_end])


def _lower_priority() -> None:
    """Let other threads run first: a stalled transfer blocks both of its ends."""
    if sys.platform == "linux":  # where threads have priorities
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)


def _sums(tensors: Iterable[torch.Tensor]) -> _Sums:
    """The two sums of all tensors, on their device; on a GPU nothing waits for them here."""
    sums: _Sums = {}
    group: list[torch.Tensor] = []

    def close() -> None:
        if group:
            bits = group[0] if len(group) == 1 else torch.cat(group)
            sums.setdefault((str(kind), bits.device), []).append(_pair(bits.to(torch.int32)))
            group.clear()

    kind = None
    for tensor in tensors:
        if not tensor.numel():
            continue
        bits = in_memory_order(tensor.detach())[0].contiguous().view(-1).view(_INTEGER_OF_SIZE[tensor.element_size()])
        if group and not (kind is tensor.dtype and _grouped(group, bits)):
            close()
        kind = tensor.dtype
        group.append(bits)
    close()
    return sums


def _grouped(group: Sequence[torch.Tensor], bits: torch.Tensor) -> bool:
    """Whether these are summed together: on a GPU a few large sums take less time than many small ones."""
    return group[0].device == bits.device and bits.is_cuda and sum(map(len, group)) + len(bits) <= _GROUP


def _pair(bits: torch.Tensor) -> torch.Tensor:
    """The sums of these numbers and of their squares; both wrap, which is the modulus."""
    squares = torch.dot(bits, bits) if bits.device.type == "cpu" else bits.square().sum(dtype=torch.int32)
    return torch.stack([bits.sum(dtype=torch.int32), squares])


def _read(computed: Sequence[_Sums]) -> Digest:
    """The digest of these sums: one transfer per dtype and device."""
    pairs: _Sums = {}
    for part in computed:
        for key, each in part.items():
            pairs.setdefault(key, []).extend(each)
    parts: list[Digest] = []
    for (dtype, _), each in pairs.items():
        first, second = map(int, torch.stack(each).sum(0, dtype=torch.int32).cpu())
        parts.append(Digest({dtype: (first % 2**32, second % 2**32)}))
    return combine(parts)
