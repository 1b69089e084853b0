"""Bugs in the step of preference optimisation, and in its losses."""

from dataclasses import replace
from typing import Any

import torch
from torch.nn.functional import logsigmoid

from roll.algorithms.preferences import Pairs, Responses, compare, losses_of, response_sums
from roll.conformance.preferences import PreferenceCase, package_step
from roll.types import Spec

Outcome = tuple[torch.Tensor, torch.Tensor]


def shifted_labels(case: PreferenceCase, loss: Spec) -> Outcome:
    """Each response begins one token early and ends one early."""
    return package_step(replace(case, batch=replace(case.batch, trained=case.batch.trained.roll(-1))), loss)


def prompt_tokens_in_the_loss(case: PreferenceCase, loss: Spec) -> Outcome:
    """Sums cover the prompt too."""
    everything = torch.ones_like(case.batch.trained)
    return package_step(replace(case, batch=replace(case.batch, trained=everything)), loss)


def swapped_pair(case: PreferenceCase, loss: Spec) -> Outcome:
    """The rejected response is taken for the chosen one."""
    rows = [row for first in range(0, len(case.batch.lengths), 2) for row in (first + 1, first)]
    positions = torch.as_tensor(case.batch.positions(rows))
    logprobs, ref_logprobs = case.logprobs[positions], case.ref_logprobs[positions]
    swapped = replace(case, batch=case.batch.select(rows), logprobs=logprobs, ref_logprobs=ref_logprobs)
    losses, gradient = package_step(swapped, loss)
    return losses, torch.zeros_like(gradient).index_copy(0, positions, gradient)


def reference_not_frozen(case: PreferenceCase, loss: Spec) -> Outcome:
    """The reference is the policy itself."""
    return package_step(replace(case, ref_logprobs=case.logprobs), loss)


def gradient_through_the_reference(case: PreferenceCase, loss: Spec) -> Outcome:
    """The values are right, but the reference moves with the policy."""
    row = case.logprobs.clone().requires_grad_()
    moving = case.ref_logprobs + 0.5 * (row - row.detach())
    responses = Responses(
        logprobs=response_sums(case.batch, row),
        ref_logprobs=response_sums(case.batch, moving),
        num_tokens=response_sums(case.batch, torch.ones_like(row)),
    )
    losses = losses_of(loss, compare(responses, case.desirable, case.baseline))
    return losses.detach(), torch.autograd.grad(losses.mean(), row)[0]


def sum_for_mean(pairs: Pairs, *, beta: float = 2.0, margin: float = 1.0) -> torch.Tensor:
    """SimPO without the division by lengths."""
    return -logsigmoid(beta * (pairs.chosen.logprobs - pairs.rejected.logprobs) - margin)


def margin_of_the_wrong_sign(pairs: Pairs, *, beta: float = 2.0, margin: float = 1.0) -> torch.Tensor:
    """SimPO that asks for less than a right order."""
    return -logsigmoid(beta * (pairs.chosen.mean_logprobs - pairs.rejected.mean_logprobs) + margin)


def sum_for_mean_of_log_ratios(pairs: Pairs, *, beta: float = 0.1, per_token: bool = False) -> torch.Tensor:
    """IPO that ignores `per_token`."""
    return (pairs.chosen.log_ratios - pairs.rejected.log_ratios - 1 / (2 * beta)).square()


STEPS = (
    shifted_labels,
    prompt_tokens_in_the_loss,
    swapped_pair,
    reference_not_frozen,
    gradient_through_the_reference,
)
LOSSES: tuple[tuple[Any, str, dict[str, Any]], ...] = (
    (sum_for_mean, "simpo", {}),
    (margin_of_the_wrong_sign, "simpo", {}),
    (sum_for_mean_of_log_ratios, "ipo", {"per_token": True}),
)
