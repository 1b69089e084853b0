"""The real SGLang: it fulfils the contract of a generator, agrees with the trainer, and serves delivered weights."""

import asyncio
import json
from collections.abc import Iterator
from contextlib import closing
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from roll.algorithms.recipe import Objective
from roll.cluster.inline import InlineCluster
from roll.commands import train as commands
from roll.config.load import load
from roll.config.schema import Model, Optimizer
from roll.engines.base import Generator, Output, Trainer
from roll.engines.native.decoder import Decoder
from roll.engines.native.model_spec import ModelSpec
from roll.engines.sglang.engine import Engine
from roll.engines.sglang.generator import SglangGenerator, SglangSettings
from roll.errors import ConfigError, RunStopped
from roll.journal.events import WeightsPublished
from roll.journal.store import Journal, Reader
from roll.serving.canary import canary_for
from roll.serving.publisher import Publisher
from roll.serving.router import Router
from roll.types import Finish, Sampling, Spec, Task
from roll.weights.channel import Channel, Mailbox, Shared
from roll.weights.digest import Digest, digest
from roll.weights.huggingface import write_model
from tests.engines import contract
from tests.engines.models import Answer, batch_of, collect, generator, prompts, request, serve, trainer, twin
from tests.engines_optional.conftest import model

pytestmark = pytest.mark.skipif(
    find_spec("sglang") is None, reason="SGLang is not installed; `make test-sglang` has it"
)
LOSS = Objective(loss=Spec("policy_gradient"))
GREEDY = Sampling(temperature=0)
ROWS = prompts(12, shortest=3, longest=40, seed=4)


