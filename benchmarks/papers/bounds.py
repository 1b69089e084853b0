"""Bounds on the time of generation with a queue, and the split of workers that follows from them.

Derivation: a queue gives the next sample to the first free slot. Until the last sample of Q starts, all K slots are
busy, and they have done at most the work of the others. So Q samples of mean time mu end after at most
(Q mu - L) / K + L, where L is the longest. With asynchronous ratio alpha, (1 + alpha) batches share one such tail.
"""

from __future__ import annotations

from collections.abc import Sequence


def makespan_bound_s(durations_s: Sequence[float], slots: int) -> float:
    """Latest end of these samples with a queue over a number of slots."""
    longest_s = max(durations_s)
    return (sum(durations_s) - longest_s) / slots + longest_s


def sample_bound_s(mean_s: float, longest_s: float, num_samples: int, *, slots: int, alpha: float = 0.0) -> float:
    """Most seconds per sample of a batch: the mean load, and a tail that shrinks with the asynchronous ratio."""
    return mean_s / slots + (1 - 1 / slots) * longest_s / ((alpha + 1) * num_samples)


def step_bound_s(generation_s: float, training_s: float, longest_s: float, *, alpha: float) -> float:
    """Most seconds per asynchronous step at the best split.

    `generation_s` and `training_s` are the times of one batch on all workers, without a tail.
    """
    return generation_s + training_s + longest_s / (alpha + 1)


def best_training_share(generation_s: float, training_s: float, longest_s: float, *, alpha: float) -> float:
    """Share of the workers that should train: both sides then need the same time for a batch.

    On a share x of the workers training takes training_s / x, and on the others generation takes at most
    generation_s / (1 - x) + longest_s / (alpha + 1). The bound is loosened to (generation_s + longest_s / (alpha + 1))
    / (1 - x), so that both are equal in closed form.
    """
    return training_s / (step_bound_s(generation_s, training_s, longest_s, alpha=alpha))
