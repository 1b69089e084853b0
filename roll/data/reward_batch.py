"""Batches of a reward model, whose rows repeat their last token: an entry's value is that of the state before it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate

import torch

from roll.data.collate import supervised
from roll.data.reward_rows import RewardExample
from roll.types import Batch


def reward_batch(examples: Sequence[RewardExample]) -> tuple[Batch, torch.Tensor]:
    """The rows of all examples in order, and [tokens] bool: the entries whose values are the scores, in reading order.

    Trained are whole responses, so that both sides of a pair share the computation of their prompt.
    """
    rows = [row for example in examples for row in example.rows]
    ends = [each for example in examples for each in example.ends]
    batch = supervised([[context, [*response, response[-1]]] for context, response in rows])
    starts = [0, *accumulate(batch.lengths)]
    read = torch.zeros(batch.num_tokens, dtype=torch.bool)
    read[[start + end + 1 for start, of_row in zip(starts, ends, strict=False) for end in of_row]] = True
    assert bool(batch.trained[read].all()), "scores are read in responses"
    return replace(batch, advantages=None, weights=None), read
