"""Keys and values in pages, which requests with the same prompt share."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F  # noqa: N812 - its customary name
from torch import Tensor

from roll.engines.native.attention import Ragged
from roll.engines.native.decoder import Attend, CacheShape
from roll.engines.native.packed import PACKED, PackedAttention, to_device
from roll.engines.native.paged_kernels import paged_attention, store_tokens

PAGE = 64
"""Tokens per page."""


class PagePool:
    """Which pages are free, and how many requests use each of the others.

    Page 0 is never handed out: rows without a request write to it.
    """

    def __init__(self, num_pages: int) -> None:
        self._free = list(range(num_pages - 1, 0, -1))
        self._users = [0] * num_pages

    @property
    def num_free(self) -> int:
        return len(self._free)

    def take(self, num: int) -> list[int]:
        """Pages with one user."""
        assert num <= len(self._free), "the caller compares with num_free"
        pages = [self._free.pop() for _ in range(num)]
        for page in pages:
            self._users[page] = 1
        return pages

    def share(self, pages: Sequence[int]) -> None:
        """Add a user."""
        for page in pages:
            self._users[page] += 1

    def release(self, pages: Sequence[int]) -> None:
        """Remove a user; a page without users is free."""
        for page in pages:
            self._users[page] -= 1
            if not self._users[page]:
                self._free.append(page)


class PagedCache:
    """Keys and values of all layers, [layers, pages * PAGE, kv_heads, dim] each."""

    def __init__(self, shape: CacheShape, *, num_pages: int, dtype: torch.dtype, device: torch.device) -> None:
        sizes = (shape.layers, num_pages * PAGE, shape.kv_heads)
        self.keys = torch.zeros(*sizes, shape.key_dim, dtype=dtype, device=device)
        self.values = torch.zeros(*sizes, shape.value_dim, dtype=dtype, device=device)

    def prefill_attention(self, contexts: Sequence[int], pages: Sequence[Sequence[int]]) -> tuple[Attend, Tensor]:
        """Attention of sequences of these lengths, stored in these pages; and the position of each token."""
        device, dtype = self.keys.device, self.keys.dtype
        cells = to_device(
            torch.cat([_cells(torch.tensor(each))[:length] for length, each in zip(contexts, pages, strict=True)]),
            device,
        )
        on_gpu = device.type == "cuda" and dtype in PACKED
        layout = PackedAttention(contexts, device=device) if on_gpu else Ragged(contexts, device=device)

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            self.keys[layer].index_copy_(0, cells, k)
            self.values[layer].index_copy_(0, cells, v)
            return layout.attend(layer, q, k, v)

        return attend, layout.positions

    def decode_attention(self, table: Tensor, positions: Tensor, alive: Tensor) -> Attend:
        """Attention of one new token per row over the pages in its row of `table`; rows that are not alive skip it."""
        pages = table.gather(1, (positions // PAGE).unsqueeze(1)).squeeze(1).long()
        cells = torch.where(alive, pages * PAGE + positions % PAGE, 0)
        lengths = torch.where(alive, positions + 1, 1).int()

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            keys, values = self.keys[layer], self.values[layer]
            if q.device.type == "cuda":
                store_tokens(k, v, keys, values, cells)
                return paged_attention(q, keys, values, table, lengths, page=PAGE).flatten(1)
            keys.index_copy_(0, cells, k)
            values.index_copy_(0, cells, v)
            return attend_pages(q, keys, values, table, lengths)

        return attend

    def copy(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Copy whole pages."""
        source, target = (to_device(torch.tensor(each), self.keys.device) for each in (sources, targets))
        for tensor in (self.keys, self.values):
            pages = tensor.view(tensor.shape[0], -1, PAGE, *tensor.shape[2:])
            pages[:, target] = pages[:, source]


def _cells(pages: Tensor) -> Tensor:
    """[..., pages] -> [..., pages * PAGE]"""
    return (pages.unsqueeze(-1) * PAGE + torch.arange(PAGE, device=pages.device)).flatten(-2)


def attend_pages(q: Tensor, keys: Tensor, values: Tensor, table: Tensor, lengths: Tensor) -> Tensor:
    """The same without a kernel: all pages of the table are read."""
    cells = _cells(table.long())
    seen = torch.arange(cells.shape[1], device=q.device) < lengths.unsqueeze(1)
    k, v = keys[cells].transpose(1, 2), values[cells].transpose(1, 2)
    grouped = q.reshape(len(q), k.shape[1], -1, q.shape[2])
    return F.scaled_dot_product_attention(grouped, k, v, attn_mask=seen[:, None, None]).flatten(1)
