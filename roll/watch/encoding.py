"""Answers as JSON that stays data wherever it ends up: no markup characters, no NaN, any text."""

from __future__ import annotations

import json
import math
from typing import Any, cast

import msgspec

_ENCODER = msgspec.json.Encoder(enc_hook=str)
_ESCAPES = (
    (b"<", b"\\u003c"),
    (b">", b"\\u003e"),
    (b"&", b"\\u0026"),
    ("\u2028".encode(), b"\\u2028"),
    ("\u2029".encode(), b"\\u2029"),
)
"""Inside JSON these characters can only be in strings."""


def encode(value: Any) -> bytes:
    """The value as JSON in UTF-8; numbers that are not finite are null."""
    try:
        body = _ENCODER.encode(value)
    except UnicodeEncodeError:  # half of a surrogate pair
        body = json.dumps(_finite(value), default=str).encode()
    for character, escape in _ESCAPES:
        body = body.replace(character, escape)
    return body


def _finite(value: Any) -> Any:
    """The value with None for numbers that JSON does not have."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(name): _finite(each) for name, each in cast(dict[Any, Any], value).items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in cast(list[Any], value)]
    return value
