"""Laws of advantages, aggregations and shapings, which see the whole batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from roll.algorithms.running_stats import RunningStats
from roll.conformance import oracle_advantages, oracle_rewards
from roll.conformance.batches import Case
from roll.conformance.batches import case as make_case
from roll.conformance.exact import Bools, Floats, exact_batch, numbers
from roll.conformance.subject import Law, Measure, Measurement, Subject, difference
from roll.conformance.variations import rescale

_FACTOR, _SHIFT = 4.0, 8.0
_CENTRED = frozenset({"group_normalised", "leave_one_out", "group_centred_batch_scaled"})
"""Advantages relative to siblings: exactly 0 where their rewards are equal."""


def measure(what: str, function: Callable[..., Any], arguments: dict[str, Any]) -> Measure:
    """The value of each token, over the whole batch."""

    def measure_case(case: Case, rows: list[int] | None) -> Measurement:
        assert rows is None, "results are defined for whole batches only"
        return Measurement(rows={what: numbers(function(case.batch, **arguments))})

    return measure_case


def shaping_measure(function: Callable[..., Any], arguments: dict[str, Any]) -> Measure:
    """The reward of each token's trajectory."""

    def measure_case(case: Case, rows: list[int] | None) -> Measurement:
        assert rows is None, "results are defined for whole batches only"
        batch = case.batch
        shaped: torch.Tensor = function(batch, _stats(case), **arguments)
        lengths = torch.tensor(batch.lengths)
        owners = torch.repeat_interleave(batch.trajectory, lengths)
        return Measurement(rows={"reward": numbers(shaped[owners])})

    return measure_case


def one_value_per_token(function: Callable[..., Any], arguments: dict[str, Any], case: Case) -> str:
    """Single precision, one value per token."""
    return _shape(function(case.batch, **arguments), case.batch.num_tokens, "token")


def one_value_per_trajectory(function: Callable[..., Any], arguments: dict[str, Any], case: Case) -> str:
    """Single precision, one value per trajectory."""
    return _shape(function(case.batch, _stats(case), **arguments), len(case.batch.rewards), "trajectory")


def advantage_agrees(subject: Subject, case: Case) -> str:
    """An advantage equals its formula."""
    return _agrees(subject, case, "advantage", oracle_advantages.ADVANTAGES)


def weight_agrees(subject: Subject, case: Case) -> str:
    """An aggregation equals its formula."""
    return _agrees(subject, case, "weight", oracle_rewards.AGGREGATIONS)


def shaping_agrees(function: Callable[..., Any]) -> Law:
    """A shaping equals its formula for every trajectory."""

    def law(subject: Subject, case: Case) -> str:
        assert subject.like is not None
        result = numbers(function(case.batch, _stats(case), **subject.arguments))
        past = np.concatenate([numbers(_past(case)), numbers(case.batch.rewards)])
        expected = oracle_rewards.SHAPINGS[subject.like](exact_batch(case.batch), past, **subject.arguments)
        everywhere = np.ones(len(result), np.bool_)
        text = difference(Measurement(rows={"reward": result}), Measurement(rows={"reward": expected}), everywhere)
        return f"differs from the formula of {subject.like}: {text}".replace("tokens", "rewards") if text else ""

    return law


def equal_rewards(subject: Subject, case: Case) -> str:
    """A group with equal rewards, hence also a group of one, has advantages of exactly 0."""
    if subject.like not in _CENTRED:
        return ""
    batch = exact_batch(case.batch)
    row = subject.whole(case).rows["advantage"]
    for owner, siblings in enumerate(batch.siblings):
        rewards = batch.rewards[siblings]
        values = row[batch.positions[owner]]
        if np.all(rewards == rewards[0]) and np.any(values != 0):
            return f"returns {values[values != 0][0]:.3g} in a group of {len(siblings)} with equal rewards, not 0"
    return ""


def scale(subject: Subject, case: Case) -> str:
    """Rewards four times as large give the same advantages, or advantages four times as large."""
    factor = _growth(subject)
    if factor is None:
        return ""
    changed = rescale(case, factor=_FACTOR)
    return _after(subject, case, changed, factor, _Change(name="four times the rewards", tolerance=1e-2))


def shift(subject: Subject, case: Case) -> str:
    """A constant added to all rewards changes nothing if there is a baseline."""
    if not _has_baseline(subject):
        return ""
    changed = rescale(case, factor=1.0, shift=_SHIFT)
    return _after(subject, case, changed, 1.0, _Change(name="8 added to all rewards", tolerance=1e-4))


def returns_less_values(subject: Subject, case: Case) -> str:
    """GAE with lam 1 and without bootstrap is the return minus the value."""
    if subject.like != "gae" or subject.arguments.get("lam", 1.0) != 1.0 or subject.arguments.get("bootstrap", False):
        return ""
    batch = exact_batch(case.batch)
    assert batch.values is not None
    gamma = subject.arguments.get("gamma", 1.0)
    returns = oracle_advantages.discounted(batch, gamma=gamma, per="token")
    expected = Measurement(rows={"advantage": returns - np.where(batch.trained, batch.values, 0.0)})
    text = difference(subject.whole(case), expected, batch.trained)
    return f"is not the return minus the value although lam is 1: {text}" if text else ""


