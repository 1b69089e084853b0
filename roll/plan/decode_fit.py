"""Fit of a generator's speed: seconds of a response from its tokens, the running sequences and the prefills.

    seconds = request + tokens * (step + sequence * running) + prefill * context tokens prefilled meanwhile

`running` is the mean number of sequences on the generator, weighted by decode steps. The journal does not record which
generator had a request, so that the numbers of all generators are divided evenly.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from roll.plan.observations import TurnSample

_ROUNDS = 12
_HUBER = 1.5
"""Residuals above this number of robust standard deviations count less."""
_AT_ONCE = 0.1
"""Part of a median duration within which requests count as sent at once."""
_MOST = 4000
"""Most responses in a fit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeFit:
    """Fixed seconds per decode step, per sequence and step, per context token, and per request."""

    values: tuple[float, ...]
    errors: tuple[float, ...]
    """Standard errors."""
    count: int


def fit_decode(turns: Sequence[TurnSample], *, num_generators: int, slots: int) -> DecodeFit:
    """The fit; never negative. Interrupted responses count as running, but not as observations."""
    starts = _slot_starts(turns, num_generators * slots)
    order = sorted(range(len(turns)), key=lambda index: starts[index])
    shortest_s = float(np.median([turns[index].end - starts[index] for index in order])) / 20 if order else 0.0
    used = [index for index in order if not turns[index].interrupted and turns[index].end - starts[index] > shortest_s]
    used = used[:: -(-len(used) // _MOST)] if used else []
    if not used:
        return DecodeFit(values=(0.0,) * 4, errors=(0.0,) * 4, count=0)
    seconds = np.array([turns[index].end - starts[index] for index in used])
    tokens = np.array([turns[index].num_tokens for index in used], float)
    context = _prefilled(turns, starts, order, used) / num_generators
    values = np.array([float(np.median(seconds / np.maximum(tokens, 1))), 0.0, 0.0, 0.0])
    running = _Running([(starts[index], turns[index].end) for index in order], num_generators)
    spans = [(starts[index], turns[index].end) for index in used]
    errors = np.zeros(4)
    for _ in range(3):
        mean = running.mean(spans, values[0], values[1])
        columns = np.column_stack([tokens, tokens * mean, context, np.ones(len(used))])
        values, errors = _robust(columns, seconds)
    return DecodeFit(values=tuple(map(float, values)), errors=tuple(map(float, errors)), count=len(used))


def _slot_starts(turns: Sequence[TurnSample], capacity: int) -> list[float]:
    """When each response got a slot: requests beyond the capacity wait in the order they were sent."""
    starts, ends = [turn.start for turn in turns], list[float]()
    at_once_s = max(0.001, _AT_ONCE * float(np.median([turn.end - turn.start for turn in turns] or [0.0])))
    for index in sorted(range(len(turns)), key=lambda index: (starts[index] // at_once_s, turns[index].order)):
        while ends and ends[0] <= starts[index]:
            heapq.heappop(ends)
        if len(ends) >= capacity:
            starts[index] = min(heapq.heappop(ends), turns[index].end)
        heapq.heappush(ends, turns[index].end)
    return starts


def _prefilled(
    turns: Sequence[TurnSample], starts: Sequence[float], order: Sequence[int], used: Sequence[int]
) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Context tokens of all responses that start during each one, itself included."""
    times = [starts[index] for index in order]
    total = np.concatenate([[0.0], np.cumsum([turns[index].context for index in order])])
    first = [np.searchsorted(times, starts[index], side="left") for index in used]
    last = [bisect_right(times, turns[index].end) for index in used]
    return total[last] - total[first]


class _Running:
    """Number of running sequences per generator over time."""

    def __init__(self, spans: Sequence[tuple[float, float]], num_generators: int) -> None:
        events = sorted([(start, 1) for start, _ in spans] + [(end, -1) for _, end in spans])
        self._times = np.array([time for time, _ in events])
        self._counts = np.maximum(1.0, np.cumsum([change for _, change in events]) / num_generators)

    def mean(
        self, spans: Sequence[tuple[float, float]], step_s: float, sequence_s: float
    ) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        """Means over spans, weighted by decode steps: there are more where fewer sequences run."""
        rates = 1.0 / np.maximum(1e-12, step_s + sequence_s * self._counts)
        lengths = np.diff(self._times, append=self._times[-1])
        weights = np.concatenate([[0.0], np.cumsum(rates * lengths)])
        sums = np.concatenate([[0.0], np.cumsum(rates * lengths * self._counts)])
        first = np.searchsorted(self._times, [start for start, _ in spans], side="left")
        last = np.searchsorted(self._times, [end for _, end in spans], side="left")
        total = weights[last] - weights[first]
        return np.where(total > 0, (sums[last] - sums[first]) / np.where(total > 0, total, 1.0), 1.0)


def _robust(
    columns: np.ndarray[tuple[int, int], np.dtype[np.float64]], seconds: np.ndarray[tuple[int], np.dtype[np.float64]]
) -> tuple[np.ndarray[tuple[int], np.dtype[np.float64]], np.ndarray[tuple[int], np.dtype[np.float64]]]:
    """Nonnegative least squares on relative residuals, in which outliers count less; with standard errors."""
    relative = 1.0 / np.maximum(seconds, 1e-6)
    weights = relative.copy()
    values = np.zeros(columns.shape[1])
    for _ in range(_ROUNDS):
        values = nonnegative(columns * weights[:, None], seconds * weights)
        residuals = np.abs(columns @ values - seconds) * relative
        scale = max(1e-6, 1.4826 * float(np.median(residuals)))
        weights = relative * np.sqrt(np.minimum(1.0, _HUBER * scale / np.maximum(residuals, 1e-12)))
    free = values > 0
    errors = np.zeros_like(values)
    scaled = columns[:, free] * weights[:, None]
    variance = float(np.sum(((columns @ values - seconds) * weights) ** 2)) / max(1, len(seconds) - int(free.sum()))
    errors[free] = np.sqrt(np.maximum(0.0, np.diag(np.linalg.pinv(scaled.T @ scaled)) * variance))
    return values, errors


def nonnegative(
    columns: np.ndarray[tuple[int, int], np.dtype[np.float64]], target: np.ndarray[tuple[int], np.dtype[np.float64]]
) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Least squares with coefficients of at least 0: the best over all subsets of the few columns."""
    best, least = np.zeros(columns.shape[1]), float(np.sum(target**2))
    scale = np.maximum(1e-300, np.sqrt(np.sum(columns**2, axis=0)))
    for subset in range(1, 2 ** columns.shape[1]):
        chosen = [index for index in range(columns.shape[1]) if subset >> index & 1]
        scaled: np.ndarray[tuple[int, int], np.dtype[np.float64]] = columns[:, chosen] / scale[chosen]
        solution = np.asarray(np.linalg.lstsq(scaled, target, rcond=1e-9)[0], np.float64) / scale[chosen]
        if bool(np.any(solution < 0)):
            continue
        rest = float(np.sum((columns[:, chosen] @ solution - target) ** 2))
        if rest < least * (1 - 1e-9):
            best, least = np.zeros(columns.shape[1]), rest
            best[chosen] = solution
    return best
