"""Causal attention over sequences that lie end to end, by a kernel that takes them so: on a GPU, with 16 bits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial
from inspect import signature
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from roll.engines.native.attention import Sharing, Standing, standing

PACKED = (torch.bfloat16, torch.float16)
"""What the kernel below takes."""


class Packed:
    """Whole sequences of the given lengths: each token sees its own sequence up to itself.

    Nothing is padded. A shared beginning stands among the flat tokens once; only its keys and values are copied for
    each row that begins with it. It has what a trainer needs of `Ragged`.
    """

    def __init__(self, lengths: Sequence[int], *, device: torch.device, shared: Sharing | None = None) -> None:
        sizes = np.array(lengths)
        if shared is not None:  # a row without a query of its own is left out: the kernel knows none
            shared = replace(shared, lengths=tuple(np.minimum(shared.lengths, sizes - 1).tolist()))
        found = standing(sizes, shared)
        queries = np.bincount(found.row[found.own], minlength=len(sizes))
        self._most = (int(queries.max()), int(sizes.max()))

        def tensor(values: np.ndarray) -> Tensor:
            return there(torch.from_numpy(values), device)

        bounds = [np.concatenate([[0], each.cumsum()]) for each in (queries, sizes)]
        self._bounds = [tensor(each.astype(np.int32)) for each in bounds]
        whole = bool(found.own.all())
        self.kept = slice(None) if whole else tensor(found.own.nonzero()[0])
        self.positions = tensor(found.position[found.own])
        self.last = tensor(found.stands_for[sizes.cumsum() - 1])
        self._flat = None if whole else tensor(found.stands_for)
        self._spreading = None if whole else _spreading(found, tensor)

    def standing(self, places: Tensor) -> Tensor:
        """For tokens by their places among all, the flat ones that stand for them."""
        return places if self._flat is None else self._flat[places]

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """An `Attend` that keeps nothing."""
        if self._spreading is not None:
            k, v = _Spread.apply(k, self._spreading), _Spread.apply(v, self._spreading)
        found: Any = _kernel()(q, k, v, *self._bounds, *self._most, window_size=(-1, 0))
        return found.reshape(len(q), -1)


class _Spreading(NamedTuple):
    """How flat tokens are copied to all places where they are meant."""

    source: Tensor
    """For every place the flat token that is meant."""
    place: Tensor
    """Of every flat token, its own."""
    lent: list[tuple[Tensor, Tensor]]
    """The flat tokens that are meant elsewhere too, and [tokens, times] where: apart by how often that is."""


def _spreading(found: Standing, tensor: Callable[[np.ndarray], Tensor]) -> _Spreading:
    place, places = found.own.nonzero()[0], (~found.own).nonzero()[0]
    order = np.argsort(found.stands_for[places], kind="stable")
    lent, first, times = np.unique(found.stands_for[places][order], return_index=True, return_counts=True)
    alike = [(lent[times == each], first[times == each][:, None] + np.arange(each)) for each in np.unique(times)]
    parts = [(tensor(tokens), tensor(places[order][at])) for tokens, at in alike]
    return _Spreading(tensor(found.stands_for), tensor(place), parts)


class _Spread(Function):
    """Flat rows at every place that means them; what comes back to one is added up with 32 bits, in one order."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, spreading: _Spreading) -> Tensor:
        ctx.spreading = spreading
        return x.index_select(0, spreading.source)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        given: _Spreading = ctx.spreading
        to_x = gradient.index_select(0, given.place)
        for lent, places in given.lent:
            wide = gradient.index_select(0, places.flatten()).view(*places.shape, -1).float()
            summed = wide.sum(1) + to_x.index_select(0, lent).flatten(1)
            to_x.index_copy_(0, lent, summed.to(to_x.dtype).view(-1, *to_x.shape[1:]))
        return to_x, None


@cache
def _kernel() -> Any:
    """Torch's own, which in later releases wants to be told that heads may share keys and values."""
    from torch.nn.attention.varlen import varlen_attn

    told = "enable_gqa" in signature(varlen_attn).parameters
    return partial(varlen_attn, enable_gqa=True) if told else varlen_attn


def there(tensor: Tensor, device: torch.device) -> Tensor:
    """The tensor on a device, on its way there already: nothing that the device is busy with is waited for."""
    if device.type == "cpu" or tensor.device.type != "cpu":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)
