"""Causal attention over sequences that lie end to end. Padding exists inside this file and nowhere else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - its customary name
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from roll.types import Batch


@dataclass(frozen=True, slots=True)
class Sharing:
    """Which rows begin like another: the first `lengths[i]` tokens of row i are those of row `leaders[i]`."""

    leaders: tuple[int, ...]
    lengths: tuple[int, ...]
    read: tuple[int, ...]
    """So many tokens of each row are asked about: after the last one nothing comes, so it need not be computed."""


def sharing(batch: Batch) -> Sharing:
    """Rows whose untrained beginning is the same, as siblings' prompts are, lean on the first of them."""
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
class Standing:
    """Where the tokens of sequences that lie end to end stand, a shared beginning standing there once."""

    row: np.ndarray
    """[tokens]"""
    position: np.ndarray
    """[tokens] in its row"""
    own: np.ndarray
    """[tokens] bool: whether it stands among the flat ones itself"""
    stands_for: np.ndarray
    """[tokens] the flat one that stands for it"""


def standing(sizes: np.ndarray, shared: Sharing | None) -> Standing:
    """For rows of so many tokens."""
    starts = sizes.cumsum() - sizes
    row = np.repeat(np.arange(len(sizes)), sizes)
    position = np.arange(sizes.sum()) - starts[row]
    own = position >= (np.array(shared.lengths)[row] if shared else 0)
    leader = np.array(shared.leaders)[row] if shared else row
    stands_for = (own.cumsum() - 1)[np.where(own, starts[row] + position, starts[leader] + position)]
    return Standing(row, position, own, stands_for)


class Ragged:
    """Whole sequences of the given lengths: each token sees its own sequence up to itself.

    Linear layers run on the flat tokens, a shared beginning standing there once; queries, keys and values are laid out
    as [rows, width] for the attention kernel alone. Padding stands to the right, so causality hides it without a mask.
    """

    def __init__(
        self, lengths: Sequence[int], *, device: torch.device, multiple: int = 1, shared: Sharing | None = None
    ) -> None:
        given = np.array(lengths)
        sizes = np.array(shared.read) if shared else given
        self.rows, self.longest = len(sizes), int(sizes.max())
        self.width = -(-self.longest // multiple) * multiple
        found = standing(sizes, shared)
        own, stands_for = found.own, found.stands_for
        place = found.row * self.width + found.position
        among_all = (given.cumsum() - given)[found.row] + found.position
        flat = np.zeros(given.sum(), np.int64)
        flat[among_all] = stands_for

        def tensor(values: np.ndarray) -> Tensor:
            return torch.from_numpy(values).to(device)

        self.kept = tensor(among_all[own])
        """Of all tokens, those that stand among the flat ones."""
        self.flat = tensor(flat)
        """For every token that is read, the flat one that stands for it."""
        self.positions = tensor(found.position[own])
        """Of the flat tokens, in their sequences."""
        self.last = tensor(stands_for[sizes.cumsum() - 1])
        """The flat token that ends each sequence."""
        self._place = tensor(place[own])
        source = np.zeros(self.rows * self.width, np.int64)
        source[place] = stands_for
        self._laying = _Laying(
            source=tensor(source),
            place=self._place,
            borrowed=None if own.all() else (tensor(place[~own]), tensor(stands_for[~own])),
        )

    def standing(self, places: Tensor) -> Tensor:
        """For tokens by their places among all, the flat ones that stand for them."""
        return self.flat[places]

    def pad(self, x: Tensor) -> Tensor:
        """Flat [tokens, heads, dim] -> [rows, heads, width, dim]; what stands in the padding is of no account."""
        laid: Tensor = _Laid.apply(x, self._laying)
        return laid.view(self.rows, self.width, *x.shape[1:]).transpose(1, 2)

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """An `Attend` that keeps nothing."""
        return self.over(self.pad(q), self.pad(k), self.pad(v))

    def over(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attention of padded [rows, heads, width, dim], back on flat tokens [tokens, heads * dim]."""
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=q.shape[1] != k.shape[1])
        taken: Tensor = _Taken.apply(mixed.transpose(1, 2).reshape(self.rows * self.width, -1), self._place)
        return taken


@dataclass(frozen=True, slots=True, kw_only=True)
class _Laying:
    """How flat tokens lie in [rows * width] places."""

    source: Tensor
    """For every place the flat token that stands there; the first one in the padding."""
    place: Tensor
    """Of every flat token, its own."""
    borrowed: tuple[Tensor, Tensor] | None
    """Places of shared beginnings, and the flat tokens that stand for them."""


class _Laid(Function):
    """Flat rows laid out by places; autograd left to itself would add up all of them again on the way back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, laying: _Laying) -> Tensor:
        ctx.laying = laying
        return x.index_select(0, laying.source)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        laying: _Laying = ctx.laying
        to_x = gradient.index_select(0, laying.place)
        if laying.borrowed is not None:
            places, sources = laying.borrowed
            to_x += torch.zeros_like(to_x).index_add_(0, sources, gradient.index_select(0, places))
        return to_x, None


class _Taken(Function):
    """Rows at places that all differ."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, places: Tensor) -> Tensor:
        ctx.save_for_backward(places)
        ctx.num = len(x)
        return x.index_select(0, places)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (places,) = ctx.saved_tensors
        return gradient.new_zeros(ctx.num, *gradient.shape[1:]).index_copy_(0, places, gradient), None
