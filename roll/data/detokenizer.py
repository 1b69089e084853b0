"""Ids to text, quickly: where a tokenizer's decoder only puts pieces end to end, so do we, without asking it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, cast

import numpy as np

if TYPE_CHECKING:
    from roll.types import Ints

T = TypeVar("T")
Detokenizer: TypeAlias = "Callable[[Sequence[int] | Ints], str]"
_IDS = 1 << 18
"""More than any vocabulary is padded to."""
_NOTHING = "\0"
"""Stands for ids that have no text."""


def detokenizer(tokenizer: Any) -> Detokenizer:
    """The text of ids without special tokens, as the tokenizer's own `decode` has it."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return lambda ids: cast(
            str, tokenizer.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False)
        )
    kind = type(backend.decoder).__name__
    if kind == "Fuse":
        return _strings(tokenizer)
    if kind == "ByteLevel":
        return _bytes(tokenizer)
    return lambda ids: cast(str, backend.decode(list(ids), skip_special_tokens=True))


def _strings(tokenizer: Any) -> Detokenizer:
    """Each token is its own text."""
    tokens = _tokens(tokenizer)
    if all(len(token) == 1 and token != _NOTHING and not "\ud800" <= token <= "\udfff" for _, token in tokens):
        return _characters(tokens)
    known = _table(tokens, "")

    def decode(ids: Sequence[int] | Ints) -> str:
        return "".join(known.take(ids).tolist())

    return decode


def _characters(tokens: Sequence[tuple[int, str]]) -> Detokenizer:
    """Each token is one character, so that a text is an array of them: a tenth of the time that joining takes."""
    narrow = all(token <= "\xff" for _, token in tokens)
    coding = "latin-1" if narrow else "utf-32-le"
    known = np.zeros(max(_IDS, 1 + max(id for id, _ in tokens)), "<u1" if narrow else "<u4")
    for id, token in tokens:
        known[id] = ord(token)

    def decode(ids: Sequence[int] | Ints) -> str:
        return known.take(ids).tobytes().decode(coding).replace(_NOTHING, "")

    return decode


def _bytes(tokenizer: Any) -> Detokenizer:
    """Each token stands for bytes, which make characters only together."""
    letters = _letters()

    def spelled(token: str) -> bytes:
        known = all(letter in letters for letter in token)
        return bytes(letters[letter] for letter in token) if known else token.encode()

    known = _table([(id, spelled(token)) for id, token in _tokens(tokenizer)], b"")

    def decode(ids: Sequence[int] | Ints) -> str:
        return b"".join(known.take(ids).tolist()).decode("utf-8", "replace")

    return decode


def _table(pieces: Sequence[tuple[int, T]], nothing: T) -> Any:
    """By id, as an array of objects; models have ids that no tokenizer knows, which are nothing."""
    table = np.full(max(_IDS, 1 + max(id for id, _ in pieces)), nothing, object)
    for id, piece in pieces:
        table[id] = piece
    return table


def _tokens(tokenizer: Any) -> list[tuple[int, str]]:
    """Every token that is not special, by id."""
    special = set(tokenizer.all_special_ids)
    return [(id, token) for token, id in tokenizer.get_vocab().items() if id not in special]


def _letters() -> dict[str, int]:
    """The byte that each letter of a byte-level vocabulary stands for: printable ones for themselves."""
    plain = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    shifted = [byte for byte in range(256) if byte not in set(plain)]
    return {chr(byte): byte for byte in plain} | {chr(256 + place): byte for place, byte in enumerate(shifted)}
