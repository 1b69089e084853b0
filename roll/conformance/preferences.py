"""Checks of preference losses: `check_preference_loss("dpo", beta=0.5)` returns its faults, one line each.

A random ragged batch goes through a step: from logprobs per token to losses, and to the gradient of their mean. Both
are compared with the formula in double precision, computed pair by pair; derivatives are taken with a complex step.
"""

from __future__ import annotations

import cmath
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch

from roll.algorithms.preferences import Responses, response_sums, with_preference_gradient
from roll.config.preferences import UNPAIRED
from roll.conformance.exact import Floats, numbers
from roll.conformance.slopes import Number, by_formula, largest_error, sigmoid
from roll.data.collate import supervised
from roll.types import Batch, Spec

SEEDS = (0, 1, 2, 3)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PreferenceCase:
    """A random batch: pairs in adjacent rows, chosen first, or labelled responses."""

    batch: Batch
    logprobs: torch.Tensor
    """[tokens] fp32; values on prompts are meaningless"""
    ref_logprobs: torch.Tensor
    desirable: torch.Tensor | None
    baseline: torch.Tensor | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExactResponse:
    """A response in double precision."""

    logprob: Number
    ref_logprob: float
    num_tokens: int

    @property
    def log_ratio(self) -> Number:
        """h of the formulas."""
        return self.logprob - self.ref_logprob

    def scaled(self, per_token: bool) -> Number:
        """h, per token on request."""
        return self.log_ratio / self.num_tokens if per_token else self.log_ratio


Step: TypeAlias = Callable[[PreferenceCase, Spec], tuple[torch.Tensor, torch.Tensor]]
"""Losses, and [tokens] the gradient of their mean to the logprobs."""


def package_step(case: PreferenceCase, loss: Spec) -> tuple[torch.Tensor, torch.Tensor]:
    """The step of `roll dpo`; the engine's loss is linear, so its gradient is weight times negative advantage."""
    responses = Responses(
        logprobs=response_sums(case.batch, case.logprobs),
        ref_logprobs=response_sums(case.batch, case.ref_logprobs),
        num_tokens=response_sums(case.batch, torch.ones_like(case.logprobs)),
    )
    batch, losses = with_preference_gradient(
        case.batch, loss, responses, desirable=case.desirable, baseline=case.baseline
    )
    assert batch.advantages is not None and batch.weights is not None
    return losses, -batch.advantages * batch.weights


def check_preference_loss(
    function: str | Callable[..., Any],
    *,
    like: str | None = None,
    step: Step = package_step,
    seeds: Sequence[int] = SEEDS,
    **arguments: Any,
) -> list[str]:
    """Faults of a loss, by name or as a function of a module, `like` a built-in one; or of another `step`."""
    name = function if isinstance(function, str) else f"{function.__module__}:{function.__name__}"
    formula = like or name
    for seed in seeds:
        case = preference_case(seed, unpaired=formula in UNPAIRED)
        losses, gradient = step(case, Spec(name, arguments))
        expected, slopes = _by_formula(case, formula, arguments)
        for what, result, exact in (("loss", numbers(losses), expected), ("gradient", numbers(gradient), slopes)):
            if text := largest_error(result, exact):
                return [f"{name}: {what} differs from the formula of {formula}: {text} [batch {seed}]"]
    return []


def preference_case(seed: int, *, unpaired: bool) -> PreferenceCase:
    """Five pairs, or ten labelled responses, of one to nine tokens after prompts of one to five."""
    draw = np.random.default_rng(seed)
    rows = [[[1] * int(draw.integers(1, 6)), [2] * int(draw.integers(1, 10))] for _ in range(10)]
    batch = supervised(rows)
    logprobs, ref_logprobs = (
        torch.tensor(-draw.exponential(0.7, batch.num_tokens) - 0.01, dtype=torch.float32) for _ in range(2)
    )
    labels = torch.tensor(draw.random(len(rows)) < 0.5) if unpaired else None
    baseline = torch.tensor(float(draw.normal())).double() if unpaired else None
    return PreferenceCase(
        batch=batch, logprobs=logprobs, ref_logprobs=ref_logprobs, desirable=labels, baseline=baseline
    )


