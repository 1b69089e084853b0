"""Adapters that do not arrive or are not used: faults that others trained with for months, put back in."""

import asyncio
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch

from roll.algorithms.recipe import Objective
from roll.cluster.inline import InlineCluster
from roll.config.lora import Lora
from roll.config.schema import Optimizer
from roll.engines.base import Generator, Trainer
from roll.engines.native import lora
from roll.engines.native.decoder import Decoder
from roll.engines.native.generator import NativeGenerator
from roll.errors import RunStopped
from roll.journal.events import Published
from roll.journal.store import Journal
from roll.serving.canary import canary_of
from roll.serving.publisher import Publisher
from roll.serving.router import Router
from roll.types import Call, Digest
from roll.weights.inline import Mailbox
from roll.weights.plan import Plan
from tests.engines.models import batch_of, generator, prompts, small, trainer

LOSS = Objective(loss=Call("policy_gradient"))
LORA = Lora(rank=4, alpha=8)


def adapted(seed: int = 0) -> Decoder:
    decoder = lora.attach(small(seed=seed), LORA)
    lora.begin(decoder, seed=0)
    return decoder


class Pinned(NativeGenerator):
    """The adapter stays as it was at the start, whatever comes, and nobody says so (verl#7495)."""

    async def receive(self, plan: Plan, version: int) -> Digest:
        first = {name: tensor.detach().clone() for name, tensor in lora.adapter_tensors(self.decoder)}
        await super().receive(plan, version)
        lora.load_adapter(self.decoder, first.items(), where="the start")
        return lora.attested(self.decoder, torch.float32)


class Undelivered(Mailbox):
    """Nothing comes out."""

    def receive(self, *, version: int) -> Iterable[tuple[str, torch.Tensor]]:
        super().receive(version=version)
        return ()


class Half(Mailbox):
    """B of one projection is always that of the first version, which is 0."""

    def receive(self, *, version: int) -> Iterable[tuple[str, torch.Tensor]]:
        for name, tensor in super().receive(version=version):
            stale = name.endswith("1.mlp.up_proj.lora_B.weight")
            yield name, torch.zeros_like(tensor) if stale else tensor


class Unused(NativeGenerator):
    """The adapter arrives, and nobody computes with it."""

    async def receive(self, plan: Plan, version: int) -> Digest:
        for layer in self.decoder.layers:
            layer.adapted = False
        return await super().receive(plan, version)


async def published(
    path: Path, kind: type[NativeGenerator], channel: Mailbox, *, versions: int = 3, model: int = 0
) -> list[Published]:
    """So many versions of an adapter in training, published to one generator over a model with seed `model`."""
    learning = trainer(adapted(), optimizer=Optimizer(lr=0.03), channel=channel)
    settings = generator(small()).settings
    generators = InlineCluster[Generator]([kind(adapted(model), settings, channel)])
    await learning.start()
    await generators.each(Generator.start)
    with closing(Journal(path / "journal.db")) as journal:
        publisher = Publisher(
            trainers=InlineCluster[Trainer]([learning]),
            generators=generators,
            router=Router(generators),
            journal=journal,
            plan=Plan(names=()),
            canary=canary_of(vocab=40, context=128),
        )
        for version in range(versions):
            await publisher.publish(version)
            await learning.update(batch_of(prompts(6, shortest=4, longest=12, seed=version)), LOSS)
        journal.flush()
        return [entry.event for entry in journal.events(Published)]


def test_every_version_of_an_adapter_is_attested(tmp_path: Path) -> None:
    found = asyncio.run(published(tmp_path, NativeGenerator, Mailbox(), versions=4))
    assert len({event.digest for event in found}) == 4


@pytest.mark.parametrize(
    ("kind", "channel", "named"),
    [
        (Pinned, Mailbox, "version 1: generator 0 .* nothing was delivered, it still holds version 0"),
        (NativeGenerator, Undelivered, "version 1: generator 0 .* nothing was delivered, it still holds version 0"),
        (NativeGenerator, Half, "version 1: generator 0 .* a part is stale"),
        (Unused, Mailbox, "version 1: generator 0 .* uses them otherwise"),
    ],
    ids=["pinned", "undelivered", "half", "unused"],
)
def test_a_fault_of_publication_ends_the_run_by_its_name(kind: Any, channel: Any, named: str, tmp_path: Path) -> None:
    with pytest.raises(RunStopped, match=named):
        asyncio.run(published(tmp_path, kind, channel()))


def test_a_generator_over_another_model_is_refused_at_the_first_version(tmp_path: Path) -> None:
    with pytest.raises(RunStopped, match="version 0: generator 0 does not hold the trainer's weights"):
        asyncio.run(published(tmp_path, NativeGenerator, Mailbox(), model=1))
