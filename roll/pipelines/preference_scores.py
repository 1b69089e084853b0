"""Logprobs of preference examples under the policy and the reference, summed per response."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from roll.algorithms.preferences import Responses, response_sums
from roll.algorithms.recipe import Need
from roll.cluster.handle import Cluster
from roll.data.answer_rows import digest_rows
from roll.data.collate import supervised
from roll.data.preference_rows import PreferenceExample
from roll.engines.base import Trainer
from roll.errors import ConfigError
from roll.pipelines.offline import chunks
from roll.pipelines.reference_models import AuxiliaryModels, score
from roll.types import Batch

_POLICY: frozenset[Need] = frozenset({"old_logprobs"})
REFERENCE_LOGPROBS = "reference_logprobs.npz"
"""File of a run directory with the sums of the reference's logprobs."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ScoredExamples:
    """Examples with what the current weights say about them."""

    batch: Batch
    """The trained rows: both sides of pairs, or labelled responses."""
    responses: Responses
    """Of these rows."""
    desirable: torch.Tensor | None
    """Labels of the rows; None for pairs."""
    baseline: torch.Tensor | None
    """Mean log-ratio of the responses to other prompts; None for pairs."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PreferenceScorer:
    """Scores examples with the current weights, and with the reference where the loss reads one."""

    trainers: Cluster[Trainer]
    models: AuxiliaryModels
    """With a reference if one computes logprobs in every step."""
    saved: torch.Tensor | None = None
    """[examples, 2] fp64: sums of a reference that was computed before the first step; None: by `models`, or none"""

    async def score(self, examples: Sequence[PreferenceExample], indices: Sequence[int]) -> ScoredExamples:
        """The examples at these indices."""
        chosen = [examples[index] for index in indices]
        batch = await score(_batch_of(chosen), self.trainers, self.models, _POLICY)
        assert batch.old_logprobs is not None, "the policy scores every batch"
        sums, ref_sums = response_sums(batch, batch.old_logprobs), torch.zeros(len(batch.lengths), dtype=torch.float64)
        if self.saved is not None:
            ref_sums = self.saved[list(indices)].reshape(-1)
        elif batch.ref_logprobs is not None:
            ref_sums = response_sums(batch, batch.ref_logprobs)
        responses = Responses(
            logprobs=sums, ref_logprobs=ref_sums, num_tokens=response_sums(batch, torch.ones(batch.num_tokens))
        )
        batch = replace(batch, old_logprobs=None, ref_logprobs=None)
        if chosen[0].desirable is None:
            return ScoredExamples(batch=batch, responses=responses, desirable=None, baseline=None)
        first = slice(0, None, 2)
        return ScoredExamples(
            batch=batch.select(range(len(batch.lengths))[first]),
            responses=responses.select(first),
            desirable=torch.tensor([bool(example.desirable) for example in chosen]),
            baseline=responses.log_ratios[1::2].mean(),
        )


async def reference_sums(
    scorer: PreferenceScorer, examples: Sequence[PreferenceExample], size: int, advance: Callable[[int], None]
) -> torch.Tensor:
    """[examples, 2] fp64: sums under the current weights, which before the first step are the reference's."""
    parts = [torch.zeros(0, 2, dtype=torch.float64)]
    for indices in chunks(len(examples), size):
        batch = await score(_batch_of([examples[index] for index in indices]), scorer.trainers, scorer.models, _POLICY)
        assert batch.old_logprobs is not None, "the policy scores every batch"
        parts.append(response_sums(batch, batch.old_logprobs).reshape(-1, 2))
        advance(len(indices))
    return torch.cat(parts)


def save_reference(path: Path, sums: Sequence[torch.Tensor], examples: Sequence[Sequence[PreferenceExample]]) -> None:
    """Write the sums of several sets of examples, with a digest of each set."""
    arrays: dict[str, Any] = {f"sums_{index}": each.numpy() for index, each in enumerate(sums)}
    arrays["digests"] = np.array([digest_of(each) for each in examples])
    temporary = path.with_name(f".tmp-{path.name}")
    with temporary.open("wb") as file:
        np.savez(file, **arrays)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def load_reference(path: Path, examples: Sequence[Sequence[PreferenceExample]]) -> list[torch.Tensor]:
    """The sums that `save_reference` wrote; raises `ConfigError` if they are of other examples."""
    if not path.is_file():
        raise ConfigError(f"{path}: the reference's logprobs are missing; put the file back, or start the run again")
    with np.load(path) as saved:
        if saved["digests"].tolist() != [digest_of(each) for each in examples]:
            raise ConfigError(f"{path}: was computed for other data; put the data of the run back, or start it again")
        return [torch.as_tensor(saved[f"sums_{index}"]) for index in range(len(examples))]


def digest_of(examples: Sequence[PreferenceExample]) -> str:
    """A hash of the ids of all examples, in order."""
    return digest_rows(row for example in examples for row in example.rows)


def _batch_of(examples: Sequence[PreferenceExample]) -> Batch:
    return supervised([row for example in examples for row in example.rows])
