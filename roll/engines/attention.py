"""Causal attention over sequences that lie end to end. Padding exists inside this file and nowhere else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - its customary name
from torch import Tensor

from roll.types import Batch


@dataclass(frozen=True, slots=True)
class Sharing:
    """Which rows begin like another: the first `lengths[i]` tokens of row i are those of row `leaders[i]`."""

    leaders: tuple[int, ...]
    lengths: tuple[int, ...]


def sharing(batch: Batch) -> Sharing:
    """Rows whose untrained beginning is the same, as siblings' prompts are, lean on the first of them."""
    trained, ids = batch.trained.numpy(), batch.ids.numpy()
    first_of: dict[bytes, int] = {}
    leaders: list[int] = []
    lengths: list[int] = []
    start = 0
    for row, size in enumerate(batch.lengths):
        mask = trained[start : start + size]
        prefix = int(mask.argmax()) if mask.any() else size
        leader = first_of.setdefault(ids[start : start + prefix].tobytes(), row)
        leaders.append(leader)
        lengths.append(0 if leader == row else prefix)
        start += size
    return Sharing(tuple(leaders), tuple(lengths))


class Ragged:
    """Whole sequences of the given lengths: each token sees its own sequence up to itself.

    Linear layers run on the flat tokens, a shared beginning standing there once; queries, keys and values are laid out
    as [rows, width] for the attention kernel alone. Padding stands to the right, so causality hides it without a mask.
    """

    def __init__(
        self, lengths: Sequence[int], *, device: torch.device, multiple: int = 1, shared: Sharing | None = None
    ) -> None:
        sizes = np.array(lengths)
        self.rows, self.longest = len(sizes), int(sizes.max())
        self.width = -(-self.longest // multiple) * multiple
        starts = sizes.cumsum() - sizes
        row = np.repeat(np.arange(self.rows), sizes)
        position = np.arange(sizes.sum()) - starts[row]
        own = position >= (np.array(shared.lengths)[row] if shared else 0)
        leader = np.array(shared.leaders)[row] if shared else row
        stands_for = (own.cumsum() - 1)[np.where(own, starts[row] + position, starts[leader] + position)]
        place = row * self.width + position

        def tensor(values: np.ndarray) -> Tensor:
            return torch.from_numpy(values).to(device)

        self.kept = tensor(own.nonzero()[0])
        """Of all tokens, those that stand among the flat ones."""
        self.flat = tensor(stands_for)
        """For every token, the flat one that stands for it."""
        self.positions = tensor(position[own])
        """Of the flat tokens, in their sequences."""
        self.last = tensor(stands_for[starts + sizes - 1])
        """The flat token that ends each sequence."""
        self._place = tensor(place[own])
        self._borrowed = None if own.all() else (tensor(place[~own]), tensor(stands_for[~own]))

    def pad(self, x: Tensor, *, whole: bool = True) -> Tensor:
        """Flat [tokens, heads, dim] -> [rows, heads, width, dim]; without `whole`, shared beginnings stay empty."""
        padded = x.new_zeros(self.rows * self.width, *x.shape[1:]).index_copy(0, self._place, x)
        if whole and self._borrowed is not None:
            places, sources = self._borrowed
            padded = padded.index_copy(0, places, x.index_select(0, sources))
        return padded.view(self.rows, self.width, *x.shape[1:]).transpose(1, 2)

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """An `Attend` that keeps nothing."""
        return self.over(self.pad(q, whole=False), self.pad(k), self.pad(v))

    def over(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attention of padded [rows, heads, width, dim], back on flat tokens [tokens, heads * dim]."""
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=q.shape[1] != k.shape[1])
        return mixed.transpose(1, 2).reshape(self.rows * self.width, -1).index_select(0, self._place)
