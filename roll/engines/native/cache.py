"""Keys and values of the requests being decoded: one slot a request, and the slots in use are always the first ones."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F  # noqa: N812 - its customary name
from torch import Tensor

from roll.engines.native.attention import Ragged
from roll.engines.native.decoder import Attend, Geometry

ALIGN = 16
"""Attention spans are rounded up to this, so that a request's arithmetic does not depend on how long its company is."""


class SlotCache:
    """[layers, slots, span, kv_heads, dim] of keys and of values; what lies past a request's length is never read."""

    def __init__(self, shape: Geometry, *, slots: int, context: int, device: torch.device) -> None:
        self.span = -(-context // ALIGN) * ALIGN
        size = (shape.layers, slots, self.span, shape.kv_heads, shape.head_dim)
        self.keys, self.values = torch.zeros(size, device=device), torch.zeros(size, device=device)
        self._index = torch.arange(max(slots, self.span), device=device)
        pairs = list(zip(self.keys, self.values, strict=True))
        self._flat = [(keys.flatten(0, 1), values.flatten(0, 1)) for keys, values in pairs]
        self._first: tuple[tuple[int, int], list[tuple[Tensor, Tensor]]] = ((0, 0), [])

    def prefilling(self, ragged: Ragged, sources: Tensor, slots: Tensor) -> Attend:
        """Attention over whole sequences that also stores sequence `sources[i]` in slot `slots[i]`."""

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            keys, values = ragged.pad(k), ragged.pad(v)
            self.keys[layer, slots, : ragged.longest] = keys.transpose(1, 2)[sources, : ragged.longest]
            self.values[layer, slots, : ragged.longest] = values.transpose(1, 2)[sources, : ragged.longest]
            return ragged.over(ragged.pad(q), keys, values)

        return attend

    def decoding(self, positions: Tensor) -> Attend:
        """Attention of one new token in each of the first slots, standing at `positions`, over all before it."""
        num = len(positions)
        span = min(self.span, -(-(int(positions.max()) + 1) // ALIGN) * ALIGN)
        seen = self._index[:span] <= positions.unsqueeze(1)
        mask = torch.zeros_like(seen, dtype=self.keys.dtype).masked_fill_(~seen, -torch.inf)[:, None, None]
        places = self._index[:num] * self.span + positions
        flat, read = self._flat, self._of_first(num, span)

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            keys, values = flat[layer]
            keys.index_copy_(0, places, k)
            values.index_copy_(0, places, v)
            # Query heads that read the same key head lie in the query axis, so keys are not repeated.
            grouped = q.reshape(num, k.shape[1], -1, k.shape[2])
            return F.scaled_dot_product_attention(grouped, *read[layer], attn_mask=mask).reshape(num, -1)

        return attend

    def _of_first(self, num: int, span: int) -> list[tuple[Tensor, Tensor]]:
        """Each layer's keys and values in the first slots, as attention reads them; made anew when sizes change."""
        if self._first[0] != (num, span):
            pairs = zip(self.keys[:, :num, :span], self.values[:, :num, :span], strict=True)
            self._first = (num, span), [(keys.transpose(1, 2), values.transpose(1, 2)) for keys, values in pairs]
        return self._first[1]

    def copy(self, source: int, slots: Sequence[int], length: int) -> None:
        """Give other slots the first `length` tokens of one."""
        for slot in slots:
            self.keys[:, slot, :length] = self.keys[:, source, :length]
            self.values[:, slot, :length] = self.values[:, source, :length]
