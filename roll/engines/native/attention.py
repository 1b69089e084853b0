"""Causal attention over sequences stored end to end, and over the slot cache of requests being decoded.

Padding exists in this file only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - its customary name
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from roll.engines.native.decoder import Attend, CacheShape
from roll.types import Batch


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionOptions:
    """What some families of models change about attention. The native decoder changes nothing."""

    scale: float | None = None
    """Factor of the products of queries and keys; None: one over the root of their dimension."""
    window: int | None = None
    """A token attends to itself and to this many minus one tokens before it; None: to all of them."""
    softcap: float | None = None
    """Products are limited smoothly to this absolute value."""
    sinks: Tensor | None = None
    """[heads] one further logit per head, which takes part in the softmax and has no value."""


@dataclass(frozen=True, slots=True)
class Sharing:
    """Rows with a common prefix: the first `lengths[i]` tokens of row i equal those of row `leaders[i]`."""

    leaders: tuple[int, ...]
    lengths: tuple[int, ...]
    read: tuple[int, ...]
    """Tokens of each row whose outputs are used: the last token predicts nothing, so it need not be computed."""


def sharing(batch: Batch) -> Sharing:
    """Rows with the same untrained prefix, such as siblings' prompts, share that of the first of them."""
    trained, ids = batch.trained.numpy(), batch.ids.numpy()
    read = tuple(max(1, size - 1) for size in batch.lengths)
    first_of: dict[bytes, int] = {}
    leaders: list[int] = []
    lengths: list[int] = []
    start = 0
    for row, (size, num_read) in enumerate(zip(batch.lengths, read, strict=True)):
        mask = trained[start : start + num_read]
        prefix = int(mask.argmax()) if mask.any() else num_read
        leader = first_of.setdefault(ids[start : start + prefix].tobytes(), row)
        leaders.append(leader)
        lengths.append(0 if leader == row else prefix)
        start += size
    return Sharing(tuple(leaders), tuple(lengths), read)


@dataclass(frozen=True, slots=True)
class FlatLayout:
    """Assignment of the tokens of sequences to flat tokens, in which a shared prefix occurs once."""

    row: np.ndarray
    """[tokens]"""
    position: np.ndarray
    """[tokens] within the row."""
    unique: np.ndarray
    """[tokens] bool: false for tokens of a shared prefix outside its leader."""
    flat_index: np.ndarray
    """[tokens] index of the flat token with the same value."""


def flat_layout(sizes: np.ndarray, shared: Sharing | None) -> FlatLayout:
    """The layout of rows with these numbers of tokens."""
    starts = sizes.cumsum() - sizes
    row = np.repeat(np.arange(len(sizes)), sizes)
    position = np.arange(sizes.sum()) - starts[row]
    unique = position >= (np.array(shared.lengths)[row] if shared else 0)
    leader = np.array(shared.leaders)[row] if shared else row
    flat_index = (unique.cumsum() - 1)[np.where(unique, starts[row] + position, starts[leader] + position)]
    return FlatLayout(row, position, unique, flat_index)


