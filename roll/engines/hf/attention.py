"""Attention of models from `transformers`, over the flat tokens of packed sequences.

`transformers` calls the function registered here instead of its own. It passes queries, keys and values on to the
`Attend` that `attending` has set, with everything in which families differ: scale, sliding window, soft-capping,
attention sinks.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch import Tensor

from roll.engines.native.attention import AttentionOptions
from roll.engines.native.decoder import Attend
from roll.errors import ConfigError

NAME = "roll"
"""Name of the attention in `transformers`."""
_POSITIONS = ("position_ids", "cache_position")
"""Tensors that some families pass on to attention without an effect on it; others change it, such as indices."""
_CURRENT: list[Attend] = []
"""Attention in use, the last one first. Not an argument of layers: compiled code would be compiled for each."""


@contextmanager
def attending(attend: Attend) -> Iterator[None]:
    """Layers computed inside this block attend by `attend`."""
    _CURRENT.append(attend)
    try:
        yield
    finally:
        _CURRENT.pop()


@cache
def register() -> None:
    """Make the attention known to `transformers`."""
    from transformers import AttentionInterface, AttentionMaskInterface  # takes seconds

    AttentionInterface.register(NAME, torch.compiler.disable(_attention))
    AttentionMaskInterface.register(NAME, _mask)


def _mask(*args: Any, local_size: int | None = None, **kwargs: Any) -> Any:
    """The sliding window in place of a mask: `Attend` knows where sequences begin. None without a window."""
    return local_size


def _attention(  # noqa: PLR0913 - transformers decides
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: int | Tensor | None,
    *,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """[1, heads, tokens, dim] each -> [1, tokens, heads, dim]."""
    assert _CURRENT, "only inside of `attending`"
    if isinstance(attention_mask, Tensor) or any(
        isinstance(each, Tensor) and name not in _POSITIONS for name, each in kwargs.items()
    ):
        raise ConfigError(
            f"model: {type(module).__name__} chooses by itself what tokens attend to, which packed sequences cannot; "
            "choose another model"
        )
    window = min((each for each in (attention_mask, sliding_window) if each is not None), default=None)
    scale = None if scaling == query.shape[-1] ** -0.5 else scaling
    options = AttentionOptions(scale=scale, window=window, softcap=softcap, sinks=s_aux)
    flat = (each[0].transpose(0, 1) for each in (query, key, value))
    mixed: Tensor = _CURRENT[-1](module.layer_idx, *flat, None if options == AttentionOptions() else options)
    return mixed.view(1, query.shape[2], query.shape[1], -1), None
