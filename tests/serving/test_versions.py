"""Weights that change while requests run: every token belongs to exactly one version."""

import asyncio
from contextlib import closing
from pathlib import Path

import pytest
import torch

from roll.algorithms.recipe import Objective
from roll.cluster.inline import InlineCluster
from roll.config.schema import Optimizer
from roll.engines.base import Generator, Trainer
from roll.engines.native.decoder import Decoder
from roll.journal.store import Journal
from roll.serving.dispatch import Sampled
from roll.serving.publisher import Publisher
from roll.serving.router import Router
from roll.types import Sampling, Spec
from roll.weights.channel import Mailbox
from tests.engines.models import batch_of, generator, prompts, request, small, trainer, twin

KIND = Sampling(temperature=0.9, top_k=30)
NUM_VERSIONS = 4
LOSS = Objective(loss=Spec("policy_gradient"))


@pytest.mark.slow
def test_every_logprob_is_reproducible_from_the_version_it_carries_and_from_no_other(tmp_path: Path) -> None:
    queries = prompts(8, longest=12)
    replies, versions = asyncio.run(_run_through_versions(queries, tmp_path))
    assert any(len(set(reply.versions)) > 1 for reply in replies), "the weights changed within replies"
    assert {version for reply in replies for version in reply.versions} == set(range(NUM_VERSIONS))
    rows = [[*ids, *reply.ids] for ids, reply in zip(queries, replies, strict=True)]
    gaps = torch.stack([asyncio.run(_gaps(weights, rows, queries, replies)) for weights in versions])
    carried = torch.tensor([version for reply in replies for version in reply.versions])
    expected = gaps[carried, torch.arange(len(carried))]
    assert expected.max() < 1e-4
    for shift in range(1, NUM_VERSIONS):
        others = gaps[(carried + shift) % NUM_VERSIONS, torch.arange(len(carried))]
        assert (others > 1e-3).float().mean() > 0.9


async def _run_through_versions(queries: list[list[int]], path: Path) -> tuple[list[Sampled], list[Decoder]]:
    """Replies in flight while the trainer published three times, and a copy of each version."""
    decoder, channel = small(), Mailbox()
    learning = trainer(decoder, optimizer=Optimizer(lr=0.03), sampling=KIND, channel=channel)
    serving = generator(twin(decoder), slots=6, channel=channel, flush_tokens=5)
    trainers, generators = InlineCluster[Trainer]([learning]), InlineCluster[Generator]([serving])
    await learning.start()
    await serving.start()
    router = Router(generators)
    with closing(Journal(path / "journal.db")) as journal:
        publisher = Publisher(trainers=trainers, generators=generators, router=router, journal=journal)
        running = asyncio.create_task(router.run())
        await publisher.publish(0)
        versions = [twin(decoder)]
        replies = [
            asyncio.create_task(router.sample(request(f"r{at}", ids, 24 + 4 * at, sampling=KIND)))
            for at, ids in enumerate(queries)
        ]
        for step in range(1, NUM_VERSIONS):
            for _ in range(12):
                await asyncio.sleep(0)
            await learning.update(
                batch_of(prompts(6, shortest=4, longest=12, seed=step)), Objective(loss=Spec("policy_gradient"))
            )
            await publisher.publish(step)
            versions.append(twin(decoder))
        done = [await reply for reply in replies]
        running.cancel()
    return done, versions


async def _gaps(
    weights: Decoder, rows: list[list[int]], queries: list[list[int]], replies: list[Sampled]
) -> torch.Tensor:
    """[sampled tokens]: difference of each logprob from that of these weights."""
    engine = trainer(twin(weights), sampling=KIND)
    await engine.start()
    scores = (await engine.logprobs(batch_of(rows))).split([len(row) for row in rows])
    parts = [
        (row[len(ids) :] - torch.as_tensor(reply.logprobs)).abs()
        for row, ids, reply in zip(scores, queries, replies, strict=True)
    ]
    return torch.cat(parts)
