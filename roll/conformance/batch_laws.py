"""Laws of advantages, aggregations and shapings, which see the whole batch."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch

from roll.algorithms.shaping import RunningStats
from roll.conformance import oracle, oracle_batches
from roll.conformance.batches import Case
from roll.conformance.batches import case as make_case
from roll.conformance.exact import Bools, exact_batch, numbers
from roll.conformance.subject import Law, Measurement, Subject, difference
from roll.conformance.variations import rescale

_FACTOR, _SHIFT = 4.0, 8.0
_CENTRED = frozenset({"group_normalised", "leave_one_out", "group_centred_batch_scaled"})
"""Advantages relative to siblings: exactly 0 where their rewards are equal."""


def measure(name: str, subject: Subject, case: Case, rows: list[int] | None) -> Measurement:
    """The value of each token, over the whole batch; `name` is what the function computes."""
    assert rows is None, "results are defined for whole batches only"
    return Measurement(rows={name: numbers(subject.function(case.batch, **subject.arguments))})


def shaping_measure(subject: Subject, case: Case, rows: list[int] | None) -> Measurement:
    """The reward of each token's trajectory."""
    assert rows is None, "results are defined for whole batches only"
    owners = torch.repeat_interleave(case.batch.trajectory, torch.tensor(case.batch.lengths))
    return Measurement(rows={"reward": numbers(_shape_rewards(subject, case)[owners])})


def one_value_per_token(subject: Subject, case: Case) -> str:
    """Single precision, one value per token."""
    return _form_fault(subject.function(case.batch, **subject.arguments), case.batch.num_tokens, "token")


def one_value_per_trajectory(subject: Subject, case: Case) -> str:
    """Single precision, one value per trajectory."""
    return _form_fault(_shape_rewards(subject, case), len(case.batch.rewards), "trajectory")


def agrees(subject: Subject, case: Case) -> str:
    """An advantage or an aggregation equals its formula."""
    (name,) = subject.whole(case).rows
    formula = {"advantage": oracle.ADVANTAGES, "weight": oracle.AGGREGATIONS}[name][subject.like]
    return subject.formula_fault(case, Measurement(rows={name: formula(exact_batch(case.batch), **subject.arguments)}))


def shaping_agrees(subject: Subject, case: Case) -> str:
    """A shaping equals its formula for every trajectory."""
    result = numbers(_shape_rewards(subject, case))
    past = np.concatenate([numbers(_past(case)), numbers(case.batch.rewards)])
    expected = oracle.SHAPINGS[subject.like](exact_batch(case.batch), past, **subject.arguments)
    everywhere = np.ones(len(result), np.bool_)
    text = difference(Measurement(rows={"reward": result}), Measurement(rows={"reward": expected}), everywhere)
    return f"differs from the formula of {subject.like}: {text}".replace("tokens", "rewards") if text else ""


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
    return _compare(subject, case, rescale(case, factor=_FACTOR), factor, "four times the rewards", 1e-2)


def shift(subject: Subject, case: Case) -> str:
    """A constant added to all rewards changes nothing if there is a baseline."""
    if not _has_baseline(subject):
        return ""
    changed = rescale(case, factor=1.0, shift=_SHIFT)
    return _compare(subject, case, changed, 1.0, "8 added to all rewards", 1e-4)


def returns_less_values(subject: Subject, case: Case) -> str:
    """GAE with lam 1 and without bootstrap is the return minus the value."""
    if subject.like != "gae" or subject.arguments.get("lam", 1.0) != 1.0 or subject.arguments.get("bootstrap", False):
        return ""
    batch = exact_batch(case.batch)
    assert batch.values is not None
    gamma = subject.arguments.get("gamma", 1.0)
    returns = oracle_batches.discounted(batch, gamma=gamma, per="token")
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
    row = subject.measure(empty).rows["weight"]
    return f"returns {row[row != 0][0]} where no token is trained, instead of 0" if np.any(row != 0) else ""


def total_weight(subject: Subject, case: Case) -> str:
    """Weights of means sum to 1; those of sums to the mean row length, divided by the constant if there is one."""
    batch = exact_batch(case.batch)
    rows = [len(positions) for positions in batch.row_positions if positions]
    if not rows:
        return ""
    length = sum(rows) / len(rows)
    expected = {"sequence_mean_token_sum": length, "constant": length / subject.arguments.get("tokens", 1)}
    total, correct = float(subject.whole(case).rows["weight"].sum()), expected.get(subject.like, 1.0)
    return f"weights sum to {total:.6g} instead of {correct:.6g}" if abs(total - correct) > 1e-5 * correct else ""


OF_ADVANTAGES: tuple[Law, ...] = (agrees, equal_rewards, scale, shift, returns_less_values)
OF_AGGREGATIONS: tuple[Law, ...] = (only_trained, nothing_trained)
OF_KNOWN_AGGREGATIONS: tuple[Law, ...] = (agrees, total_weight)


def _compare(subject: Subject, case: Case, changed: Case, factor: float, change: str, tolerance: float) -> str:
    """Whether the advantages of the changed case are `factor` times those before.

    `tolerance` is relative to their sum of absolute values: `eps` is not scaled with rewards, so small ones change.
    """
    trained: Bools = case.batch.trained.numpy()
    before = subject.whole(case).rows["advantage"][trained] * factor
    after = subject.measure(changed).rows["advantage"][trained]
    finite = np.isfinite(before)  # a separate law checks that all values are finite
    error, size = float(np.abs(after - before)[finite].sum()), float(np.abs(before)[finite].sum())
    if error <= tolerance * size + 1e-9:
        return ""
    required = "the same advantages" if factor == 1.0 else f"advantages times {factor:g}"
    return f"does not return {required} for {change}: off by {error / max(size, 1e-30):.2g} of their size"


def _growth(subject: Subject) -> float | None:
    """The factor by which advantages grow when rewards grow by `_FACTOR`; None if it is not defined."""
    if subject.like in ("leave_one_out", "batch_centred", "discounted"):
        return _FACTOR
    if subject.like in ("group_centred_batch_scaled", "batch_normalised", "distilled"):
        return 1.0
    if subject.like in ("group_normalised", "group_normalised_process", "gigpo"):
        return 1.0 if subject.arguments.get("scale", True) else _FACTOR
    return None


def _has_baseline(subject: Subject) -> bool:
    if subject.like == "discounted":
        return subject.arguments.get("baseline", "none") != "none" and subject.arguments.get("gamma", 1.0) == 1.0
    return subject.like in _CENTRED | {"group_normalised_process", "batch_centred", "batch_normalised", "distilled"}


def _form_fault(result: Any, size: int, unit: str) -> str:
    if not isinstance(result, torch.Tensor) or result.shape != (size,) or result.dtype != torch.float32:
        got = f"{result.dtype} {tuple(result.shape)}" if isinstance(result, torch.Tensor) else type(result).__name__
        return f"must return one value per {unit}: float32, shape ({size},) (got {got})"
    return ""


def _shape_rewards(subject: Subject, case: Case) -> torch.Tensor:
    """[trajectories]: the shaped rewards, with statistics of an earlier batch and this one."""
    stats = RunningStats().after(_past(case)).after(case.batch.rewards)
    return subject.function(case.batch, stats, **subject.arguments)


def _past(case: Case) -> torch.Tensor:
    """Rewards of an earlier batch."""
    return make_case(case.seed + 1000).batch.rewards
