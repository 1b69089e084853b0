"""Divergences of a student from a teacher: `f(student, teacher, **kwargs) -> one value per token`.

Both arguments are logprobs [tokens, classes] of the same classes: all tokens of the vocabulary, or the teacher's most
likely tokens and one class for all others. Only the student's have a gradient.

In every formula p has the teacher's probabilities, q the student's, and KL(a | b) is the sum of a log(a / b).
"""

from __future__ import annotations

import math

import torch

from roll.errors import ConfigError


def forward_kl(student: torch.Tensor, teacher: torch.Tensor) -> torch.Tensor:
    """Forward KL: KL(p | q). The student covers all that the teacher does."""
    return _kl(teacher, student)


def reverse_kl(student: torch.Tensor, teacher: torch.Tensor) -> torch.Tensor:
    """Reverse KL: KL(q | p). The student does only what the teacher does."""
    return _kl(student, teacher)


def jensen_shannon(student: torch.Tensor, teacher: torch.Tensor, *, weight: float = 0.5) -> torch.Tensor:
    """Jensen-Shannon: weight KL(p | m) + (1 - weight) KL(q | m), m = weight p + (1 - weight) q.

    Divided by `weight` it approaches the forward KL for a weight near 0, and divided by 1 - `weight` the reverse KL for
    one near 1.
    """
    _check_between("jensen_shannon", "weight", weight)
    middle = _mixture(teacher, student, weight)
    return weight * _kl(teacher, middle) + (1 - weight) * _kl(student, middle)


def skewed_forward_kl(student: torch.Tensor, teacher: torch.Tensor, *, skew: float = 0.1) -> torch.Tensor:
    """Skewed forward KL: KL(p | skew p + (1 - skew) q). It is bounded where the student's probability is near 0."""
    _check_between("skewed_forward_kl", "skew", skew)
    return _kl(teacher, _mixture(teacher, student, skew))


def skewed_reverse_kl(student: torch.Tensor, teacher: torch.Tensor, *, skew: float = 0.1) -> torch.Tensor:
    """Skewed reverse KL: KL(q | skew q + (1 - skew) p). It is bounded where the teacher's probability is near 0."""
    _check_between("skewed_reverse_kl", "skew", skew)
    return _kl(student, _mixture(student, teacher, skew))


def _kl(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    return (left.exp() * (left - right)).sum(-1)


def _mixture(left: torch.Tensor, right: torch.Tensor, share: float) -> torch.Tensor:
    """Logprobs of the mixture with this share of `left`."""
    return torch.logaddexp(left + math.log(share), right + math.log1p(-share))


def _check_between(name: str, argument: str, value: float) -> None:
    if not 0 < value < 1:
        raise ConfigError(f"{name}: {argument} must be above 0 and below 1 (got {value}); change it")
