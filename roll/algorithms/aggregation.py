"""How the losses of tokens become one number: `f(batch, **kwargs) -> [tokens]` weights to multiply with and sum.

A weight carries the mask and the denominator of the whole global batch. It is made once, before the batch is cut, so no
cut can change the sum; it is zero wherever a token is not trained on, so no mask can be forgotten. A sequence without a
trained token does not count.
"""

from __future__ import annotations

import torch

from roll.algorithms.segments import sum_by
from roll.errors import ConfigError
from roll.types import Batch


def token_mean(batch: Batch) -> torch.Tensor:
    """Every trained token of the batch counts alike."""
    return batch.trained.float() / batch.trained.sum().clamp(min=1)


def sequence_mean_token_mean(batch: Batch) -> torch.Tensor:
    """Every sequence counts alike, and within it every trained token."""
    in_row = _trained_in_rows(batch)
    return batch.trained.float() / (_num_sequences(in_row) * in_row.clamp(min=1))[rows_of(batch)]


def sequence_mean_token_sum(batch: Batch) -> torch.Tensor:
    """The sum over a sequence's trained tokens, averaged over sequences: longer ones count for more."""
    return batch.trained.float() / _num_sequences(_trained_in_rows(batch))


def constant(batch: Batch, *, tokens: int) -> torch.Tensor:
    """The sum over a sequence's trained tokens over a fixed number, averaged over sequences.

    Dr. GRPO: `tokens` is the length of the longest reply allowed, so that a reply's own length has no say.
    """
    if tokens < 1:
        raise ConfigError(f"constant: tokens must be at least 1 (got {tokens}); give the longest reply's length")
    return batch.trained.float() / (_num_sequences(_trained_in_rows(batch)) * tokens)


def rows_of(batch: Batch) -> torch.Tensor:
    """[tokens] int64: which sequence each token belongs to."""
    lengths = torch.tensor(batch.lengths, dtype=torch.int64, device=batch.trained.device)
    return torch.repeat_interleave(torch.arange(len(lengths), device=lengths.device), lengths)


def _trained_in_rows(batch: Batch) -> torch.Tensor:
    """[rows] int64; whole numbers, because fp32 stops counting at 16 million."""
    return sum_by(rows_of(batch), batch.trained.long(), len(batch.lengths))


def _num_sequences(in_row: torch.Tensor) -> torch.Tensor:
    """How many have a trained token; 1 when none has, so that it may be divided by."""
    return (in_row > 0).sum().clamp(min=1)
