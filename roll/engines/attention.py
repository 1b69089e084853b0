"""Causal attention over sequences that lie end to end. Padding exists inside this file and nowhere else."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F  # noqa: N812 - its customary name
from torch import Tensor


class Ragged:
    """Whole sequences of the given lengths: each token sees its own sequence up to itself.

    Linear layers run on the flat tokens; queries, keys and values are laid out as [rows, width] for the attention
    kernel alone. Padding stands to the right, so causality hides it without a mask.
    """

    def __init__(self, lengths: Sequence[int], *, device: torch.device, multiple: int = 1) -> None:
        sizes = torch.tensor(lengths)
        self.rows, self.width = len(lengths), -(-max(lengths) // multiple) * multiple
        starts = sizes.cumsum(0) - sizes
        row = torch.repeat_interleave(torch.arange(len(lengths)), sizes)
        positions = torch.arange(int(sizes.sum())) - starts[row]
        self.row = row.to(device)
        self.positions = positions.to(device)
        self.last = (starts + sizes - 1).to(device)
        """Where each sequence's last token stands among the flat ones."""
        self._place = (row * self.width + positions).to(device)

    def pad(self, x: Tensor) -> Tensor:
        """[tokens, heads, dim] -> [rows, heads, width, dim]"""
        padded = x.new_zeros(self.rows * self.width, *x.shape[1:]).index_copy(0, self._place, x)
        return padded.view(self.rows, self.width, *x.shape[1:]).transpose(1, 2)

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """An `Attend` that keeps nothing."""
        return self.over(self.pad(q), self.pad(k), self.pad(v))

    def over(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attention of padded [rows, heads, width, dim], back on flat tokens [tokens, heads * dim]."""
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=q.shape[1] != k.shape[1])
        return mixed.transpose(1, 2).reshape(self.rows * self.width, -1)[self._place]
