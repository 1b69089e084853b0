"""The paged generator: its contract, the tokens of the slot generator, and pages that all come back."""

import asyncio
from collections import Counter
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from roll.commands import train as commands
from roll.config.load import load
from roll.engines.native import sampling
from roll.engines.native.build import generator_of
from roll.engines.native.decode_rows import MOST_STOPS, row_counts, uniforms
from roll.engines.native.generator import NativeGeneratorSettings
from roll.engines.native.paged_generator import PagedGenerator
from roll.engines.native.pages import PagePool
from roll.errors import ConfigError, EngineFailed
from roll.journal.events import WeightsPublished
from roll.journal.store import Journal
from roll.preflight import preflight
from roll.tracking.sinks import read_lines
from roll.types import Finish, Sampling
from roll.weights.channel import Channel, Mailbox, Shared
from tests.engines import contract
from tests.engines.models import CPU, batch_of, generator, prompts, request, serve, small, trainer, twin


def paged(channel: Channel | None = None, **changes: Any) -> PagedGenerator:
    numbers: dict[str, Any] = {
        "max_num_seqs": 8,
        "max_seq_len": 128,
        "max_num_batched_tokens": 8192,
        "progress_interval": 64,
        "device": CPU,
        **changes,
    }
    return PagedGenerator(small(), NativeGeneratorSettings(**numbers), channel or Shared())


@pytest.mark.parametrize("promise", contract.GENERATOR)
def test_it_fulfils_the_contract_of_a_generator(promise: Any) -> None:
    asyncio.run(promise(paged(steps_per_read=1)))


def test_it_can_be_probed_and_all_pages_come_back() -> None:
    engine = paged()
    asyncio.run(contract.a_probe_speaks_of_every_token_and_leaves_nothing_behind(engine, engine))
    assert engine.num_free_pages == engine.num_pages - 1


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"max_num_seqs": 3},
        {"max_num_seqs": 20, "max_seq_len": 300},
        {"kv_cache_gib": 0.0006, "max_seq_len": 256},
        {"steps_per_read": 1},
        {"max_num_batched_tokens": 50, "progress_interval": 7},
    ],
)
@pytest.mark.parametrize("kind", [Sampling(), Sampling(temperature=0.7, top_k=9, top_p=0.8)])
def test_tokens_are_those_of_the_slot_generator_in_any_order_of_admission(
    changes: dict[str, Any], kind: Sampling
) -> None:
    contexts = prompts(24, shortest=1, longest=100, seed=4)
    requests = [
        request(
            f"{at}-{sibling}",
            ids,
            3 + (7 * at + 5 * sibling) % 24,
            key=10 * at + sibling,
            stop=frozenset({5}),
            sampling=Sampling(temperature=0) if sibling == 2 else kind,
        )
        for at, ids in enumerate(contexts)
        for sibling in range(3)
    ]
    engine = paged(**changes)
    actual = asyncio.run(serve(engine, requests))
    expected = asyncio.run(serve(generator(small(), context=300), requests))
    assert engine.num_free_pages == engine.num_pages - 1
    for name, answer in expected.items():
        assert (actual[name].ids, actual[name].finish) == (answer.ids, answer.finish), name
        np.testing.assert_allclose(actual[name].logprobs, answer.logprobs, atol=1e-4)


def test_an_abort_reads_steps_in_which_requests_have_ended() -> None:
    async def abort() -> list[Finish | None]:
        engine = paged(max_num_seqs=32, steps_per_read=4)
        await engine.start()
        await engine.submit([request(f"{at}", [1, 2], 100 if at == 17 else 2, stop=frozenset()) for at in range(32)])
        outputs = asyncio.create_task(engine.events(60.0))
        await asyncio.sleep(0)  # four steps have been started
        await engine.abort()
        return [output.finish for output in await outputs]

    assert Counter(asyncio.run(abort())) == {Finish.LENGTH: 31, Finish.ABORT: 1}


def test_in_16_bits_its_logprobs_are_those_of_the_trainer() -> None:
    decoder = small(vocab_size=64)
    engine = PagedGenerator(twin(decoder), paged(dtype=torch.bfloat16).settings, Shared())
    answers = asyncio.run(serve(engine, [request(str(at), ids, 20) for at, ids in enumerate(prompts(8))]))
    rows = [[*ids, *answers[str(at)].ids] for at, ids in enumerate(prompts(8))]
    learner = trainer(decoder)
    asyncio.run(learner.start())
    scored = asyncio.run(learner.logprobs(batch_of(rows)))
    start, gaps = 0, []
    for at, row in enumerate(rows):
        new = len(answers[str(at)].ids)
        gaps.append(scored[start + len(row) - new : start + len(row)].numpy() - answers[str(at)].logprobs)
        start += len(row)
    assert np.abs(np.concatenate(gaps)).mean() < 0.05


