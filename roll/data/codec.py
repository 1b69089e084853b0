"""Fast encoding of text to ids and decoding of ids to text, equal to the tokenizer's own `encode` and `decode`."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from itertools import takewhile
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import numpy as np

if TYPE_CHECKING:
    from roll.types import Ints

Encoder: TypeAlias = Callable[[str, bool], Sequence[int]]
"""The ids of a text without added special tokens; the flag tells whether names of special tokens in it are parsed."""
Detokenizer: TypeAlias = "Callable[[Sequence[int] | Ints], str]"
_IDS = 1 << 18
"""Size of the table, above any padded vocabulary."""
_INCOMPLETE = "\N{REPLACEMENT CHARACTER}"
"""Decoded from the first bytes of a character whose last ones are missing."""
_NOTHING = "\0"
"""Placeholder of ids without text."""


def encoder(tokenizer: Any) -> Encoder:
    """A function from text to ids: calls the tokenizer's backend directly, which takes half the time."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return lambda text, markup: cast(
            Sequence[int], tokenizer.encode(text, add_special_tokens=False, split_special_tokens=not markup)
        )

    def encode(text: str, markup: bool) -> Sequence[int]:
        if backend.truncation is not None:  # other code may have enabled it
            backend.no_truncation()
        if backend.padding is not None:
            backend.no_padding()
        backend.encode_special_tokens = not markup
        return cast(Sequence[int], backend.encode(text, add_special_tokens=False).ids)

    return encode


def detokenizer(tokenizer: Any) -> Detokenizer:
    """A function from ids to text without special tokens; joins pieces if the tokenizer's decoder does only that."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return lambda ids: cast(
            str, tokenizer.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False)
        )
    kind = type(backend.decoder).__name__
    if kind not in ("Fuse", "ByteLevel"):
        return lambda ids: cast(str, backend.decode(list(ids), skip_special_tokens=True))
    special = set(tokenizer.all_special_ids)
    tokens = [(id, token) for token, id in tokenizer.get_vocab().items() if id not in special]
    if kind == "ByteLevel":
        return _bytes(tokens)
    if all(len(token) == 1 and token != _NOTHING and not "\ud800" <= token <= "\udfff" for _, token in tokens):
        return _characters(tokens)
    known = _table(tokens, "", object)
    return lambda ids: "".join(known.take(ids).tolist())


def last_tokens(decode: Detokenizer, ids: Ints, ends: Sequence[int]) -> list[int]:
    """For each end of a span of characters of the text of `ids`: the index of the token that completes the span.

    A character split over several tokens is complete with its last one.
    """
    text = decode(ids)

    @cache
    def num_complete(index: int) -> int:
        """Characters of the text that the tokens up to `index` determine."""
        decoded = decode(ids[: index + 1])
        if text.startswith(decoded):
            return len(decoded)
        return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(decoded, text, strict=False)))

    return [_last_token(decode, ids, text, end, num_complete) for end in ends]


def _last_token(decode: Detokenizer, ids: Ints, text: str, end: int, num_complete: Callable[[int], int]) -> int:
    index = bisect_left(range(len(ids)), end, key=num_complete)
    if text[end - 1] != _INCOMPLETE:
        return index
    # An incomplete character looks like this one: the tokens that only continue it belong to it as well.
    while index + 1 < len(ids) and decode(ids[index + 1 : index + 2]) and len(decode(ids[: index + 2])) == end:
        index += 1
    return index


def _characters(tokens: Sequence[tuple[int, str]]) -> Detokenizer:
    """A detokenizer for tokens of one character, by array lookup: ten times as fast as joining."""
    narrow = all(token <= "\xff" for _, token in tokens)
    coding = "latin-1" if narrow else "utf-32-le"
    known = _table([(id, ord(token)) for id, token in tokens], 0, "<u1" if narrow else "<u4")
    return lambda ids: known.take(ids).tobytes().decode(coding).replace(_NOTHING, "")


def _bytes(tokens: Iterable[tuple[int, str]]) -> Detokenizer:
    """A detokenizer for byte-level tokens, which make characters only in combination."""
    plain = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]  # are their own letters
    shifted = [byte for byte in range(256) if byte not in set(plain)]
    letters = {chr(byte): byte for byte in plain} | {chr(256 + index): byte for index, byte in enumerate(shifted)}

    def to_bytes(token: str) -> bytes:
        known = all(letter in letters for letter in token)
        return bytes(letters[letter] for letter in token) if known else token.encode()

    known = _table([(id, to_bytes(token)) for id, token in tokens], b"", object)
    return lambda ids: b"".join(known.take(ids).tolist()).decode("utf-8", "replace")


def _table(pieces: Sequence[tuple[int, Any]], nothing: Any, kind: Any) -> Any:
    """Pieces by id, as an array; ids that the tokenizer does not have are `nothing`."""
    table = np.full(max(_IDS, 1 + max(id for id, _ in pieces)), nothing, kind)
    for id, piece in pieces:
        table[id] = piece
    return table
