"""How the losses of tokens become one number: `f(batch, **kwargs) -> [tokens]` weights to multiply with and sum.

A weight carries the mask and the denominator of the whole global batch. It is made once, before the batch is cut, so no
cut can change the sum; it is zero wherever a token is not trained on, so no mask can be forgotten.
"""

from __future__ import annotations

import torch

from roll.types import Batch


def token_mean(batch: Batch) -> torch.Tensor:
    """Every trained token of the batch counts alike."""
    trained = batch.trained.float()
    return trained / trained.sum().clamp(min=1)


def sequence_mean_token_mean(batch: Batch) -> torch.Tensor:
    """Every sequence with a trained token counts alike, and within it every trained token."""
    trained = batch.trained.float()
    row = rows_of(batch)
    in_row = torch.zeros(len(batch.lengths), device=trained.device).index_add_(0, row, trained)
    num_sequences = (in_row > 0).sum().clamp(min=1)
    return trained / (num_sequences * in_row.clamp(min=1))[row]


def weighted_sum(row: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """The sum of `row` times `weights`; where a weight is zero, not even a NaN in `row` counts."""
    return torch.where(weights != 0, row, torch.zeros_like(row)).mul(weights).sum()


def rows_of(batch: Batch) -> torch.Tensor:
    """[tokens] int64: which sequence each token belongs to."""
    lengths = torch.tensor(batch.lengths, device=batch.trained.device)
    return torch.repeat_interleave(torch.arange(len(lengths), device=lengths.device), lengths)
