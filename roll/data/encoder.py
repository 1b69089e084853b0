"""Text to ids, quickly: by the tokenizer's own backend, without the general way to it, which takes twice as long."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, cast

Encoder: TypeAlias = Callable[[str, bool], Sequence[int]]
"""The ids of a text with nothing put around it; True if the names of special tokens in it mean them."""


def encoder(tokenizer: Any) -> Encoder:
    """Ids as the tokenizer's own `encode` has them."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return lambda text, markup: cast(
            Sequence[int], tokenizer.encode(text, add_special_tokens=False, split_special_tokens=not markup)
        )

    def encode(text: str, markup: bool) -> Sequence[int]:
        if backend.truncation is not None:  # someone else may have asked for it since
            backend.no_truncation()
        if backend.padding is not None:
            backend.no_padding()
        backend.encode_special_tokens = not markup
        return cast(Sequence[int], backend.encode(text, add_special_tokens=False).ids)

    return encode
