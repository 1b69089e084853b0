"""The tokens of one attempt, with what is known about each: its sampler, its advantage, its mismatch."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from roll.errors import ConfigError
from roll.journal.packing import unpack_values
from roll.types import Trajectory
from roll.watch.texts import TextDecoder

if TYPE_CHECKING:
    from roll.types import Floats

MAX_TOKENS = 20_000
"""Tokens per answer."""
_COLUMNS = ("id", "text", "logprob", "version", "advantage", "mismatch", "trained", "turn")
_VALUES = """SELECT advantages, logprobs FROM journal.token_values
    WHERE step = ? AND "group" = ? AND sibling = ? ORDER BY id DESC LIMIT 1"""
"""The newest: a step that was rolled back is trained again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRange:
    """The tokens of an attempt to show."""

    first: int = 0
    limit: int = 4000

    def __post_init__(self) -> None:
        if self.first < 0 or not 0 <= self.limit <= MAX_TOKENS:
            raise ConfigError(f"tokens_from, tokens_limit: expected at least 0, and 0 to {MAX_TOKENS}; change them")


def token_columns(
    rows: sqlite3.Connection, row: Mapping[str, Any], body: Trajectory | None, decoder: TextDecoder, tokens: TokenRange
) -> dict[str, Any]:
    """A range of the tokens of all turns. Values that are not known are None or NaN."""
    columns: dict[str, list[Any]] = {name: [] for name in _COLUMNS}
    if body is None:
        return {"from": 0, "total": 0, **columns}
    advantages, trainer_logprobs = _read_values(rows, row, body.num_sampled)
    trained = np.isfinite(advantages) if len(advantages) else np.full(body.num_sampled, row["step"] is not None)
    start, end = tokens.first, tokens.first + tokens.limit
    position = num_sampled = 0
    for number, turn in enumerate(body.turns):
        for ids, sampled in ((turn.observation, False), (turn.sampled, True)):
            first, last = max(0, start - position), min(len(ids), end - position)
            span = slice(num_sampled + first, num_sampled + last)
            position += len(ids)
            num_sampled += len(ids) if sampled else 0
            if first >= last:
                continue
            unknown = [None] * (last - first)
            logprobs = turn.sampler_logprobs[first:last]
            mismatch = np.abs(trainer_logprobs[span] - logprobs) if sampled and len(trainer_logprobs) else unknown
            columns["id"] += ids[first:last].tolist()
            columns["text"] += decoder.pieces(ids[first:last])
            columns["logprob"] += logprobs.tolist() if sampled else unknown
            columns["version"] += turn.versions[first:last].tolist() if sampled else unknown
            columns["advantage"] += advantages[span].tolist() if sampled and len(advantages) else unknown
            columns["mismatch"] += [None if each is None else float(each) for each in mismatch]
            columns["trained"] += trained[span].tolist() if sampled else [False] * (last - first)
            columns["turn"] += [number] * (last - first)
    return {"from": start, "total": position, **columns}


def _read_values(rows: sqlite3.Connection, row: Mapping[str, Any], num_tokens: int) -> tuple[Floats, Floats]:
    """Advantages and trainer logprobs of the sampled tokens in the step that trained on them; empty if unknown."""
    found = rows.execute(_VALUES, (row["step"], row["group"], row["sibling"])).fetchone() or (None, None)
    empty = np.zeros(0, np.float32)
    advantages, logprobs = (empty if packed is None else unpack_values(packed, num_tokens) for packed in found)
    return advantages, logprobs
