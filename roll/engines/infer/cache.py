"""Keys and values of the requests being decoded: one slot a request, and the slots in use are always the first ones."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F  # noqa: N812 - its customary name
from torch import Tensor

from roll.engines.attention import Ragged
from roll.engines.decoder import Attend, Geometry

ALIGN = 64
"""Attention spans are rounded up to this, so that a request's arithmetic does not depend on how long its company is."""


class SlotCache:
    """[layers, slots, kv_heads, span, dim] of keys and of values; what lies past a request's length is never read."""

    def __init__(self, shape: Geometry, *, slots: int, context: int, device: torch.device) -> None:
        self.span = -(-context // ALIGN) * ALIGN
        size = (shape.layers, slots, shape.kv_heads, self.span, shape.head_dim)
        self.keys, self.values = torch.zeros(size, device=device), torch.zeros(size, device=device)
        self._index = torch.arange(max(slots, self.span), device=device)

    def prefilling(self, ragged: Ragged, sources: Tensor, slots: Tensor) -> Attend:
        """Attention over whole sequences that also stores sequence `sources[i]` in slot `slots[i]`."""

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            keys, values = ragged.pad(k), ragged.pad(v)
            self.keys[layer, slots, :, : ragged.longest] = keys[sources, :, : ragged.longest]
            self.values[layer, slots, :, : ragged.longest] = values[sources, :, : ragged.longest]
            return ragged.over(ragged.pad(q), keys, values)

        return attend

    def decoding(self, positions: Tensor) -> Attend:
        """Attention of one new token in each of the first slots, standing at `positions`, over all before it."""
        num = len(positions)
        span = min(self.span, -(-(int(positions.max()) + 1) // ALIGN) * ALIGN)
        seen = self._index[:span] <= positions.unsqueeze(1)
        mask = torch.zeros_like(seen, dtype=self.keys.dtype).masked_fill_(~seen, -torch.inf)[:, None, None]
        slots = self._index[:num]

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            keys, values = self.keys[layer], self.values[layer]
            keys[slots, :, positions] = k
            values[slots, :, positions] = v
            # Query heads that read the same key head lie in the query axis, so keys are not repeated.
            grouped = q.reshape(num, keys.shape[1], -1, q.shape[-1])
            mixed = F.scaled_dot_product_attention(
                grouped, keys[:num, :, :span], values[:num, :, :span], attn_mask=mask
            )
            return mixed.reshape(num, -1)

        return attend

    def copy(self, source: int, slots: Sequence[int], length: int) -> None:
        """Give other slots the first `length` tokens of one."""
        for slot in slots:
            self.keys[:, slot, :, :length] = self.keys[:, source, :, :length]
            self.values[:, slot, :, :length] = self.values[:, source, :, :length]
