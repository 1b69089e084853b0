"""Checks of losses of reward models: `check_reward_loss("bradley_terry")` returns its faults, one line each.

Random ragged examples go through a step: from values per token to losses, and to the gradient of their mean. Both are
compared with the formula in double precision, computed example by example from the positions that the examples name.
"""

from __future__ import annotations

import cmath
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, TypeAlias

import numpy as np
import torch

from roll.algorithms.reward_losses import Scored, scored_examples, with_reward_gradient
from roll.config.preferences import FORM_OF
from roll.conformance.exact import Floats, numbers
from roll.conformance.slopes import Number, by_formula, largest_error, sigmoid
from roll.data.reward_batch import reward_batch
from roll.data.reward_rows import RewardExample
from roll.types import Spec

SEEDS = (0, 1, 2, 3)
_NUM_EXAMPLES = 7


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RewardCase:
    """Random examples, and a value for every token of their batch."""

    examples: tuple[RewardExample, ...]
    values: torch.Tensor
    """[tokens] fp32; those at which no score is read are meaningless"""


RewardStep: TypeAlias = Callable[[RewardCase, Spec], tuple[torch.Tensor, torch.Tensor]]
"""Losses, and [tokens] the gradient of their mean to the values."""


def package_reward_step(case: RewardCase, loss: Spec) -> tuple[torch.Tensor, torch.Tensor]:
    """The step of `roll reward`; the engine's loss is linear, so its gradient is weight times negative advantage."""
    batch, read = reward_batch(case.examples)
    batch, losses = with_reward_gradient(batch, read, loss, scores_of(case, case.values[read]))
    assert batch.advantages is not None and batch.weights is not None
    return losses, -batch.advantages * batch.weights


def scores_of(case: RewardCase, scores: torch.Tensor) -> Scored:
    """The input of a loss."""
    return scored_examples(
        scores.double(), [each.targets for each in case.examples], [each.margin for each in case.examples]
    )


def check_reward_loss(
    function: str | Callable[..., Any],
    *,
    like: str | None = None,
    step: RewardStep = package_reward_step,
    seeds: Sequence[int] = SEEDS,
    **arguments: Any,
) -> list[str]:
    """Faults of a loss, by name or as a function of a module, `like` a built-in one; or of another `step`."""
    name = function if isinstance(function, str) else f"{function.__module__}:{function.__name__}"
    formula = like or name
    for seed in seeds:
        case = reward_case(seed, FORM_OF[formula])
        losses, gradient = step(case, Spec(name, arguments))
        expected, slopes = _from_formula(case, formula, arguments)
        for what, result, exact in (("loss", numbers(losses), expected), ("gradient", numbers(gradient), slopes)):
            if text := largest_error(result, exact):
                return [f"{name}: {what} differs from the formula of {formula}: {text} [batch {seed}]"]
    return []


def reward_case(seed: int, form: str) -> RewardCase:
    """Seven examples: prompts of one to five tokens, responses of one to nine, with steps in the form of that name."""
    draw = np.random.default_rng(seed)
    examples = tuple(_example(draw, form) for _ in range(_NUM_EXAMPLES))
    num_tokens = reward_batch(examples)[0].num_tokens
    return RewardCase(examples=examples, values=torch.tensor(draw.normal(0, 2, num_tokens), dtype=torch.float32))


def _example(draw: np.random.Generator, form: str) -> RewardExample:
    rows = tuple(
        [[1] * int(draw.integers(1, 6)), [2] * int(draw.integers(1, 10))] for _ in range(2 if form == "pairs" else 1)
    )
    ends = [(sum(map(len, row)) - 1,) for row in rows]
    if form == "pairs":
        return RewardExample(where="", rows=rows, ends=tuple(ends), margin=float(draw.exponential(1.0)))
    if form == "steps":
        first, length = len(rows[0][0]), len(rows[0][1])
        inner = [index for index in range(length - 1) if draw.random() < 0.4]
        ends = [(*(first + index for index in inner), *ends[0])]
    soft = form in ("ratings", "steps")
    targets = tuple(float(draw.random() if soft else draw.random() < 0.5) for _ in ends[0])
    return RewardExample(where="", rows=rows, ends=tuple(ends), targets=targets)


def _from_formula(case: RewardCase, name: str, arguments: dict[str, Any]) -> tuple[Floats, Floats]:
    """Losses, and the gradient of their mean, value by value."""
    reads = _reads(case.examples)

    def losses(values: Any) -> list[Number]:
        results: list[Number] = []
        for example, rows in zip(case.examples, reads, strict=True):
            scores = [[values[index] for index in row] for row in rows]
            results.append(FORMULAS[name](example, scores, **arguments))
        return results

    positions = [index for rows in reads for row in rows for index in row]
    return by_formula(numbers(case.values), positions, losses)


def _reads(examples: Sequence[RewardExample]) -> list[list[list[int]]]:
    """Per row of each example the entries of its scores: one after the tokens, as an entry is about the state before.

    A row has one entry more than tokens.
    """
    lengths = [sum(map(len, row)) + 1 for example in examples for row in example.rows]
    starts = iter([0, *accumulate(lengths)])
    return [
        [[start + end + 1 for end in ends] for ends, start in zip(example.ends, starts, strict=False)]
        for example in examples
    ]


def _bradley_terry(
    example: RewardExample, scores: list[list[Number]], *, margin_scale: float = 1.0, centring: float = 0.0
) -> Number:
    (chosen,), (rejected,) = scores
    order = -cmath.log(sigmoid(chosen - rejected - margin_scale * example.margin))
    return order + centring * (chosen + rejected) ** 2


def _regression(example: RewardExample, scores: list[list[Number]]) -> Number:
    return (scores[0][0] - example.targets[0]) ** 2


def _classification(example: RewardExample, scores: list[list[Number]], *, positive_weight: float = 1.0) -> Number:
    return _cross_entropy(scores[0][0], example.targets[0], positive_weight)


def _process(example: RewardExample, scores: list[list[Number]], *, positive_weight: float = 1.0) -> Number:
    pairs = zip(scores[0], example.targets, strict=True)
    return sum(_cross_entropy(score, target, positive_weight) for score, target in pairs) / len(example.targets)


def _cross_entropy(score: Number, target: float, positive_weight: float) -> Number:
    right = sigmoid(score)
    return -positive_weight * target * cmath.log(right) - (1 - target) * cmath.log(1 - right)


FORMULAS: dict[str, Callable[..., Number]] = {
    "bradley_terry": _bradley_terry,
    "regression": _regression,
    "classification": _classification,
    "process": _process,
}
"""Formulas by name."""
