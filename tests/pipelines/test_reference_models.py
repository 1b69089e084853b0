"""Scores of a batch by several workers."""

import asyncio
from typing import Any

import torch

from roll.algorithms.recipe import Need
from roll.cluster.inline import InlineCluster
from roll.engines.fake import FakeTrainer
from roll.pipelines.reference_models import AuxiliaryModels, score
from roll.types import Batch, Sampling
from tests.engines.models import batch_of

LENGTHS = (2, 5, 3, 7, 2, 4, 6)
"""In no order of size, so that no worker gets consecutive rows."""


class Numbered(FakeTrainer):
    """Scores a token by its id, plus a number that differs between models."""

    def __init__(self, number: float) -> None:
        super().__init__()
        self.number, self.num_rows = number, 0

    async def logprobs(self, batch: Batch, *, sampling: Sampling | None = None) -> torch.Tensor:
        self.num_rows += len(batch.lengths)
        return batch.ids + self.number

    async def logprobs_and_entropies(self, batch: Batch) -> torch.Tensor:
        return torch.stack([batch.ids + self.number, batch.ids * 2.0])

    async def base_logprobs(self, batch: Batch) -> torch.Tensor:
        return batch.ids - self.number

    async def values(self, batch: Batch) -> torch.Tensor:
        return await self.logprobs(batch)


def workers(number: float) -> InlineCluster[Any]:
    return InlineCluster[Any]([Numbered(number) for _ in range(3)])


def numbered_batch() -> Batch:
    """Every token has an id of its own."""
    ids = iter(range(sum(LENGTHS)))
    return batch_of([[next(ids) for _ in range(length)] for length in LENGTHS])


def scored(models: AuxiliaryModels, *needs: Need) -> Batch:
    return asyncio.run(score(numbered_batch(), workers(0.5), models, frozenset(needs)))


def test_scores_of_several_workers_belong_to_the_tokens_they_were_computed_for() -> None:
    reference = workers(0.25)
    models = AuxiliaryModels(reference=reference, teacher=workers(0.125), critic=workers(0.0625))
    batch = scored(models, "old_logprobs")
    for row, number in (
        (batch.old_logprobs, 0.5),
        (batch.ref_logprobs, 0.25),
        (batch.teacher_logprobs, 0.125),
        (batch.values, 0.0625),
    ):
        assert row is not None and row.tolist() == (batch.ids + number).tolist()
    assert all(worker.num_rows for worker in reference._workers), "every worker scored a part"


def test_base_logprobs_of_several_actors_belong_to_their_tokens() -> None:
    batch = scored(AuxiliaryModels(reference_is_base=True))
    assert batch.ref_logprobs is not None and batch.ref_logprobs.tolist() == (batch.ids - 0.5).tolist()


def test_entropies_of_several_actors_belong_to_their_tokens_and_come_with_old_logprobs() -> None:
    batch = scored(AuxiliaryModels(), "entropies", "old_logprobs")
    assert batch.entropies is not None and batch.entropies.tolist() == (batch.ids * 2.0).tolist()
    assert batch.old_logprobs is not None and batch.old_logprobs.tolist() == (batch.ids + 0.5).tolist()
    assert scored(AuxiliaryModels(), "old_logprobs").entropies is None
    assert len(batch.select([1]).entropies) == LENGTHS[1]  # type: ignore[arg-type]


def test_each_trajectory_gets_the_reward_that_a_worker_computed_for_it() -> None:
    batch = scored(AuxiliaryModels(reward_model=workers(0.25), reward_weight=2.0))
    last = torch.tensor(LENGTHS).cumsum(0) - 1  # the id of a trajectory's last token is its position
    assert batch.rewards.tolist() == (2 * (last + 0.25)).tolist()
