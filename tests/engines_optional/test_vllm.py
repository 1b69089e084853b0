"""The real vLLM: it fulfils the contract of a generator, agrees with the trainer, and serves the delivered weights."""

import asyncio
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from roll.algorithms.recipe import Objective
from roll.cluster.inline import InlineCluster
from roll.config.load import load
from roll.config.schema import Optimizer
from roll.engines.base import Generator, Output, Trainer
from roll.engines.native.decoder import Decoder
from roll.engines.native.model_spec import ModelSpec
from roll.engines.vllm.generator import VllmGenerator
from roll.errors import ConfigError, RunStopped
from roll.journal.events import WeightsPublished
from roll.journal.store import Journal
from roll.serving.canary import canary_for
from roll.serving.publisher import Publisher
from roll.serving.router import Router
from roll.types import Finish, Sampling, Spec
from roll.weights.channel import Mailbox, Shared
from roll.wiring.actor import build_canary, vllm_settings
from tests.engines import contract
from tests.engines.models import batch_of, collect, generator, prompts, request, serve, trainer, twin
from tests.engines_optional.conftest import NEEDS_VLLM, Engines, model

pytestmark = NEEDS_VLLM
LOSS = Objective(loss=Spec("policy_gradient"))
GREEDY = Sampling(temperature=0)
ROWS = prompts(12, shortest=3, longest=40, seed=4)


@pytest.mark.parametrize("promise", contract.GENERATOR)
def test_vllm_fulfils_the_contract_of_a_generator(promise: Any, engines: Engines) -> None:
    asyncio.run(promise(engines.serving(model(), "qwen3")))


def test_vllm_can_be_probed(engines: Engines) -> None:
    engine = engines.serving(model(), "qwen3")
    asyncio.run(contract.a_probe_speaks_of_every_token_and_leaves_nothing_behind(engine, engine))


def test_vllm_offloads_and_onloads(engines: Engines) -> None:
    engine = engines.serving(model(), "qwen3")
    asyncio.run(contract.replies_are_the_same_after_offload_and_onload(engine, engine))


@pytest.mark.parametrize("kind", ["qwen3", "llama untied"])
def test_greedy_tokens_equal_the_native_generators_except_at_near_ties(kind: str, engines: Engines) -> None:
    decoder = model("llama", tie_word_embeddings=False) if kind == "llama untied" else model()
    contexts = [request(str(at), ids, 32, sampling=GREEDY) for at, ids in enumerate(ROWS)]
    theirs = asyncio.run(serve(engines.serving(decoder, kind), contexts))
    ours = asyncio.run(serve(generator(decoder), contexts))
    for one in contexts:
        pairs = list(zip(theirs[one.id].ids, ours[one.id].ids, strict=True))
        same = next((at for at, (their, our) in enumerate(pairs) if their != our), len(pairs))
        gaps = [abs(theirs[one.id].logprobs[at] - ours[one.id].logprobs[at]) for at in range(same)]
        assert max(gaps, default=0.0) < 1e-3
        if same < len(pairs):
            assert margin(decoder, [*one.ids, *ours[one.id].ids[:same]]) < 1e-3


def margin(decoder: Decoder, ids: list[int]) -> float:
    """Difference between the two largest next-token logprobs."""
    rows = [[*ids, token] for token in range(decoder.shape.vocab)]
    scores = asyncio.run(scored(decoder, rows, Sampling()))
    first, second = torch.stack([row[-1] for row in scores]).topk(2).values.tolist()
    return first - second


async def scored(decoder: Decoder, rows: list[list[int]], sampling: Sampling) -> tuple[torch.Tensor, ...]:
    engine = trainer(twin(decoder), sampling=sampling)
    await engine.start()
    return (await engine.logprobs(batch_of(rows))).split([len(row) for row in rows])


@pytest.mark.parametrize(
    "sampling", [Sampling(), Sampling(temperature=0.7, top_k=12), Sampling(temperature=1.3, top_p=0.8)], ids=str
)
def test_logprobs_are_those_of_the_distribution_sampled_from(sampling: Sampling, engines: Engines) -> None:
    contexts = [request(str(at), ids, 24, sampling=sampling) for at, ids in enumerate(ROWS)]
    result = asyncio.run(serve(engines.serving(model(), "qwen3"), contexts))
    rows = [[*one.ids, *result[one.id].ids] for one in contexts]
    for one, row in zip(contexts, asyncio.run(scored(model(), rows, sampling)), strict=True):
        sampled = torch.tensor(result[one.id].logprobs)
        torch.testing.assert_close(row[-len(sampled) :], sampled, atol=1e-3, rtol=0)


