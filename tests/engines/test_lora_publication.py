"""Adapters that do not arrive or are not used: known faults of publication, planted on purpose."""

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
from roll.journal.events import WeightsPublished
from roll.journal.store import Journal
from roll.serving.canary import canary_for
from roll.serving.publisher import Publisher
from roll.serving.router import Router
from roll.types import Spec
from roll.weights.channel import Mailbox
from roll.weights.digest import Digest
from tests.engines.models import batch_of, generator, prompts, small, trainer

LOSS = Objective(loss=Spec("policy_gradient"))
LORA = Lora(rank=4, alpha=8)


def adapted(seed: int = 0) -> Decoder:
    decoder = lora.attach(small(seed=seed), LORA)
    lora.initialise(decoder, seed=0)
    return decoder


class Pinned(NativeGenerator):
    """The generator keeps its first adapter and reports success."""

    async def receive(self, version: int) -> Digest:
        first = {name: tensor.detach().clone() for name, tensor in self.decoder.adapter_tensors()}
        await super().receive(version)
        lora.load_adapter(self.decoder, first.items(), where="the start")
        return lora.digest_served(self.decoder, torch.float32)


class Undelivered(Mailbox):
    """Receives nothing."""

    def receive(self, *, version: int) -> Iterable[tuple[str, torch.Tensor]]:
        super().receive(version=version)
        return ()


class Half(Mailbox):
    """B of one projection stays that of the first version, which is 0."""

    def receive(self, *, version: int) -> Iterable[tuple[str, torch.Tensor]]:
        for name, tensor in super().receive(version=version):
            stale = name.endswith("1.mlp.up_proj.lora_B.weight")
            yield name, torch.zeros_like(tensor) if stale else tensor


class Unused(NativeGenerator):
    """The adapter arrives and is not used."""

    async def receive(self, version: int) -> Digest:
        for layer in self.decoder.layers:
            layer.adapted = False
        return await super().receive(version)


async def published(
    path: Path, kind: type[NativeGenerator], channel: Mailbox, *, versions: int = 3, model: int = 0
) -> list[WeightsPublished]:
    """Publish versions of a trained adapter to one generator whose base model has seed `model`."""
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
            canary=canary_for(vocab=40, max_seq_len=128),
        )
        for version in range(versions):
            await publisher.publish(version)
            await learning.update(batch_of(prompts(6, shortest=4, longest=12, seed=version)), LOSS)
        journal.flush()
        return [entry.event for entry in journal.events(WeightsPublished)]


def test_every_version_of_an_adapter_is_attested(tmp_path: Path) -> None:
    result = asyncio.run(published(tmp_path, NativeGenerator, Mailbox(), versions=4))
    assert len({event.digest for event in result}) == 4


@pytest.mark.parametrize(
    ("kind", "channel", "named"),
    [
        (Pinned, Mailbox, "version 1: generator 0 .* nothing was delivered, it still holds version 0"),
        (NativeGenerator, Undelivered, "version 1: generator 0 .* nothing was delivered, it still holds version 0"),
        (NativeGenerator, Half, "version 1: generator 0 .* a part is stale"),
        (Unused, Mailbox, "version 1: generator 0 .* computes differently"),
    ],
    ids=["pinned", "undelivered", "half", "unused"],
)
@pytest.mark.slow
def test_the_error_of_a_failed_publication_names_its_fault(kind: Any, channel: Any, named: str, tmp_path: Path) -> None:
    with pytest.raises(RunStopped, match=named):
        asyncio.run(published(tmp_path, kind, channel()))


def test_a_generator_with_another_base_model_is_refused_at_the_first_version(tmp_path: Path) -> None:
    with pytest.raises(RunStopped, match="version 0: generator 0 does not hold the trainer's weights"):
        asyncio.run(published(tmp_path, NativeGenerator, Mailbox(), model=1))