def _by_formula(case: PreferenceCase, name: str, arguments: dict[str, Any]) -> tuple[Floats, Floats]:
    """Losses, and the gradient of their mean, token by token."""
    row, ref = numbers(case.logprobs), numbers(case.ref_logprobs)
    spans = _spans(case.batch)

    def losses(values: Any) -> list[Number]:
        responses = [
            ExactResponse(logprob=sum(values[span]), ref_logprob=float(sum(ref[span])), num_tokens=len(span))
            for span in spans
        ]
        if case.desirable is None:
            pairs = zip(responses[::2], responses[1::2], strict=True)
            return [PAIRED[name](chosen, rejected, **arguments) for chosen, rejected in pairs]
        assert case.baseline is not None
        labels: list[bool] = case.desirable.numpy().tolist()
        baseline = max(0.0, float(case.baseline))
        return [kto(each, good, baseline, **arguments) for each, good in zip(responses, labels, strict=True)]

    return by_formula(row, [position for span in spans for position in span], losses)


def _spans(batch: Batch) -> list[list[int]]:
    """Positions of the response of each row."""
    trained: list[bool] = batch.trained.numpy().tolist()
    spans, begin = list[list[int]](), 0
    for length in batch.lengths:
        spans.append([position for position in range(begin, begin + length) if trained[position]])
        begin += length
    return spans


def _dpo(chosen: ExactResponse, rejected: ExactResponse, *, beta: float = 0.1, per_token: bool = False) -> Number:
    return -cmath.log(sigmoid(beta * (chosen.scaled(per_token) - rejected.scaled(per_token))))


def _cdpo(
    chosen: ExactResponse, rejected: ExactResponse, *, noise: float = 0.1, beta: float = 0.1, per_token: bool = False
) -> Number:
    right = _dpo(chosen, rejected, beta=beta, per_token=per_token)
    return (1 - noise) * right + noise * _dpo(rejected, chosen, beta=beta, per_token=per_token)


def _ipo(chosen: ExactResponse, rejected: ExactResponse, *, beta: float = 0.1, per_token: bool = False) -> Number:
    return (chosen.scaled(per_token) - rejected.scaled(per_token) - 1 / (2 * beta)) ** 2


def _apo_zero(chosen: ExactResponse, rejected: ExactResponse, *, beta: float = 0.1, per_token: bool = False) -> Number:
    return 1 - sigmoid(beta * chosen.scaled(per_token)) + sigmoid(beta * rejected.scaled(per_token))


def _apo_down(chosen: ExactResponse, rejected: ExactResponse, *, beta: float = 0.1, per_token: bool = False) -> Number:
    margin = chosen.scaled(per_token) - rejected.scaled(per_token)
    return sigmoid(beta * chosen.scaled(per_token)) + 1 - sigmoid(beta * margin)


def _orpo(chosen: ExactResponse, rejected: ExactResponse, *, beta: float = 0.1) -> Number:
    means = [side.logprob / side.num_tokens for side in (chosen, rejected)]
    odds = [cmath.exp(mean) / (1 - cmath.exp(mean)) for mean in means]
    return -means[0] - beta * cmath.log(sigmoid(cmath.log(odds[0] / odds[1])))


def _simpo(chosen: ExactResponse, rejected: ExactResponse, *, beta: float = 2.0, margin: float = 1.0) -> Number:
    gap = chosen.logprob / chosen.num_tokens - rejected.logprob / rejected.num_tokens
    return -cmath.log(sigmoid(beta * gap - margin))


def kto(
    response: ExactResponse,
    desirable: bool,
    baseline: float,
    *,
    beta: float = 0.1,
    desirable_weight: float = 1.0,
    undesirable_weight: float = 1.0,
) -> Number:
    """The formula of KTO for one response."""
    distance = beta * (response.log_ratio - baseline)
    if desirable:
        return desirable_weight * (1 - sigmoid(distance))
    return undesirable_weight * (1 - sigmoid(-distance))


PAIRED: dict[str, Callable[..., Number]] = {
    "dpo": _dpo,
    "cdpo": _cdpo,
    "ipo": _ipo,
    "apo_zero": _apo_zero,
    "apo_down": _apo_down,
    "orpo": _orpo,
    "simpo": _simpo,
}
"""Formulas of losses of pairs, by name."""
