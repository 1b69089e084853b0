"""The number that an optimizer step makes smaller: loss, correction, KL and entropy put together."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import torch

from roll.algorithms.recipe import Objective
from roll.algorithms.user_code import asked, place_of
from roll.errors import ConfigError
from roll.registry import CORRECTIONS, ESTIMATORS, LOSSES, Table
from roll.types import Call, Tokens


def evaluate(
    tokens: Tokens, weights: torch.Tensor, objective: Objective
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """The objective's sum over these tokens, and rows to average over the trained ones and log by name.

    `weights` carry mask and denominator, so the sums over the parts of a cut batch add up to that of the whole.
    """
    tokens = clean(tokens)
    row, metrics = _rows(objective.loss, asked(LOSSES, objective.loss, tokens), tokens)
    if objective.correction is not None:
        factor = corrected(tokens, objective.correction)
        row, metrics = row * factor, {**metrics, "correction": factor}
    if objective.kl is not None:
        pull = kl_row(tokens.logprobs, tokens.ref_logprobs, tokens.trained, objective.kl)
        row, metrics = row + objective.kl_coefficient * pull, {**metrics, "kl": pull.detach()}
    if objective.entropy:
        assert tokens.entropies is not None, "the engine measures entropies whenever they are asked for"
        row = row - objective.entropy * tokens.entropies
    total = weighted_sum(row, weights)
    _check_gradient(total, tokens, objective.loss)
    return total, metrics


def clean(tokens: Tokens) -> Tokens:
    """With 0 in every row where a token is not trained on: no formula meets what an engine may have left there."""
    rows = {name: getattr(tokens, name) for name in _ROWS}
    return replace(
        tokens, **{name: torch.where(tokens.trained, row, 0.0) for name, row in rows.items() if row is not None}
    )


_ROWS = (
    "logprobs",
    "old_logprobs",
    "sampler_logprobs",
    "advantages",
    "ref_logprobs",
    "teacher_logprobs",
    "values",
    "old_values",
    "returns",
    "entropies",
)


def corrected(tokens: Tokens, correction: Call) -> torch.Tensor:
    """[tokens] factors that make up for a sampler that was not the policy; never part of a gradient."""
    return _row(CORRECTIONS, correction, asked(CORRECTIONS, correction, tokens), tokens).detach()


def kl_row(
    logprobs: torch.Tensor, ref_logprobs: torch.Tensor | None, trained: torch.Tensor, estimator: Call
) -> torch.Tensor:
    """[tokens] estimates of how far the policy is from the reference; of tokens that are not trained on, 0."""
    assert ref_logprobs is not None, "a recipe with KL needs a reference, which scores the batch before the update"
    apart = torch.where(trained, logprobs - ref_logprobs, 0.0)
    found: torch.Tensor = asked(ESTIMATORS, estimator, apart)
    return found


def weighted_sum(row: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """The sum of `row` times `weights`; where a weight is zero, not even a NaN in `row` counts."""
    return torch.where(weights != 0, row, torch.zeros_like(row)).mul(weights).sum()


def _check_gradient(total: torch.Tensor, tokens: Tokens, loss: Call) -> None:
    """Refuse what no gradient leads back from, where one is wanted."""
    wanted = any(row is not None and row.requires_grad for row in (tokens.logprobs, tokens.values))
    if wanted and not total.requires_grad:
        raise ConfigError(
            f"loss {loss.name!r}: what it returns has no gradient; compute it from the tokens' logprobs, or a critic's "
            f"from their values, without detach{place_of(LOSSES, loss)}"
        )


def _rows(loss: Call, found: Any, tokens: Tokens) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    parts = cast(tuple[Any, ...], found) if isinstance(found, tuple) else ()
    if len(parts) != 2 or not isinstance(parts[1], dict):
        raise ConfigError(
            f"{loss.name}: must return the loss of each token and a dictionary of metrics "
            f"(got {type(cast(object, found)).__name__}); return (loss, {{}}){place_of(LOSSES, loss)}"
        )
    logged = cast(dict[str, Any], parts[1])
    return _row(LOSSES, loss, parts[0], tokens), {
        name: _row(LOSSES, loss, each, tokens) for name, each in logged.items()
    }


def _row(table: Table[Any], function: Call, found: Any, tokens: Tokens) -> torch.Tensor:
    if not isinstance(found, torch.Tensor) or found.shape != tokens.trained.shape:
        got = tuple(found.shape) if isinstance(found, torch.Tensor) else type(found).__name__
        raise ConfigError(
            f"{function.name}: must return one number a token, shape {tuple(tokens.trained.shape)} (got {got}); "
            f"fix its code{place_of(table, function)}"
        )
    return found
