"""Causal attention over sequences stored end to end, by a variable-length kernel: on a GPU, in 16 bits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial
from inspect import signature
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - its customary name
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from roll.engines.native.attention import AttentionOptions, FlatLayout, Ragged, Sharing, flat_layout

PACKED = (torch.bfloat16, torch.float16)
"""Dtypes that the kernel supports."""


class PackedAttention:
    """Sequences of these lengths: each token attends to its own sequence up to itself.

    Nothing is padded. A shared prefix occurs once among the flat tokens; only its keys and values are copied for each
    row that begins with it. It has the interface of `Ragged` that trainers use.
    """

    def __init__(self, lengths: Sequence[int], *, device: torch.device, shared: Sharing | None = None) -> None:
        sizes = np.array(lengths)
        self._lengths, self._layout = tuple(lengths), None
        if shared is not None:  # the kernel needs at least one query per row
            shared = replace(shared, lengths=tuple(np.minimum(shared.lengths, sizes - 1).tolist()))
        layout = flat_layout(sizes, shared)
        queries = np.bincount(layout.row[layout.unique], minlength=len(sizes))
        self._most = (int(queries.max()), int(sizes.max()))

        def tensor(values: np.ndarray) -> Tensor:
            return to_device(torch.from_numpy(values), device)

        bounds = [np.concatenate([[0], each.cumsum()]) for each in (queries, sizes)]
        self._bounds = [tensor(each.astype(np.int32)) for each in bounds]
        whole = bool(layout.unique.all())
        self.flat_tokens = slice(None) if whole else tensor(layout.unique.nonzero()[0])
        self.positions = tensor(layout.position[layout.unique])
        self.last = tensor(layout.flat_index[sizes.cumsum() - 1])
        self._flat_of_token = None if whole else tensor(layout.flat_index)
        self._copies = None if whole else _copies(layout, tensor)

    def flat_index(self, tokens: Tensor) -> Tensor:
        """The flat tokens of these tokens, by their indices among all tokens."""
        return tokens if self._flat_of_token is None else self._flat_of_token[tokens]

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, options: AttentionOptions | None = None) -> Tensor:
        """An `Attend` without a cache."""
        if self._copies is not None:
            k, v = _CopyShared.apply(k, self._copies), _CopyShared.apply(v, self._copies)
        options = options or AttentionOptions()
        if options.softcap is not None or options.sinks is not None:
            return self._padded(layer, q, k, v, options)
        before = -1 if options.window is None else options.window - 1
        if (width := v.shape[-1]) < k.shape[-1]:  # the kernel has one dimension for both
            v = F.pad(v, (0, k.shape[-1] - width))
        scale = {} if options.scale is None else {"scale": options.scale}
        result: Any = _kernel()(q, k, v, *self._bounds, *self._most, window_size=(before, 0), **scale)
        return result[..., :width].reshape(len(q), -1)

    def _padded(self, layer: int, q: Tensor, k: Tensor, v: Tensor, options: AttentionOptions) -> Tensor:
        """What the kernel does not have, over padded rows; `k` and `v` have all tokens."""
        layout = self._layout = self._layout or Ragged(self._lengths, device=q.device)
        if self._copies is None:
            return layout.attend(layer, q, k, v, options)
        whole = layout.attend(layer, _CopyShared.apply(q, self._copies), k, v, options)
        return whole.index_select(0, self._copies.token)


class _Copies(NamedTuple):
    """Assignment of flat tokens to all tokens that have their value."""

    source: Tensor
    """For every token, its flat token."""
    token: Tensor
    """For every flat token, its index among all tokens."""
    shared: list[tuple[Tensor, Tensor]]
    """Flat tokens with copies, and [tokens, times] the copies' indices: one entry per number of copies."""


def _copies(layout: FlatLayout, tensor: Callable[[np.ndarray], Tensor]) -> _Copies:
    token, copies = layout.unique.nonzero()[0], (~layout.unique).nonzero()[0]
    order = np.argsort(layout.flat_index[copies], kind="stable")
    shared, first, times = np.unique(layout.flat_index[copies][order], return_index=True, return_counts=True)
    by_times = [(shared[times == each], first[times == each][:, None] + np.arange(each)) for each in np.unique(times)]
    parts = [(tensor(tokens), tensor(copies[order][at])) for tokens, at in by_times]
    return _Copies(tensor(layout.flat_index), tensor(token), parts)


class _CopyShared(Function):
    """Flat rows copied to all their tokens; gradients are summed in 32 bits, in a fixed order."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, copies: _Copies) -> Tensor:
        ctx.copies = copies
        return x.index_select(0, copies.source)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        copies: _Copies = ctx.copies
        to_x = gradient.index_select(0, copies.token)
        for flat, tokens in copies.shared:
            wide = gradient.index_select(0, tokens.flatten()).view(*tokens.shape, -1).float()
            total = wide.sum(1) + to_x.index_select(0, flat).flatten(1)
            to_x.index_copy_(0, flat, total.to(to_x.dtype).view(-1, *to_x.shape[1:]))
        return to_x, None


@cache
def _kernel() -> Any:
    """Torch's kernel; later releases require an argument if heads share keys and values."""
    from torch.nn.attention.varlen import varlen_attn

    required = "enable_gqa" in signature(varlen_attn).parameters
    return partial(varlen_attn, enable_gqa=True) if required else varlen_attn


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """The tensor on a device; the copy is asynchronous and does not wait for the device."""
    if device.type == "cpu" or tensor.device.type != "cpu":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)