class Engines:
    """The last SGLang engine: a process has one at a time, and tests of the same model share it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = ""
        self.engine: Engine | None = None

    def serving(self, decoder: Decoder, name: str, channel: Channel | None = None, **changes: Any) -> SglangGenerator:
        """A new generator over the engine of this model."""
        numbers: dict[str, Any] = {
            "max_seq_len": contract.CONTEXT,
            "max_running_requests": 8,
            "chunked_prefill_size": 512,
            "progress_interval": 64,
        }
        shared, path = self, self.path / name
        if not path.exists():
            write_model(path, decoder.config, dict(decoder.named_tensors()))

        class Reused(SglangGenerator):
            async def start(self) -> None:
                if shared.name != name:
                    shared.stop()
                    await super().start()
                    shared.name, shared.engine = name, self._engine
                self._engine = shared.engine

            async def stop(self) -> None:
                self._started.drain()

        return Reused(
            ModelSpec(model=Model(path=str(path))), SglangSettings(**{**numbers, **changes}), channel or Shared()
        )

    def stop(self) -> None:
        if self.engine is not None:
            self.engine.stop()
        self.name, self.engine = "", None


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engines]:
    built = Engines(tmp_path_factory.mktemp("models"))
    yield built
    built.stop()


async def scored(decoder: Decoder, rows: list[list[int]], sampling: Sampling) -> tuple[torch.Tensor, ...]:
    engine = trainer(twin(decoder), sampling=sampling)
    await engine.start()
    return (await engine.logprobs(batch_of(rows))).split([len(row) for row in rows])


@pytest.mark.parametrize("promise", contract.GENERATOR)
def test_sglang_fulfils_the_contract_of_a_generator(promise: Any, engines: Engines) -> None:
    asyncio.run(promise(engines.serving(model(), "qwen3")))


def test_sglang_can_be_probed(engines: Engines) -> None:
    engine = engines.serving(model(), "qwen3")
    asyncio.run(contract.a_probe_speaks_of_every_token_and_leaves_nothing_behind(engine, engine))


@pytest.mark.parametrize(
    "sampling",
    [GREEDY, Sampling(), Sampling(temperature=0.7, top_k=5), Sampling(temperature=1.3, top_p=0.8)],
    ids=str,
)
def test_tokens_and_logprobs_equal_the_native_generators(sampling: Sampling, engines: Engines) -> None:
    contexts = [request(str(at), ids, 24, sampling=sampling) for at, ids in enumerate(ROWS)]
    theirs = asyncio.run(serve(engines.serving(model(), "qwen3"), contexts))
    ours = asyncio.run(serve(generator(model()), contexts))
    for one in contexts:
        assert theirs[one.id].ids == ours[one.id].ids
        torch.testing.assert_close(
            torch.tensor(theirs[one.id].logprobs), torch.tensor(ours[one.id].logprobs), atol=1e-3, rtol=0
        )


def test_requests_with_different_sampling_share_a_batch(engines: Engines) -> None:
    kinds = [GREEDY, Sampling(), Sampling(temperature=0.7, top_k=5)]
    contexts = [request(str(at), ids, 24, sampling=kinds[at % 3]) for at, ids in enumerate(ROWS)]
    theirs = asyncio.run(serve(engines.serving(model(), "qwen3"), contexts))
    ours = asyncio.run(serve(generator(model()), contexts))
    assert all(theirs[one.id].ids == ours[one.id].ids for one in contexts)


def test_progress_is_reported_and_a_resumed_request_continues_from_it(engines: Engines) -> None:
    async def run() -> tuple[list[Output], Answer]:
        engine = engines.serving(model(), "qwen3", progress_interval=5)
        await engine.start()
        whole = request("whole", [1, 2, 3], 17)
        await engine.submit([whole])
        parts: list[Output] = []
        while not parts or parts[-1].finish is None:
            parts += await engine.events(1.0)
        reply = [token for part in parts[:2] for token in part.ids]
        rest = request("rest", [*whole.ids, *reply], 17 - len(reply), key=whole.key, produced=len(reply))
        await engine.submit([rest])
        return parts, (await collect(engine, 1))["rest"]

    parts, rest = asyncio.run(run())
    assert [len(part.ids) for part in parts] == [5, 5, 5, 2]
    assert [part.finish for part in parts] == [None, None, None, Finish.LENGTH]
    assert (*parts[0].ids, *parts[1].ids, *rest.ids) == tuple(token for part in parts for token in part.ids)


def test_prompts_longer_than_a_chunk_are_computed_in_parts_and_can_be_aborted(engines: Engines) -> None:
    async def run() -> dict[str, Answer]:
        engine = engines.serving(model(), "chunked", chunked_prefill_size=16)
        await engine.start()
        await engine.submit([request("aborted", range(1, 40), 24)])
        engine._advance()
        await engine.abort(["aborted"])
        assert (await collect(engine, 1))["aborted"].finish is Finish.ABORT
        await engine.submit(contexts)
        return await collect(engine, len(contexts))

    contexts = [request(str(at), ids, 24, sampling=GREEDY) for at, ids in enumerate(ROWS)]
    theirs, ours = asyncio.run(run()), asyncio.run(serve(generator(model()), contexts))
    assert all(theirs[one.id].ids == ours[one.id].ids for one in contexts)


def test_preempted_requests_are_counted_and_lose_nothing(engines: Engines) -> None:
    contexts = [request(str(at), [1, 2, at], 100) for at in range(8)]

    async def run() -> tuple[dict[str, Answer], int]:
        engine = engines.serving(model(), "crowded", max_total_tokens=400, disable_radix_cache=True)
        await engine.start()
        await engine.submit(contexts)
        return await collect(engine, 8), (await engine.statistics()).preempted

    theirs, preempted = asyncio.run(run())
    ours = asyncio.run(serve(generator(model()), contexts))
    assert preempted > 0
    assert all(theirs[one.id].ids == ours[one.id].ids for one in contexts)
    assert all(len(output.logprobs) == 100 for output in theirs.values())


async def published(
    engine: SglangGenerator, decoder: Decoder, path: Path, channel: Mailbox, versions: int
) -> list[Any]:
    learning = trainer(decoder, optimizer=Optimizer(lr=0.01), channel=channel)
    trainers, generators = InlineCluster[Trainer]([learning]), InlineCluster[Generator]([engine])
    await learning.start()
    await engine.start()
    with closing(Journal(path / "journal.db")) as journal:
        publisher = Publisher(
            trainers=trainers,
            generators=generators,
            router=Router(generators),
            journal=journal,
            canary=canary_for(vocab=40, max_seq_len=contract.CONTEXT),
        )
        for version in range(versions):
            await publisher.publish(version)
            await learning.update(batch_of(prompts(6, shortest=4, longest=12, seed=version)), LOSS)
        journal.flush()
        return [entry.event for entry in journal.events(WeightsPublished)]


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("qwen3 published", {}),
        ("llama untied", {"architecture": "llama", "tie_word_embeddings": False}),
        ("qwen2", {"architecture": "qwen2", "num_attention_heads": 2, "num_key_value_heads": 1}),
    ],
)
def test_ten_publications_in_a_row_are_attested(
    name: str, changes: dict[str, Any], engines: Engines, tmp_path: Path
) -> None:
    decoder, channel = model(**changes), Mailbox()
    engine = engines.serving(decoder, name, channel)
    result = asyncio.run(published(engine, decoder, tmp_path, channel, 10))
    assert len(result) == 10 and all(one.digest != other.digest for one, other in pairwise(result))


def test_undelivered_weights_end_the_run(engines: Engines, tmp_path: Path) -> None:
    decoder = model()
    engine = engines.serving(decoder, "undelivered", Shared())
    with pytest.raises(RunStopped, match=r"version 1: generator 0 .* nothing was delivered, it still holds version 0"):
        asyncio.run(published(engine, decoder, tmp_path, Mailbox(), 2))


def test_a_prefix_cache_that_is_not_reset_ends_the_run(engines: Engines, tmp_path: Path) -> None:
    decoder, channel = model(), Mailbox()
    engine = engines.serving(decoder, "stale", channel)
    engine._reset_prefix_cache = lambda version: None  # type: ignore[method-assign] - the fault itself
    with pytest.raises(RunStopped, match="version 1: generator 0 serves from a stale prefix cache"):
        asyncio.run(published(engine, decoder, tmp_path, channel, 2))


def test_a_cache_too_small_for_one_sequence_is_refused(engines: Engines) -> None:
    engines.stop()
    engine = engines.serving(model(), "small", max_total_tokens=64)
    with pytest.raises(ConfigError, match=r"actor_infer.max_total_tokens: the cache has 64 tokens"):
        asyncio.run(engine.start())


def test_a_model_that_sglang_cannot_load_is_refused_in_one_line(engines: Engines, tmp_path: Path) -> None:
    engines.stop()
    engine = engines.serving(model(), "broken")
    (engines.path / "broken" / "model.safetensors").unlink()
    with pytest.raises(ConfigError, match=r"^actor_infer: SGLang does not start \([^\n]+\); see its log above$"):
        asyncio.run(engine.start())
    asyncio.run(serve(engines.serving(model(), "qwen3"), [request("r", [1, 2], 4)]))


def test_a_second_engine_in_one_process_is_refused(engines: Engines) -> None:
    first, second = engines.serving(model(), "qwen3"), engines.serving(model(), "qwen3")
    asyncio.run(first.start())
    with pytest.raises(ConfigError, match="actor_infer: a process has one engine of SGLang"):
        asyncio.run(SglangGenerator.start(second))


def test_bf16_weights_are_attested_and_probed(engines: Engines) -> None:
    decoder, channel = model(), Mailbox()
    engine = engines.serving(decoder, "bf16", channel, dtype="bfloat16")
    tensors = [(name, tensor.detach().bfloat16()) for name, tensor in decoder.named_tensors()]

    async def run() -> tuple[Digest, Output]:
        await engine.start()
        await engine.pause()
        channel.send(tensors, version=1)
        return await engine.receive(1), await engine.probe(list(range(1, 30)), 4)

    received, probed = asyncio.run(run())
    assert received == digest(tensor for _, tensor in tensors)
    (scores,) = asyncio.run(scored(decoder, [[1, *probed.ids.tolist()]], Sampling()))
    assert (scores[1:] - torch.tensor(probed.logprobs)).abs().mean() < 0.02


def sevens(task: Task, reply: str) -> float:
    return reply.count("7") / 4


@pytest.mark.parametrize("staleness", [0, 1])
def test_a_run_learns_from_samples_of_sglang(staleness: int, engines: Engines, tmp_path: Path) -> None:
    engines.stop()
    (tmp_path / "run.yaml").write_text(f"""\