class Ragged:
    """Sequences of these lengths: each token attends to its own sequence up to itself.

    Linear layers run on the flat tokens, in which a shared prefix occurs once; queries, keys and values are padded to
    [rows, width] for the attention kernel only. Padding is on the right, so causality hides it without a mask.
    """

    def __init__(
        self, lengths: Sequence[int], *, device: torch.device, multiple: int = 1, shared: Sharing | None = None
    ) -> None:
        all_sizes = np.array(lengths)
        sizes = np.array(shared.read) if shared else all_sizes
        self.rows, self.longest = len(sizes), int(sizes.max())
        self.width = -(-self.longest // multiple) * multiple
        layout = flat_layout(sizes, shared)
        unique, flat_index = layout.unique, layout.flat_index
        cell = layout.row * self.width + layout.position
        token = (all_sizes.cumsum() - all_sizes)[layout.row] + layout.position
        flat_of_token = np.zeros(all_sizes.sum(), np.int64)
        flat_of_token[token] = flat_index

        def tensor(values: np.ndarray) -> Tensor:
            return torch.from_numpy(values).to(device)

        self.flat_tokens = tensor(token[unique])
        """For each flat token, its index among all tokens."""
        self._flat_of_token = tensor(flat_of_token)
        self.positions = tensor(layout.position[unique])
        """For each flat token, its position in its sequence."""
        self.last = tensor(flat_index[sizes.cumsum() - 1])
        """The flat token that ends each sequence."""
        self._cell = tensor(cell[unique])
        source = np.zeros(self.rows * self.width, np.int64)
        source[cell] = flat_index
        self._padding = _Padding(
            source=tensor(source),
            cell=self._cell,
            copies=None if unique.all() else (tensor(cell[~unique]), tensor(flat_index[~unique])),
        )

    def flat_index(self, tokens: Tensor) -> Tensor:
        """The flat tokens of these tokens, by their indices among all tokens that are read."""
        return self._flat_of_token[tokens]

    def pad(self, x: Tensor) -> Tensor:
        """Flat [tokens, heads, dim] -> [rows, heads, width, dim]; the contents of the padding are undefined."""
        padded: Tensor = _PadRows.apply(x, self._padding)
        return padded.view(self.rows, self.width, *x.shape[1:]).transpose(1, 2)

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, options: AttentionOptions | None = None) -> Tensor:
        """An `Attend` without a cache."""
        return self.over(self.pad(q), self.pad(k), self.pad(v), options)

    def over(self, q: Tensor, k: Tensor, v: Tensor, options: AttentionOptions | None = None) -> Tensor:
        """Attention of padded [rows, heads, width, dim], returned for flat tokens [tokens, heads * dim]."""
        if options is None:
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=q.shape[1] != k.shape[1])
        else:
            at = torch.arange(self.width, device=q.device)
            mixed = attend_visible(q, k, v, visible(at.unsqueeze(1), at, options.window), options)
        flat: Tensor = _Unpad.apply(mixed.transpose(1, 2).reshape(self.rows * self.width, -1), self._cell)
        return flat


@dataclass(frozen=True, slots=True, kw_only=True)
class _Padding:
    """Assignment of flat tokens to the [rows * width] cells of a padded tensor."""

    source: Tensor
    """For every cell, its flat token; the first flat token in the padding."""
    cell: Tensor
    """For every flat token, its cell."""
    copies: tuple[Tensor, Tensor] | None
    """Cells with copies of shared prefixes, and their flat tokens."""


class _PadRows(Function):
    """Flat rows copied to cells; autograd would sum over all cells again in the backward pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, padding: _Padding) -> Tensor:
        ctx.padding = padding
        return x.index_select(0, padding.source)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        padding: _Padding = ctx.padding
        to_x = gradient.index_select(0, padding.cell)
        if padding.copies is not None:
            cells, sources = padding.copies
            to_x += torch.zeros_like(to_x).index_add_(0, sources, gradient.index_select(0, cells))
        return to_x, None


class _Unpad(Function):
    """Rows selected from distinct cells."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, cells: Tensor) -> Tensor:
        ctx.save_for_backward(cells)
        ctx.num = len(x)
        return x.index_select(0, cells)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (cells,) = ctx.saved_tensors
        return gradient.new_zeros(ctx.num, *gradient.shape[1:]).index_copy_(0, cells, gradient), None


ALIGN = 16
"""Attention spans are rounded up to this, so that a request's arithmetic does not depend on other requests' lengths."""
BLOCK = 256
"""Most keys that decoding attends to at a time: where the BLAS splits a longer sum depends on its length."""

_flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu


@dataclass(frozen=True, slots=True)
class _Fill:
    """Sequences of one padded width that are prefilled together."""

    tokens: slice
    """Their flat tokens."""
    ragged: Ragged
    sources: Tensor
    """For each copy, the sequence to store."""
    slots: Tensor
    """For each copy, its slot."""


