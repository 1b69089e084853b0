"""Laws of advantages, aggregations and shapings: what sees the whole batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from roll.algorithms.running_stats import Moments
from roll.conformance import oracle_advantages, oracle_rewards
from roll.conformance.batches import Case, case
from roll.conformance.exact import Bools, Floats, exact_batch, numbers
from roll.conformance.subject import Law, Measure, Measured, Subject, difference
from roll.conformance.variations import rescaled

_FACTOR, _SHIFT = 4.0, 8.0
_CENTRED = frozenset({"group_normalised", "leave_one_out", "group_centred_batch_scaled"})
"""Advantages among siblings: exactly 0 where their rewards are equal."""


def measure(what: str, function: Callable[..., Any], arguments: dict[str, Any]) -> Measure:
    """The number of each token, of the whole batch."""

    def measured(given: Case, rows: list[int] | None) -> Measured:
        assert rows is None, "only the whole batch means anything"
        return Measured(rows={what: numbers(function(given.batch, **arguments))})

    return measured


def shaping_measure(function: Callable[..., Any], arguments: dict[str, Any]) -> Measure:
    """The reward of each token's trajectory."""

    def measured(given: Case, rows: list[int] | None) -> Measured:
        assert rows is None, "only the whole batch means anything"
        batch = given.batch
        shaped: torch.Tensor = function(batch, _moments(given), **arguments)
        lengths = torch.tensor(batch.lengths)
        owners = torch.repeat_interleave(batch.trajectory, lengths)
        return Measured(rows={"reward": numbers(shaped[owners])})

    return measured


def one_number_a_token(function: Callable[..., Any], arguments: dict[str, Any], given: Case) -> str:
    """Single precision, one number a token."""
    return _shape(function(given.batch, **arguments), given.batch.num_tokens, "token")


def one_number_a_trajectory(function: Callable[..., Any], arguments: dict[str, Any], given: Case) -> str:
    """Single precision, one number a trajectory."""
    return _shape(function(given.batch, _moments(given), **arguments), len(given.batch.rewards), "trajectory")


def advantage_agrees(subject: Subject, given: Case) -> str:
    """An advantage of ours is its formula."""
    return _agrees(subject, given, "advantage", oracle_advantages.ADVANTAGES)


def weight_agrees(subject: Subject, given: Case) -> str:
    """An aggregation of ours is its formula."""
    return _agrees(subject, given, "weight", oracle_rewards.AGGREGATIONS)


def shaping_agrees(function: Callable[..., Any]) -> Law:
    """A shaping of ours is its formula, trajectory by trajectory."""

    def law(subject: Subject, given: Case) -> str:
        assert subject.like is not None
        found = numbers(function(given.batch, _moments(given), **subject.arguments))
        past = np.concatenate([numbers(_past(given)), numbers(given.batch.rewards)])
        expected = oracle_rewards.SHAPINGS[subject.like](exact_batch(given.batch), past, **subject.arguments)
        everyone = np.ones(len(found), np.bool_)
        text = difference(Measured(rows={"reward": found}), Measured(rows={"reward": expected}), everyone)
        return f"differs from the formula of {subject.like}: {text}".replace("tokens", "rewards") if text else ""

    return law


def equal_rewards(subject: Subject, given: Case) -> str:
    """A group whose rewards are all equal, and so a group of one, learns nothing at all."""
    if subject.like not in _CENTRED:
        return ""
    batch = exact_batch(given.batch)
    row = subject.whole(given).rows["advantage"]
    for owner, siblings in enumerate(batch.siblings):
        rewards = batch.rewards[siblings]
        found = row[batch.places[owner]]
        if np.all(rewards == rewards[0]) and np.any(found != 0):
            return f"gives {found[found != 0][0]:.3g} in a group of {len(siblings)} with equal rewards, instead of 0"
    return ""


def scale(subject: Subject, given: Case) -> str:
    """Rewards four times as large give the same advantages or four times as large ones."""
    factor = _growth(subject)
    if factor is None:
        return ""
    changed = rescaled(given, factor=_FACTOR)
    return _after(subject, given, changed, factor, _Change(name="four times the rewards", tolerance=1e-2))


def shift(subject: Subject, given: Case) -> str:
    """A constant added to all rewards changes nothing where there is a baseline."""
    if not _baselined(subject):
        return ""
    changed = rescaled(given, factor=1.0, shift=_SHIFT)
    return _after(subject, given, changed, 1.0, _Change(name="8 added to all rewards", tolerance=1e-4))


def returns_less_values(subject: Subject, given: Case) -> str:
    """GAE with lam 1 and without bootstrap is the return less the value."""
    if subject.like != "gae" or subject.arguments.get("lam", 1.0) != 1.0 or subject.arguments.get("bootstrap", False):
        return ""
    batch = exact_batch(given.batch)
    assert batch.values is not None
    gamma = subject.arguments.get("gamma", 1.0)
    returns = oracle_advantages.discounted(batch, gamma=gamma, per="token")
    expected = Measured(rows={"advantage": returns - np.where(batch.trained, batch.values, 0.0)})
    text = difference(subject.whole(given), expected, batch.trained)
    return f"is not the return less the value although lam is 1: {text}" if text else ""