def test_new_weights_are_sampled_from_after_they_arrive() -> None:
    channel = Mailbox()
    engine, other = paged(channel), small(seed=1)
    context = [request("a", [1, 2, 3], 12)]

    async def exchange() -> None:
        await engine.start()
        await engine.pause()
        learner = trainer(other, channel=channel)
        await learner.start()
        sent = await learner.send(1)
        assert await engine.receive(1) == sent
        await engine.resume(1)

    asyncio.run(exchange())
    expected = asyncio.run(serve(generator(small(seed=1)), context))
    assert asyncio.run(serve(engine, context))["a"].ids == expected["a"].ids


def test_noise_on_the_device_is_that_of_the_host() -> None:
    keys = np.random.default_rng(0).integers(0, 2**64, 1000, dtype=np.uint64)
    positions = np.arange(1000, dtype=np.uint64)
    actual = uniforms(torch.from_numpy(keys.astype(np.int64)), torch.from_numpy(positions.astype(np.int64)))
    assert (actual.numpy() == sampling.uniforms(keys, positions)).all()


def test_a_page_is_free_when_its_last_user_releases_it() -> None:
    pool = PagePool(4)
    first, *_ = pages = pool.take(2)
    assert 0 not in pages and pool.num_free == 1
    pool.share([first])
    pool.release(pages)
    assert pool.num_free == 2
    pool.release([first])
    assert pool.num_free == 3


def test_the_numbers_of_rows_reach_the_most_and_grow_by_an_eighth() -> None:
    for most in (2, 8, 9, 100, 512, 1000):
        sizes = row_counts(most)
        assert sizes[-1] >= most and (len(sizes) == 1 or sizes[-2] < most)
        assert all(after - before <= max(8, before // 8) for before, after in pairwise(sizes))


def test_more_stop_tokens_than_rows_have_room_for_are_refused() -> None:
    with pytest.raises(EngineFailed, match="17 stop tokens, and the limit is 16"):
        asyncio.run(paged().submit([request("r", [1], stop=frozenset(range(MOST_STOPS + 1)))]))


def test_a_cache_without_room_for_one_sequence_is_refused_in_one_line() -> None:
    with pytest.raises(ConfigError, match=r"kv_cache_gib: .* takes 3 pages of 64 tokens and there are 0 .*; raise it$"):
        asyncio.run(paged(kv_cache_gib=1e-5).start())


def test_a_model_of_the_engine_hf_is_refused_before_anything_starts(tmp_path: Path) -> None:
    text = Path("examples/arithmetic.yaml").read_text()
    (tmp_path / "run.yaml").write_text(text)
    changes = ["model.engine=hf", "actor_train.dtype=bfloat16", "deterministic=false"]
    with pytest.raises(ConfigError, match="native samples models of the engine hf with float32 only"):
        preflight(load(tmp_path / "run.yaml", changes))


def test_only_float32_shares_the_module_of_the_trainer() -> None:
    file = Path("examples/arithmetic.yaml")
    assert load(file).run.shares_module
    assert not load(file, ["actor_train.dtype=bfloat16", "deterministic=false"]).run.shares_module


def test_the_dtype_chooses_the_generator() -> None:
    settings = paged().settings
    assert not isinstance(generator_of(small(), settings, Shared()), PagedGenerator)
    half = NativeGeneratorSettings(
        max_num_seqs=8,
        max_seq_len=64,
        max_num_batched_tokens=64,
        progress_interval=8,
        device=CPU,
        dtype=torch.bfloat16,
    )
    assert isinstance(generator_of(small(), half, Shared()), PagedGenerator)


@pytest.mark.parametrize("staleness", [0, 1])
def test_a_run_trains_in_16_bits_with_every_version_attested(staleness: int, tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(f"""\
name: half
directory: {tmp_path}
steps: 3
model: {{shape: {{hidden: 64, layers: 2, heads: 4, kv_heads: 2}}}}
algorithm: grpo
tasks: [{{name: sums, data: {{kind: arithmetic}}, reward: exact}}]
rollout: {{groups_per_step: 4, group_size: 4, max_seq_len: 96, max_new_tokens: 8, max_staleness: {staleness}}}
actor_train: {{dtype: bfloat16}}
""")
    commands.train(load(tmp_path / "run.yaml"), overwrite=False)
    lines = read_lines(tmp_path / "half/metrics.jsonl")
    mismatches = [line["sampler_mismatch/mean"] for line in lines if "sampler_mismatch/mean" in line]
    assert len(mismatches) == 3 and max(mismatches) < 0.02
    with closing(Journal(tmp_path / "half/journal.db")) as journal:
        versions = [entry.event.version for entry in journal.events(WeightsPublished)]
    assert versions == sorted(versions) and len(versions) >= 3


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["actor_train.dtype=bfloat16"], "deterministic: with bfloat16 tokens depend on the other requests"),
        (["actor_infer.kv_cache_gib=1"], "with float32 every sequence has a full cache"),
        (
            ["actor_train.dtype=bfloat16", "deterministic=false", "actor_train.lora={rank: 2}"],
            "samples with adapters in float32 only",
        ),
    ],
)
def test_what_it_does_not_support_is_refused_in_one_line(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load(Path("examples/arithmetic.yaml"), overrides)