directory: {tmp_path}
steps: 12
threads: 1
model: {{shape: {{alphabet: "0123456789+=", hidden: 64, layers: 1, heads: 2, kv_heads: 2, mlp: 64, max_seq_len: 96}}}}
algorithm: grpo
tasks: [{{name: sums, data: {{kind: arithmetic, digits: 1}}, reward: "{__name__}:sevens"}}]
rollout: {{groups_per_step: 8, group_size: 8, max_seq_len: 96, max_new_tokens: 4, max_staleness: {staleness}}}
actor_train: {{devices: cpu, optimizer: {{lr: 1e-2}}}}
actor_infer: {{backend: sglang, max_running_requests: 64}}
tracking: {{tensorboard: false}}
""")
    commands.train(load(tmp_path / "run.yaml"), overwrite=False)
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    steps = [line for line in lines if line["step"]]
    rewards = [line["reward/mean"] for line in steps]
    assert sum(rewards[-3:]) / 3 > rewards[0] + 0.25
    assert max(line["sampler_mismatch/max"] for line in steps) < (1e-3 if staleness == 0 else 10)
    with closing(Reader(tmp_path / "run" / "journal.db")) as reader:
        published = [entry.event for entry in reader.events(WeightsPublished)]
    assert [event.version for event in published] == list(range(13))
    assert all("canary" in event.seconds for event in published)
