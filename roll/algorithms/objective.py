"""The scalar that an optimizer step minimises: loss, correction, KL and entropy combined."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any, cast

import torch

from roll.algorithms.recipe import Objective
from roll.algorithms.user_code import call, check_shape, location_of
from roll.errors import ConfigError
from roll.registry import CORRECTIONS, ESTIMATORS, LOSSES, Table
from roll.types import Spec, Tokens

_INDICES = frozenset({"trained", "row", "trajectory", "turn"})
"""Rows that locate tokens; all others hold values."""


def evaluate(
    tokens: Tokens, weights: torch.Tensor, objective: Objective
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """The objective summed over these tokens, and rows to average over the trained ones and log by name.

    `weights` combine mask and denominator, so the sums over the parts of a split batch add up to that of the whole.
    """
    tokens = clean(tokens)
    row, metrics = _rows(objective.loss, call(LOSSES, objective.loss, tokens), tokens)
    if objective.correction is not None:
        factor = correction_factors(tokens, objective.correction)
        row, metrics = row * factor, {**metrics, "correction": factor}
    if objective.kl is not None:
        kl = kl_row(tokens.logprobs, tokens.ref_logprobs, tokens.trained, objective.kl)
        row, metrics = row + objective.kl_coefficient * kl, {**metrics, "kl": kl.detach()}
    if objective.entropy:
        assert tokens.entropies is not None, "the engine measures entropies whenever the objective uses them"
        row = row - objective.entropy * tokens.entropies
    total = weighted_sum(row, weights)
    _check_gradient(total, tokens, objective.loss)
    return total, metrics


def clean(tokens: Tokens) -> Tokens:
    """The same tokens with 0 in every row at untrained tokens, so that formulas never meet leftovers of an engine."""
    rows = {field.name: getattr(tokens, field.name) for field in fields(tokens) if field.name not in _INDICES}
    return replace(
        tokens, **{name: torch.where(tokens.trained, row, 0.0) for name, row in rows.items() if row is not None}
    )


def correction_factors(tokens: Tokens, correction: Spec) -> torch.Tensor:
    """[tokens] factors that correct for a sampler that differs from the policy; they carry no gradient."""
    return _row(CORRECTIONS, correction, call(CORRECTIONS, correction, tokens), tokens).detach()


def kl_row(
    logprobs: torch.Tensor, ref_logprobs: torch.Tensor | None, trained: torch.Tensor, estimator: Spec
) -> torch.Tensor:
    """[tokens] estimates of the divergence from the reference; 0 on untrained tokens."""
    assert ref_logprobs is not None, "a recipe with KL needs a reference, which scores the batch before the update"
    difference = torch.where(trained, logprobs - ref_logprobs, 0.0)
    estimates: torch.Tensor = call(ESTIMATORS, estimator, difference)
    return estimates


def weighted_sum(row: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """The sum of `row` times `weights`; where a weight is zero, even a NaN in `row` is ignored."""
    return torch.where(weights != 0, row, torch.zeros_like(row)).mul(weights).sum()


def _check_gradient(total: torch.Tensor, tokens: Tokens, loss: Spec) -> None:
    """Refuse a loss without a gradient where the tokens have one."""
    needed = any(row is not None and row.requires_grad for row in (tokens.logprobs, tokens.values))
    if needed and not total.requires_grad:
        raise ConfigError(
            f"loss {loss.name!r}: its result has no gradient; compute it from the tokens' logprobs, or from their "
            f"values for a critic, without detach{location_of(LOSSES, loss)}"
        )


def _rows(loss: Spec, result: Any, tokens: Tokens) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    parts = cast(tuple[Any, ...], result) if isinstance(result, tuple) else ()
    if len(parts) != 2 or not isinstance(parts[1], dict):
        raise ConfigError(
            f"loss {loss.name!r}: must return the loss of each token and a dictionary of metrics "
            f"(got {type(cast(object, result)).__name__}); return (loss, {{}}){location_of(LOSSES, loss)}"
        )
    metrics = cast(dict[str, Any], parts[1])
    row = _row(LOSSES, loss, parts[0], tokens)
    for name, metric in metrics.items():
        if not isinstance(metric, torch.Tensor) or metric.shape != tokens.trained.shape:
            got = f"shape {tuple(metric.shape)}" if isinstance(metric, torch.Tensor) else type(metric).__name__
            raise ConfigError(
                f"loss {loss.name!r}: metric {name!r} must have one value per token (got {got}); return a row, whose "
                f"mean over the trained tokens is logged{location_of(LOSSES, loss)}"
            )
    return row, metrics


def _row(table: Table[Any], part: Spec, result: Any, tokens: Tokens) -> torch.Tensor:
    return check_shape(table, part, result, tokens.trained, per="token")
