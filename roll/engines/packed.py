"""Causal attention over sequences that lie end to end, by a kernel that takes them so: on a GPU, with 16 bits."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial
from inspect import signature
from typing import Any

import numpy as np
import torch
from torch import Tensor

PACKED = (torch.bfloat16, torch.float16)
"""What the kernel below takes."""


class Packed:
    """Whole sequences of the given lengths: each token sees its own sequence up to itself.

    Nothing is padded and nothing is shared. It has what a trainer needs of `Ragged`.
    """

    def __init__(self, lengths: Sequence[int], *, device: torch.device) -> None:
        sizes = np.array(lengths)
        ends = sizes.cumsum()
        self.longest = int(sizes.max())
        self.kept = slice(None)
        self.positions = there(torch.from_numpy(np.arange(ends[-1]) - np.repeat(ends - sizes, sizes)), device)
        self.last = there(torch.from_numpy(ends - 1), device)
        self._bounds = there(torch.from_numpy(np.concatenate([[0], ends]).astype(np.int32)), device)

    def standing(self, places: Tensor) -> Tensor:
        """All tokens stand for themselves."""
        return places

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """An `Attend` that keeps nothing."""
        found: Any = _kernel()(q, k, v, self._bounds, self._bounds, self.longest, self.longest, window_size=(-1, 0))
        return found.reshape(len(q), -1)


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