class SlotCache:
    """Keys and values, [layers, slots, span, kv_heads, dim] each; entries past a request's length are never read."""

    def __init__(self, shape: CacheShape, *, slots: int, max_seq_len: int, device: torch.device) -> None:
        self.span = -(-max_seq_len // ALIGN) * ALIGN
        size = (shape.layers, slots, self.span, shape.kv_heads)
        self.keys, self.values = (torch.zeros(*size, dim, device=device) for dim in (shape.key_dim, shape.value_dim))
        self._index = torch.arange(max(slots, self.span), device=device)
        pairs = list(zip(self.keys, self.values, strict=True))
        self._flat = [(keys.flatten(0, 1), values.flatten(0, 1)) for keys, values in pairs]
        self._first: tuple[tuple[int, int], list[tuple[Tensor, Tensor]]] = ((0, 0), [])

    def prefill_attention(self, lengths: Sequence[int], slots: Sequence[Sequence[int]]) -> Attend:
        """Attention over whole sequences, the shortest first, that also stores sequence i in each of `slots[i]`.

        The padded width decides how the attention kernel and the BLAS split their sums. It must depend only on the
        sequence's own length, so on a CPU one call computes only sequences of equal width.
        """
        fills: list[_Fill] = []
        end, on_cpu = 0, self.keys.device.type == "cpu"
        for _, rows in groupby(range(len(lengths)), lambda row: on_cpu and -(-lengths[row] // ALIGN)):
            same_width = list(rows)
            begin, end = end, end + sum(lengths[row] for row in same_width)
            pairs = [(source, slot) for source, row in enumerate(same_width) for slot in slots[row]]
            fills.append(
                _Fill(
                    slice(begin, end),
                    Ragged([lengths[row] for row in same_width], device=self.keys.device, multiple=ALIGN),
                    *torch.tensor(pairs, device=self.keys.device).unbind(1),
                )
            )

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor, options: AttentionOptions | None = None) -> Tensor:
            parts = [
                self._fill(layer, fill, (q[fill.tokens], k[fill.tokens], v[fill.tokens]), options) for fill in fills
            ]
            return parts[0] if len(parts) == 1 else torch.cat(parts)

        return attend

    def _fill(
        self, layer: int, fill: _Fill, qkv: tuple[Tensor, Tensor, Tensor], options: AttentionOptions | None
    ) -> Tensor:
        ragged, slots, (q, k, v) = fill.ragged, fill.slots, qkv
        keys, values = ragged.pad(k), ragged.pad(v)
        self.keys[layer, slots, : ragged.longest] = keys.transpose(1, 2)[fill.sources, : ragged.longest]
        self.values[layer, slots, : ragged.longest] = values.transpose(1, 2)[fill.sources, : ragged.longest]
        return ragged.over(ragged.pad(q), keys, values, options)

    def decode_attention(self, positions: Tensor) -> Attend:
        """Attention of one new token in each of the first slots, at `positions`, over all tokens before it."""
        num = len(positions)
        span = min(self.span, -(-(int(positions.max()) + 1) // ALIGN) * ALIGN)
        index = self._index[:span]
        hidden = index > positions.unsqueeze(1)
        mask = torch.zeros_like(hidden, dtype=self.keys.dtype).masked_fill_(hidden, -torch.inf)[:, None, None]
        cells = self._index[:num] * self.span + positions
        flat, read = self._flat, self._first_slots(num, span)
        in_blocks = span > BLOCK and self.keys.device.type == "cpu"

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor, options: AttentionOptions | None = None) -> Tensor:
            keys, values = flat[layer]
            keys.index_copy_(0, cells, k)
            values.index_copy_(0, cells, v)
            if options is not None:
                seen = visible(positions.unsqueeze(1), index, options.window)[:, None, None]
                return attend_visible(q.unsqueeze(2), *read[layer], seen, options).reshape(num, -1)
            # Query heads that share a key head are stacked along the query axis, so keys are not repeated.
            grouped = q.reshape(num, k.shape[1], -1, k.shape[2])
            if in_blocks:
                return _attend_in_blocks(grouped, *read[layer], mask).reshape(num, -1)
            return F.scaled_dot_product_attention(grouped, *read[layer], attn_mask=mask).reshape(num, -1)

        return attend

    def _first_slots(self, num: int, span: int) -> list[tuple[Tensor, Tensor]]:
        """Each layer's keys and values in the first slots, as attention reads them; recreated when sizes change."""
        if self._first[0] != (num, span):
            pairs = zip(self.keys[:, :num, :span], self.values[:, :num, :span], strict=True)
            self._first = (num, span), [(keys.transpose(1, 2), values.transpose(1, 2)) for keys, values in pairs]
        return self._first[1]

    def copy(self, source: int, slots: Sequence[int], length: int) -> None:
        """Copy the first `length` tokens of slot `source` to other slots."""
        for slot in slots:
            self.keys[:, slot, :length] = self.keys[:, source, :length]
            self.values[:, slot, :length] = self.values[:, source, :length]


def visible(queries: Tensor, keys: Tensor, window: int | None) -> Tensor:
    """Whether tokens at the positions `queries` attend to those at `keys`, which are broadcast together."""
    causal = keys <= queries
    return causal if window is None else causal & (keys > queries - window)


def attend_visible(q: Tensor, k: Tensor, v: Tensor, seen: Tensor, options: AttentionOptions) -> Tensor:
    """Attention of [rows, heads, width, dim] where `seen` [..., width, keys] is true; key heads may be shared."""
    if options.softcap is None and options.sinks is None:
        gqa = q.shape[1] != k.shape[1]
        return F.scaled_dot_product_attention(q, k, v, attn_mask=seen, scale=options.scale, enable_gqa=gqa)
    rows, heads, width, dim = q.shape
    grouped = q.reshape(rows, k.shape[1], -1, width, dim)
    products = grouped @ k.unsqueeze(2).transpose(-1, -2)
    products = products.float() * (dim**-0.5 if options.scale is None else options.scale)
    if options.softcap is not None:
        products = (products / options.softcap).tanh() * options.softcap
    products = products.masked_fill(~(seen if seen.ndim == 2 else seen.unsqueeze(1)), -torch.inf)
    if options.sinks is not None:
        sinks = options.sinks.float().view(k.shape[1], -1, 1, 1).expand(rows, -1, -1, width, 1)
        products = torch.cat([products, sinks], -1)
    weights = products.softmax(-1)[..., : k.shape[2]].to(v.dtype)
    return (weights @ v.unsqueeze(2)).reshape(rows, heads, width, -1)


def _attend_in_blocks(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """Masked attention over blocks of keys; a block that is masked for a row changes no bit of that row.

    The first block is visible to every row. Each later block is weighted by its sum of exponentials, relative to the
    largest so far. All operations used round an element the same way at any position in memory.
    """
    total, largest = _flash(q, k[:, :, :BLOCK], v[:, :, :BLOCK], attn_mask=mask[..., :BLOCK])
    weight = torch.ones_like(largest)
    for begin in range(BLOCK, k.shape[2], BLOCK):
        at = slice(begin, begin + BLOCK)
        mixed, size = _flash(q, k[:, :, at], v[:, :, at], attn_mask=mask[..., at])
        size = size + mask[..., begin]  # a masked row has no keys here: its size is -inf
        top = torch.maximum(largest, size)
        before, here = (largest - top).exp_(), (size - top).exp_()
        total.mul_(before.unsqueeze(-1)).add_(mixed.mul_(here.unsqueeze(-1)))
        weight, largest = weight.mul_(before).add_(here), top
    return total.div_(weight.unsqueeze(-1))