def only_trained(subject: Subject, case: Case) -> str:
    """Weights include the mask: exactly 0 on untrained tokens, never negative elsewhere."""
    trained, row = case.batch.trained.numpy(), subject.whole(case).rows["weight"]
    if np.any(row[~trained] != 0):
        return f"weighs untrained tokens: {row[~trained][row[~trained] != 0][0]:.3g} instead of 0"
    return "gives a trained token a negative weight" if np.any(row[trained] < 0) else ""


def nothing_trained(subject: Subject, case: Case) -> str:
    """Without trained tokens all weights are 0, not NaN."""
    empty = replace(case, batch=replace(case.batch, trained=torch.zeros_like(case.batch.trained)))
    row = subject.measure(empty, None).rows["weight"]
    return f"returns {row[row != 0][0]} where no token is trained, instead of 0" if np.any(row != 0) else ""


def total_weight(subject: Subject, case: Case) -> str:
    """Weights of means sum to 1; those of sums to the mean row length, divided by the constant if there is one."""
    batch = exact_batch(case.batch)
    rows = [len(positions) for positions in batch.row_positions if positions]
    if not rows:
        return ""
    length = sum(rows) / len(rows)
    expected = {"sequence_mean_token_sum": length, "constant": length / subject.arguments.get("tokens", 1)}
    total, correct = float(subject.whole(case).rows["weight"].sum()), expected.get(subject.like or "", 1.0)
    return f"weights sum to {total:.6g} instead of {correct:.6g}" if abs(total - correct) > 1e-5 * correct else ""


OF_ADVANTAGES: tuple[Law, ...] = (advantage_agrees, equal_rewards, scale, shift, returns_less_values)
OF_AGGREGATIONS: tuple[Law, ...] = (only_trained, nothing_trained)
OF_KNOWN_AGGREGATIONS: tuple[Law, ...] = (weight_agrees, total_weight)


def _agrees(subject: Subject, case: Case, what: str, known: Mapping[str, Callable[..., Floats]]) -> str:
    assert subject.like is not None
    batch = exact_batch(case.batch)
    expected = Measurement(rows={what: known[subject.like](batch, **subject.arguments)})
    text = difference(subject.whole(case), expected, batch.trained)
    return f"differs from the formula of {subject.like}: {text}" if text else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Change:
    name: str
    tolerance: float
    """Relative to the sum of absolute advantages; `eps` is not scaled with rewards, so small deviations change."""


def _after(subject: Subject, case: Case, changed: Case, factor: float, change: _Change) -> str:
    trained: Bools = case.batch.trained.numpy()
    before = subject.whole(case).rows["advantage"][trained] * factor
    after = subject.measure(changed, None).rows["advantage"][trained]
    finite = np.isfinite(before)  # a separate law checks that all values are finite
    error, size = float(np.abs(after - before)[finite].sum()), float(np.abs(before)[finite].sum())
    if error <= change.tolerance * size + 1e-9:
        return ""
    required = "the same advantages" if factor == 1.0 else f"advantages times {factor:g}"
    return f"does not return {required} for {change.name}: off by {error / max(size, 1e-30):.2g} of their size"


def _growth(subject: Subject) -> float | None:
    """The factor by which advantages grow when rewards grow by `_FACTOR`; None if it is not defined."""
    if subject.like in ("leave_one_out", "batch_centred", "discounted"):
        return _FACTOR
    if subject.like in ("group_centred_batch_scaled", "batch_normalised", "distilled"):
        return 1.0
    if subject.like in ("group_normalised", "gigpo"):
        return 1.0 if subject.arguments.get("scale", True) else _FACTOR
    return None


def _has_baseline(subject: Subject) -> bool:
    if subject.like == "discounted":
        return subject.arguments.get("baseline", "none") != "none" and subject.arguments.get("gamma", 1.0) == 1.0
    return subject.like in _CENTRED | {"batch_centred", "batch_normalised", "distilled"}


def _shape(result: Any, size: int, unit: str) -> str:
    if not isinstance(result, torch.Tensor) or result.shape != (size,) or result.dtype != torch.float32:
        got = f"{result.dtype} {tuple(result.shape)}" if isinstance(result, torch.Tensor) else type(result).__name__
        return f"must return one value per {unit}: float32, shape ({size},) (got {got})"
    return ""


def _past(case: Case) -> torch.Tensor:
    """Rewards of an earlier batch."""
    return make_case(case.seed + 1000).batch.rewards


def _stats(case: Case) -> RunningStats:
    """Statistics of an earlier batch and this one."""
    return RunningStats().after(_past(case)).after(case.batch.rewards)
