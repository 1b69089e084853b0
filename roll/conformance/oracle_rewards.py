"""Aggregations and reward shapings, computed per trajectory in double precision."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from roll.conformance.exact import ExactBatch, Floats
from roll.conformance.oracle_advantages import deviation_of, group_means


def token_mean(batch: ExactBatch) -> Floats:
    """1 / (trained tokens of the batch)."""
    num_tokens = sum(batch.trained)
    return _weights(batch, lambda positions: 1 / num_tokens)


def sequence_mean_token_mean(batch: ExactBatch) -> Floats:
    """1 / (rows with a trained token) / (trained tokens of the row)."""
    num_rows = _num_rows(batch)
    return _weights(batch, lambda positions: 1 / num_rows / len(positions))


def sequence_mean_token_sum(batch: ExactBatch) -> Floats:
    """1 / (rows with a trained token)."""
    num_rows = _num_rows(batch)
    return _weights(batch, lambda positions: 1 / num_rows)


def constant(batch: ExactBatch, *, tokens: int) -> Floats:
    """1 / (rows with a trained token) / tokens."""
    num_rows = _num_rows(batch)
    return _weights(batch, lambda positions: 1 / num_rows / tokens)


def clipped(batch: ExactBatch, past: Floats, *, low: float, high: float) -> Floats:
    """Rewards clipped to [low, high]."""
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
    """(R - mean) / (deviation + eps), each over the group, the batch, or the run; 0 where the deviation is 0."""
    result: list[float] = []
    means = group_means(batch)
    for owner, siblings in enumerate(batch.siblings):
        sources = {"group": batch.rewards[siblings], "batch": batch.rewards, "running": past}
        centre = {"none": 0.0, "group": means[owner]}.get(mean)
        centre = float(sum(sources[mean])) / len(sources[mean]) if centre is None else centre
        number = float(batch.rewards[owner]) - centre
        if std != "none":
            deviation = deviation_of(sources[std], unbiased=unbiased)
            number = number / (deviation + eps) if deviation > 0 else 0.0
        result.append(number)
    return np.array(result)


def overlong(batch: ExactBatch, past: Floats, *, max_tokens: int, buffer: int, factor: float = 1.0) -> Floats:
    """R minus 0 up to max_tokens - buffer trained tokens, minus `factor` from max_tokens on, linear between."""
    result: list[float] = []
    for reward, positions in zip(batch.rewards, batch.positions, strict=True):
        over = len(positions) - (max_tokens - buffer)
        result.append(float(reward) - factor * min(max(over / buffer, 0.0), 1.0))
    return np.array(result)


def format_penalty(batch: ExactBatch, past: Floats, *, part: str = "format", penalty: float = 1.0) -> Floats:
    """R minus `penalty` where the part of that name exists and is not 1."""
    result: list[float] = []
    for reward, value in zip(batch.rewards, batch.parts[part], strict=True):
        result.append(float(reward) - (penalty if not np.isnan(value) and value != 1 else 0.0))
    return np.array(result)


def _weights(batch: ExactBatch, weight: Callable[[list[int]], float]) -> Floats:
    result = np.zeros(len(batch.trained))
    for positions in batch.row_positions:
        if positions:
            result[positions] = weight(positions)
    return result


def _num_rows(batch: ExactBatch) -> int:
    return sum(bool(positions) for positions in batch.row_positions)


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
"""Besides the batch they take all rewards of the run so far, including this batch."""
