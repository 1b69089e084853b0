"""Ends of responses that a request defines by text: stop strings, and the first tool call."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from roll.types import Ints

_MARGIN = 4
"""Further tokens before a marker, since decoding may drop the beginning of its input."""


class StopDetector:
    """Finds the token that completes one of the markers; the result does not depend on how the tokens are split."""

    def __init__(self, decode: Callable[[Sequence[int]], str], markers: Sequence[str]) -> None:
        """Without markers nothing is found."""
        self._decode, self._markers = decode, markers
        num_bytes = max((len(marker.encode()) for marker in markers), default=0)
        self._window: deque[int] = deque(maxlen=num_bytes + _MARGIN)  # a token of text has at least one byte

    def find(self, ids: Ints) -> int | None:
        """Number of these next tokens up to the end of the first marker; None if there is none yet."""
        for index, id in enumerate(ids.tolist() if self._markers else (), start=1):
            self._window.append(id)
            text = self._decode([*self._window])
            if any(marker in text for marker in self._markers):
                return index
        return None


def before_marker(text: str, markers: Sequence[str]) -> str:
    """The text before the first of the markers."""
    found = [index for marker in markers if (index := text.find(marker)) >= 0]
    return text[: min(found)] if found else text


def before_partial(text: str, markers: Sequence[str]) -> str:
    """The text before the first marker, and without an end that may become one."""
    text = before_marker(text, markers)
    sizes = [size for marker in markers for size in range(1, len(marker)) if text.endswith(marker[:size])]
    return text[: len(text) - max(sizes, default=0)]
