"""Weights that do not arrive, arrive in part or are not used: faults that others trained with for months, put back in.

Each is one class; the run must refuse to go on and name it.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch

from roll.algorithms.recipe import Objective
from roll.cluster.inline import InlineCluster
from roll.config.schema import Optimizer
from roll.engines.base import Generator, Output, Probeable, Trainer
from roll.engines.fake import FakeGenerator, FakeTrainer
from roll.engines.native.decoder import Decoder
from roll.engines.native.generator import NativeGenerator
from roll.errors import RunStopped
from roll.journal.events import WeightsPublished
from roll.journal.store import Journal
from roll.serving.canary import Canary, canary_for
from roll.serving.publisher import Publisher
from roll.serving.router import Router
from roll.types import Spec
from roll.weights.channel import Mailbox, Transport
from roll.weights.digest import Digest, digest
from tests.engines.models import batch_of, generator, prompts, small, trainer, twin

LOSS = Objective(loss=Spec("policy_gradient"))
CANARY = canary_for(vocab=40, max_seq_len=128)


class Pinned(NativeGenerator):
    """Keeps the first version and ignores later ones (verl#7495)."""

    first: Decoder | None = None

    async def receive(self, version: int) -> Digest:
        await super().receive(version)
        if self.first is None:
            self.first = twin(self.decoder)
        self.decoder.load(self.first.named_tensors(), where="the first version")
        return digest(self.decoder.parameters())


class Undelivered(Mailbox):
    """Delivers nothing after the first version, silently (trl#5312)."""

    def receive(self, *, version: int) -> Iterable[tuple[str, torch.Tensor]]:
        tensors = super().receive(version=version)
        return tensors if version == 0 else ()


class StaleShard(Mailbox):
    """The second half of one matrix is always that of the first version (SkyRL#1345)."""

    first: torch.Tensor | None = None

    def receive(self, *, version: int) -> Iterable[tuple[str, torch.Tensor]]:
        for name, tensor in super().receive(version=version):
            if not name.endswith("1.mlp.down_proj.weight"):
                yield name, tensor
                continue
            whole = tensor.detach().clone()
            if self.first is None:
                self.first = whole.clone()
            whole[16:] = self.first[16:]
            yield name, whole


class StaleCache(NativeGenerator):
    """Keeps keys and values of earlier contexts across weight updates (NeMo-RL#4018)."""

    saved: dict[tuple[int, ...], tuple[torch.Tensor, torch.Tensor]]

    def _run_prefill(self, fresh: dict[tuple[int, ...], list[int]]) -> tuple[torch.Tensor, torch.Tensor]:
        self.saved = getattr(self, "saved", {})
        hidden, cache = super()._run_prefill(fresh), self._cache
        assert cache is not None
        for ids, slots in fresh.items():
            keys, values = self.saved.setdefault(
                ids, (cache.keys[:, slots[0]].clone(), cache.values[:, slots[0]].clone())
            )
            for slot in slots:
                cache.keys[:, slot], cache.values[:, slot] = keys, values
        return hidden


class Turned(NativeGenerator):
    """Transposes one square matrix, which digests do not detect."""

    async def receive(self, version: int) -> Digest:
        await super().receive(version)
        layer: Any = self.decoder.layers[0]
        layer.out.data = layer.out.data.t().contiguous()
        return digest(self.decoder.parameters())


class Negated(NativeGenerator):
    """Flips the signs of two weights, which digests do not detect either."""

    async def receive(self, version: int) -> Digest:
        found = await super().receive(version)
        layer: Any = self.decoder.layers[0]
        layer.out.data[0, :2] *= -1
        assert digest(self.decoder.parameters()) == found
        return found


def serving(kind: type[NativeGenerator], channel: Mailbox, decoder: Decoder) -> NativeGenerator:
    return kind(twin(decoder), generator(decoder).settings, channel)


async def published(
    path: Path,
    kind: type[NativeGenerator],
    channel: Mailbox,
    *,
    versions: int = 4,
    canary: Canary | None = CANARY,
    moves: bool = True,
) -> list[WeightsPublished]:
    """Publish `versions` versions of a training model to one generator."""
    decoder = small()
    learning = trainer(decoder, optimizer=Optimizer(lr=0.03), channel=channel)
    trainers = InlineCluster[Trainer]([learning])
    generators = InlineCluster[Generator]([serving(kind, channel, decoder)])
    await learning.start()
    await generators.each(Generator.start)
    router = Router(generators)
    with closing(Journal(path / "journal.db")) as journal:
        publisher = Publisher(
            trainers=trainers,
            generators=generators,
            router=router,
            journal=journal,
            transport=Transport(moves=moves),
            canary=canary,
        )
        try:
            for version in range(versions):
                await publisher.publish(version)
                await learning.update(batch_of(prompts(6, shortest=4, longest=12, seed=version)), LOSS)
        finally:
            journal.flush()
            found = [entry.event for entry in journal.events(WeightsPublished)]
            assert [event.version for event in found] == list(range(publisher.version + 1)), "what is served"
    return found


@pytest.mark.slow
def test_ten_publications_in_a_row_are_attested_and_their_cost_is_in_the_journal(tmp_path: Path) -> None:
    found = asyncio.run(published(tmp_path, NativeGenerator, Mailbox(), versions=10))
    assert len({event.digest for event in found}) == 10
    assert all(set(event.seconds) == {"hold", "send", "receive", "canary"} for event in found)


def test_without_a_transfer_the_canary_checks_the_first_version_only(tmp_path: Path) -> None:
    found = asyncio.run(published(tmp_path, NativeGenerator, Mailbox(), versions=3, moves=False))
    assert ["canary" in event.seconds for event in found] == [True, False, False]


@pytest.mark.parametrize(
    ("kind", "channel", "named"),
    [
        (Pinned, Mailbox, "version 1: generator 0 .* nothing was delivered, it still holds version 0"),
        (NativeGenerator, Undelivered, "version 1: generator 0 .* nothing was delivered, it still holds version 0"),
        (NativeGenerator, StaleShard, "version 1: generator 0 .* a part is stale"),
        (StaleCache, Mailbox, "version 1: generator 0 serves from a stale prefix cache"),
        (Turned, Mailbox, "version 0: generator 0 .* computes differently"),
        (Negated, Mailbox, "version 0: generator 0 .* computes differently"),
    ],
    ids=["pinned", "undelivered", "stale shard", "stale cache", "turned", "negated"],
)
def test_a_faulty_publication_ends_the_run_and_names_the_fault(
    kind: type[NativeGenerator], channel: Callable[[], Mailbox], named: str, tmp_path: Path
) -> None:
    with pytest.raises(RunStopped, match=named):
        asyncio.run(published(tmp_path, kind, channel()))


class Rounding(NativeGenerator):
    """Stores its weights in lower precision than the trainer."""

    async def receive(self, version: int) -> Digest:
        await super().receive(version)
        return digest(parameter.to(torch.bfloat16) for parameter in self.decoder.parameters())


def test_weights_of_another_dtype_are_named_by_it(tmp_path: Path) -> None:
    with pytest.raises(RunStopped, match=r"it has torch.bfloat16 where torch.float32 was sent"):
        asyncio.run(published(tmp_path, Rounding, Mailbox()))


def test_without_a_canary_only_digests_are_compared(tmp_path: Path) -> None:
    found = asyncio.run(published(tmp_path, StaleCache, Mailbox(), canary=None))
    assert [set(event.seconds) for event in found] == [{"hold", "send", "receive"}] * 4


def test_a_generator_that_falls_back_is_named_by_the_version_it_holds(tmp_path: Path) -> None:
    class Replaced(Pinned):
        async def receive(self, version: int) -> Digest:
            if version < 3:
                found = await NativeGenerator.receive(self, version)
                self.first = twin(self.decoder) if version == 1 else self.first
                return found
            return await super().receive(version)

    with pytest.raises(RunStopped, match=r"version 3: generator 0 .* it still holds version 1"):
        asyncio.run(published(tmp_path, Replaced, Mailbox()))


def test_a_canary_has_tokens_from_all_over_the_vocabulary_and_fits_a_short_context() -> None:
    long = canary_for(vocab=150_000, max_seq_len=4096)
    assert (len(long.ids), long.num_new) == (64, 2) and len(set(long.ids)) > 60 and max(long.ids) > 100_000
    assert long == canary_for(vocab=150_000, max_seq_len=4096)
    rounded = canary_for(vocab=150_000, max_seq_len=4096, exact=False)
    assert (len(rounded.ids), rounded.num_new) == (64, 4)
    short = canary_for(vocab=12, max_seq_len=16)
    assert len(short.ids) + short.num_new == 16 and max(short.ids) < 12
    shortest = canary_for(vocab=12, max_seq_len=2)
    assert (len(shortest.ids), shortest.num_new) == (1, 1)


class Rounded(FakeGenerator):
    """Adds an error to the canary's logprobs, and another to those of the tokens after it."""

    def __init__(self, read: float, served: float) -> None:
        super().__init__()
        self.read, self.served = read, served

    async def probe(self, ids: Sequence[int], num_new: int) -> Output:
        output = await super().probe(ids, num_new)
        logprobs = [-1.0 - self.read] * (len(ids) - 1) + [-1.0 - self.served] * num_new
        return Output.of(output.id, output.ids.tolist(), logprobs, version=output.version, finish=output.finish)


class Certain(FakeTrainer):
    """Finds every token equally likely."""

    async def logprobs(self, batch: Any, *, sampling: Any = None) -> torch.Tensor:
        return torch.full((batch.num_tokens,), -1.0)


@pytest.mark.parametrize(
    ("kind", "read", "served", "fault"),
    [
        ("torch.float32", 0.0009, 0.0009, None),
        ("torch.float32", 0.0011, 0.0, "computes differently"),
        ("torch.float32", 0.0, 0.0011, "stale prefix cache"),
        ("torch.float32", float("nan"), 0.0, "computes differently"),
        ("torch.bfloat16", 0.019, 0.019, None),
        ("torch.bfloat16", 0.021, 0.0, "computes differently"),
        ("torch.bfloat16", 0.0, float("nan"), "stale prefix cache"),
    ],
)
def test_the_tolerance_depends_on_the_dtype(kind: str, read: float, served: float, fault: str | None) -> None:
    async def check() -> float:
        trainers = InlineCluster[Trainer]([Certain()])
        generators = InlineCluster[Generator]([FakeGenerator(), Rounded(read, served)])
        await generators.each(Generator.pause)
        outputs = dict(enumerate(await generators.each(Probeable.probe, CANARY.ids, CANARY.num_new)))
        scores = await CANARY.score(trainers, outputs.values())
        return CANARY.check(outputs, scores, version=5, dtypes={kind})

    if fault is None:
        assert asyncio.run(check()) == pytest.approx(max(read, served), rel=1e-3)
        return
    with pytest.raises(RunStopped, match=f"version 5: generator 1 .*{fault}"):
        asyncio.run(check())


class Faulty(FakeTrainer):
    """Raises an unexpected error when it sends."""

    async def send(self, version: int) -> Digest:
        raise ZeroDivisionError(version)


class Waiting(FakeGenerator):
    """Waits for its sender without end."""

    async def receive(self, version: int) -> Digest:
        await asyncio.Event().wait()
        return await super().receive(version)


def test_an_unexpected_error_of_one_end_of_a_broadcast_is_raised_while_the_others_wait(tmp_path: Path) -> None:
    async def run() -> None:
        generators = InlineCluster[Generator]([Waiting(), Waiting()])
        router = Router(generators, max_wait_s=0.01)
        with closing(Journal(tmp_path / "journal.db")) as journal:
            publisher = Publisher(
                trainers=InlineCluster[Trainer]([Faulty()]),
                generators=generators,
                router=router,
                journal=journal,
                transport=Transport(concurrent=True),
            )
            routing = asyncio.create_task(router.run())
            async with asyncio.timeout(60):
                with pytest.raises(ZeroDivisionError):
                    await publisher.publish(0)
            routing.cancel()

    asyncio.run(run())