def test_progress_is_reported_and_a_resumed_request_continues_from_it(engines: Engines) -> None:
    async def run() -> tuple[list[Output], Output]:
        engine = engines.serving(model(), "qwen3", progress_interval=5)
        await engine.start()
        whole = request("whole", [1, 2, 3], 17, sampling=GREEDY)
        await engine.submit([whole])
        parts: list[Output] = []
        while not parts or parts[-1].finish is None:
            parts += await engine.events(1.0)
        reply = [token for part in parts[:2] for token in part.ids]
        rest = request("rest", [*whole.ids, *reply], 17 - len(reply), sampling=GREEDY, produced=len(reply))
        await engine.submit([rest])
        return parts, (await collect(engine, 1))["rest"]

    parts, rest = asyncio.run(run())
    assert [len(part.ids) for part in parts] == [5, 5, 5, 2]
    assert [part.finish for part in parts] == [None, None, None, Finish.LENGTH]
    assert (*parts[0].ids, *parts[1].ids, *rest.ids) == tuple(token for part in parts for token in part.ids)


def test_preempted_requests_are_counted(engines: Engines) -> None:
    async def run() -> tuple[int, int]:
        engine = engines.serving(
            model(), "crowded", kv_cache_gib=12 * 32 * 2 * 2 * 2 * 32 * 4 / 2**30, enable_prefix_caching=False
        )
        await engine.start()
        before = (await engine.statistics()).preempted
        await engine.submit([request(str(at), [1, 2, at], 100) for at in range(8)])
        result = await collect(engine, 8)
        assert all(len(output.ids) == 100 for output in result.values())
        return before, (await engine.statistics()).preempted

    before, after = asyncio.run(run())
    assert after > before


def test_statistics_are_off_if_the_cache_has_room_for_all(engines: Engines) -> None:
    async def run() -> tuple[Any, int]:
        engine = engines.serving(model(), "qwen3")
        await engine.start()
        await engine.submit([request(str(at), [1, 2, at], 100) for at in range(8)])
        await collect(engine, 8)
        return engine._engine, (await engine.statistics()).preempted

    result, preempted = asyncio.run(run())
    cache = result.vllm_config.cache_config
    assert (result.log_stats, preempted) == (False, 0)
    assert cache.num_gpu_blocks * cache.block_size > 8 * contract.CONTEXT


async def published(engine: VllmGenerator, decoder: Decoder, path: Path, channel: Mailbox, versions: int) -> list[Any]:
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
        ("qwen3", {}),
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


@pytest.mark.skipif(torch.cuda.device_count() == 1, reason="two processes need two GPUs, or none at all")
@pytest.mark.parametrize("heads", [2, 1])
def test_shards_of_two_processes_are_attested_together(heads: int, engines: Engines, tmp_path: Path) -> None:
    """With one key head both processes hold it, and it counts once."""
    decoder, channel = model(num_key_value_heads=heads), Mailbox()
    engine = engines.serving(decoder, f"tp2 {heads}", channel, tp=2)
    assert len(asyncio.run(published(engine, decoder, tmp_path, channel, 10))) == 10


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


def test_heads_that_are_not_divisible_are_refused(tmp_path: Path, engines: Engines) -> None:
    engine = engines.serving(model(), "three", tp=3)
    with pytest.raises(
        ConfigError, match=r"actor_infer.parallel.tp: 4 attention heads are not divisible by it \(got 3\)"
    ):
        asyncio.run(engine.start())


def test_a_config_with_vllm_builds_it_from_a_shape(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text("""\
model: {shape: {hidden: 64, heads: 2, kv_heads: 2, layers: 1, mlp: 64, alphabet: "0123456789+=", max_seq_len: 128}}
algorithm: grpo
tasks: [{name: sums, data: {kind: arithmetic}, reward: exact}]
rollout: {max_seq_len: 96, max_new_tokens: 8}
actor_infer: {backend: vllm, max_num_seqs: 8, kv_cache_gib: 0.25, enforce_eager: true}
""")
    run = load(tmp_path / "run.yaml").run
    engine = VllmGenerator(ModelSpec(model=run.model, seed=3), vllm_settings(run, run.actor_infer), Shared())
    canary = build_canary(run)
    assert canary is not None and len(canary.ids) == 64
    result = asyncio.run(serve(engine, [request("r", [3, 4], 8)]))
    assert len(result["r"].ids) == 8
