"""Adapters in a real vLLM: served as the trainer computes, one per version, attested bit by bit."""

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
from roll.config.schema import Model, Optimizer
from roll.engines.base import Generator, Trainer
from roll.engines.native.decoder import Decoder
from roll.engines.native.model_spec import ModelSpec, build
from roll.engines.vllm.generator import VllmGenerator
from roll.engines.vllm.lora import ServedAdapter
from roll.errors import RunStopped
from roll.journal.events import WeightsPublished
from roll.journal.store import Journal
from roll.serving.canary import canary_for
from roll.serving.publisher import Publisher
from roll.serving.router import Router
from roll.types import Sampling, Spec
from roll.weights.adapters import write_adapter
from roll.weights.channel import Channel, Mailbox
from roll.weights.huggingface import write_model
from tests.engines import contract
from tests.engines.models import batch_of, collect, generator, prompts, request, serve, trainer
from tests.engines_optional.conftest import NEEDS_VLLM, model, settings

pytestmark = NEEDS_VLLM
LOSS = Objective(loss=Spec("policy_gradient"))
LORA = Lora(rank=6, alpha=9)
GREEDY = Sampling(temperature=0)
ROWS = prompts(6, shortest=3, longest=40, seed=4)


class Held:
    """One engine for all tests of this file, because a start takes seconds."""

    def __init__(self, folder: Path) -> None:
        self.path, self.engine, self.number = folder / "model", None, 0
        decoder = model()
        write_model(self.path, decoder.config, dict(decoder.named_tensors()))

    def model_spec(self) -> ModelSpec:
        return ModelSpec(model=Model(path=str(self.path)), lora=LORA)

    def serving(self, channel: Channel, served: type[ServedAdapter] = ServedAdapter) -> VllmGenerator:
        held = self

        class Reused(VllmGenerator):
            async def start(self) -> None:
                if held.engine is None:
                    await super().start()
                    held.engine = self._engine
                self._engine = held.engine
                self._adapter = served(held.engine, LORA, "float32")

            async def stop(self) -> None:
                assert self._adapter is not None
                self._adapter.drop()

        return Reused(self.model_spec(), settings(), channel)


@pytest.fixture(scope="module")
def held(tmp_path_factory: pytest.TempPathFactory) -> Any:
    built = Held(tmp_path_factory.mktemp("adapted"))
    yield built
    if built.engine is not None:
        built.engine.engine_core.shutdown()


async def published(
    held: Held, path: Path, channel: Mailbox, served: type[ServedAdapter] = ServedAdapter
) -> tuple[Any, Decoder]:
    """Publish three versions of a trained adapter; returns the generator with the last one."""
    decoder = build(held.model_spec())
    learning = trainer(decoder, optimizer=Optimizer(lr=0.03), channel=channel)
    serving = held.serving(channel, served)
    generators = InlineCluster[Generator]([serving])
    await learning.start()
    await serving.start()
    with closing(Journal(path / "journal.db")) as journal:
        publisher = Publisher(
            trainers=InlineCluster[Trainer]([learning]),
            generators=generators,
            router=Router(generators),
            journal=journal,
            canary=canary_for(vocab=40, max_seq_len=contract.CONTEXT),
        )
        try:
            for version in range(3):
                if version:
                    await learning.update(batch_of(ROWS), LOSS)
                await publisher.publish(version)
        except BaseException:
            await serving.stop()
            raise
        journal.flush()
        assert len({entry.event.digest for entry in journal.events(WeightsPublished)}) == 3
    return serving, decoder


def test_every_version_is_attested_and_served_as_the_trainer_computes(held: Held, tmp_path: Path) -> None:
    async def run() -> tuple[Any, Any]:
        serving, decoder = await published(held, tmp_path, Mailbox())
        assert len(held.engine.list_loras()) == 1, "the version before is gone"
        contexts = [request(str(at), ids, 24, sampling=GREEDY) for at, ids in enumerate(ROWS)]
        await serving.submit(contexts)
        theirs = await collect(serving, len(contexts))
        await serving.stop()
        assert held.engine.list_loras() == set()
        return theirs, await serve(generator(decoder), contexts)

    theirs, ours = asyncio.run(run())
    for name, reply in ours.items():
        same = next(
            (at for at, pair in enumerate(zip(reply.ids, theirs[name].ids, strict=True)) if len({*pair}) > 1), 24
        )
        gaps = [abs(theirs[name].logprobs[at] - reply.logprobs[at]) for at in range(same)]
        assert same > 4 and max(gaps) < 1e-3


def test_an_adapter_that_is_pinned_is_refused(held: Held, tmp_path: Path) -> None:
    class Pinned(ServedAdapter):
        """Keeps its first adapter and ignores later ones."""

        def replace(self, tensors: Iterable[tuple[str, torch.Tensor]], version: int) -> None:
            if version == 0:
                super().replace(tensors, version)

    with pytest.raises(RunStopped, match=r"version 1: generator 0 .* nothing was delivered, it still holds version 0"):
        asyncio.run(published(held, tmp_path, Mailbox(), Pinned))


def test_an_adapter_that_arrives_and_is_not_used_is_refused(held: Held, tmp_path: Path) -> None:
    class Unused(ServedAdapter):
        """Accepts every adapter and serves the model without it."""

        def replace(self, tensors: Iterable[tuple[str, torch.Tensor]], version: int) -> None:
            super().replace(tensors, version)
            self.kept, self.request = self.request, None

        def drop(self) -> None:
            self.request = getattr(self, "kept", None)
            super().drop()

    with pytest.raises(RunStopped, match=r"version 1: generator 0 .* computes differently"):
        asyncio.run(published(held, tmp_path, Mailbox(), Unused))


def test_an_adapter_in_a_directory_is_served_from_the_start(held: Held, tmp_path: Path) -> None:
    decoder = build(held.model_spec())
    with torch.no_grad():
        for name, tensor in decoder.adapter_tensors():
            if name.endswith("lora_B.weight"):
                tensor.normal_(0, 0.1, generator=torch.Generator().manual_seed(0))
    write_adapter(tmp_path, LORA, decoder.adapter_tensors(), base=None)

    async def run() -> Any:
        engine = held.serving(Mailbox())
        await engine.start()
        engine._adapter = ServedAdapter(held.engine, LORA.model_copy(update={"path": str(tmp_path)}), "float32")
        contexts = [request("r", ROWS[0], 12, sampling=GREEDY)]
        await engine.submit(contexts)
        result = (await collect(engine, 1))["r"]
        await engine.stop()
        return result, (await serve(generator(decoder), contexts))["r"]

    theirs, ours = asyncio.run(run())
    assert theirs.ids == ours.ids
    assert (tmp_path / "adapter_config.json").is_file(), "what was there before stays"
