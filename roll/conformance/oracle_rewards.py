"""Aggregations, and what is done to rewards before they become advantages: one trajectory after another."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from roll.conformance.exact import ExactBatch, Floats
from roll.conformance.oracle_advantages import deviation_of, group_means


def token_mean(batch: ExactBatch) -> Floats:
    """1 / (trained tokens of the batch)."""
    num_tokens = sum(batch.trained)
    return _weights(batch, lambda places: 1 / num_tokens)


def sequence_mean_token_mean(batch: ExactBatch) -> Floats:
    """1 / (rows with a trained token) / (trained tokens of the row)."""
    num_rows = _num_rows(batch)
    return _weights(batch, lambda places: 1 / num_rows / len(places))


def sequence_mean_token_sum(batch: ExactBatch) -> Floats:
    """1 / (rows with a trained token)."""
    num_rows = _num_rows(batch)
    return _weights(batch, lambda places: 1 / num_rows)


def constant(batch: ExactBatch, *, tokens: int) -> Floats:
    """1 / (rows with a trained token) / tokens."""
    num_rows = _num_rows(batch)
    return _weights(batch, lambda places: 1 / num_rows / tokens)


def clipped(batch: ExactBatch, past: Floats, *, low: float, high: float) -> Floats:
    """Rewards kept within [low, high]."""
    return np.array([min(max(reward, low), high) for reward in batch.rewards])


def scaled(batch: ExactBatch, past: Floats, *, factor: float = 1.0, shift: float = 0.0) -> Floats:
    """factor R + shift."""
    return np.array([factor * reward + shift for reward in batch.rewards])


def normalised(
    batch: ExactBatch,
    past: Floats,
    *,
    mean: str = "group",
    std: str = "group",
    unbiased: bool = False,
    eps: float = 1e-6,
) -> Floats:
    """(R - mean) / (deviation + eps), each over the siblings, the batch, or everything so far; 0 where it is 0."""
    found: list[float] = []
    means = group_means(batch)
    for own, siblings in enumerate(batch.siblings):
        sources = {"group": batch.rewards[siblings], "batch": batch.rewards, "running": past}
        centre = {"none": 0.0, "group": means[own]}.get(mean)
        centre = float(sum(sources[mean])) / len(sources[mean]) if centre is None else centre
        number = float(batch.rewards[own]) - centre
        if std != "none":
            deviation = deviation_of(sources[std], unbiased=unbiased)
            number = number / (deviation + eps) if deviation > 0 else 0.0
        found.append(number)
    return np.array(found)


def overlong(batch: ExactBatch, past: Floats, *, max_tokens: int, buffer: int, factor: float = 1.0) -> Floats:
    """R less 0 up to max_tokens - buffer trained tokens, `factor` from max_tokens on, and linearly between."""
    found: list[float] = []
    for reward, places in zip(batch.rewards, batch.places, strict=True):
        over = len(places) - (max_tokens - buffer)
        found.append(float(reward) - factor * min(max(over / buffer, 0.0), 1.0))
    return np.array(found)


def format_penalty(batch: ExactBatch, past: Floats, *, part: str = "format", penalty: float = 1.0) -> Floats:
    """R less `penalty` where the part of that name is there and not 1."""
    found: list[float] = []
    for reward, given in zip(batch.rewards, batch.parts[part], strict=True):
        found.append(float(reward) - (penalty if not np.isnan(given) and given != 1 else 0.0))
    return np.array(found)


def _weights(batch: ExactBatch, weight: Callable[[list[int]], float]) -> Floats:
    found = np.zeros(len(batch.trained))
    for places in batch.row_places:
        if places:
            found[places] = weight(places)
    return found


def _num_rows(batch: ExactBatch) -> int:
    return sum(bool(places) for places in batch.row_places)


AGGREGATIONS: dict[str, Callable[..., Floats]] = {
    function.__name__: function
    for function in (token_mean, sequence_mean_token_mean, sequence_mean_token_sum, constant)
}
SHAPINGS: dict[str, Callable[..., Any]] = {
    "clipped": clipped,
    "scaled": scaled,
    "normalised": normalised,
    "overlong": overlong,
    "format": format_penalty,
}
"""Besides the batch they take every reward there ever was, this batch's among them."""