def only_trained(subject: Subject, given: Case) -> str:
    """Weights carry the mask: exactly 0 on tokens that are not trained on, never negative elsewhere."""
    trained, row = given.batch.trained.numpy(), subject.whole(given).rows["weight"]
    if np.any(row[~trained] != 0):
        return f"weighs untrained tokens: {row[~trained][row[~trained] != 0][0]:.3g} instead of 0"
    return "gives a trained token a negative weight" if np.any(row[trained] < 0) else ""


def nothing_trained(subject: Subject, given: Case) -> str:
    """Where nothing is trained on, all weights are 0, not NaN."""
    empty = replace(given, batch=replace(given.batch, trained=torch.zeros_like(given.batch.trained)))
    row = subject.measure(empty, None).rows["weight"]
    return f"gives {row[row != 0][0]} where nothing is trained on, instead of 0" if np.any(row != 0) else ""


def total_weight(subject: Subject, given: Case) -> str:
    """Means weigh 1 in all; sums weigh as many tokens as a row has on average, over the constant if there is one."""
    batch = exact_batch(given.batch)
    rows = [len(places) for places in batch.row_places if places]
    if not rows:
        return ""
    length = sum(rows) / len(rows)
    expected = {"sequence_mean_token_sum": length, "constant": length / subject.arguments.get("tokens", 1)}
    total, wanted = float(subject.whole(given).rows["weight"].sum()), expected.get(subject.like or "", 1.0)
    return f"weighs {total:.6g} in all instead of {wanted:.6g}" if abs(total - wanted) > 1e-5 * wanted else ""


OF_ADVANTAGES: tuple[Law, ...] = (advantage_agrees, equal_rewards, scale, shift, returns_less_values)
OF_AGGREGATIONS: tuple[Law, ...] = (only_trained, nothing_trained)
OF_KNOWN_AGGREGATIONS: tuple[Law, ...] = (weight_agrees, total_weight)


def _agrees(subject: Subject, given: Case, what: str, known: Mapping[str, Callable[..., Floats]]) -> str:
    assert subject.like is not None
    batch = exact_batch(given.batch)
    expected = Measured(rows={what: known[subject.like](batch, **subject.arguments)})
    text = difference(subject.whole(given), expected, batch.trained)
    return f"differs from the formula of {subject.like}: {text}" if text else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Change:
    name: str
    tolerance: float
    """Of the sum of absolute advantages; `eps` is not scaled with rewards, so that deviations near it may show."""


def _after(subject: Subject, given: Case, changed: Case, factor: float, change: _Change) -> str:
    trained: Bools = given.batch.trained.numpy()
    before = subject.whole(given).rows["advantage"][trained] * factor
    after = subject.measure(changed, None).rows["advantage"][trained]
    sound = np.isfinite(before)  # that all numbers are finite is a law of its own
    error, size = float(np.abs(after - before)[sound].sum()), float(np.abs(before)[sound].sum())
    if error <= change.tolerance * size + 1e-9:
        return ""
    wanted = "the same advantages" if factor == 1.0 else f"advantages times {factor:g}"
    return f"does not give {wanted} for {change.name}: off by {error / max(size, 1e-30):.2g} of their size"


def _growth(subject: Subject) -> float | None:
    """What becomes of advantages when rewards grow by `_FACTOR`; None if nothing can be said."""
    if subject.like in ("leave_one_out", "batch_centred", "discounted"):
        return _FACTOR
    if subject.like in ("group_centred_batch_scaled", "batch_normalised", "distilled"):
        return 1.0
    if subject.like in ("group_normalised", "gigpo"):
        return 1.0 if subject.arguments.get("scale", True) else _FACTOR
    return None


def _baselined(subject: Subject) -> bool:
    if subject.like == "discounted":
        return subject.arguments.get("baseline", "none") != "none" and subject.arguments.get("gamma", 1.0) == 1.0
    return subject.like in _CENTRED | {"batch_centred", "batch_normalised", "distilled"}


def _shape(found: Any, size: int, unit: str) -> str:
    if not isinstance(found, torch.Tensor) or found.shape != (size,) or found.dtype != torch.float32:
        got = f"{found.dtype} {tuple(found.shape)}" if isinstance(found, torch.Tensor) else type(found).__name__
        return f"must return one number a {unit}: float32, shape ({size},) (got {got})"
    return ""


def _past(given: Case) -> torch.Tensor:
    """Rewards of an earlier batch."""
    return case(given.seed + 1000).batch.rewards


def _moments(given: Case) -> Moments:
    """Of an earlier batch and this one."""
    return Moments().after(_past(given)).after(given.batch.rewards)
