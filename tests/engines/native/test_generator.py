"""The native generator: right tokens, right logprobs, and the same bits in any batch."""

import asyncio
import random
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from roll.engines.base import Output, Request
from roll.engines.native.decoder import Decoder
from roll.types import Finish, Sampling
from tests.engines.models import (
    batch_of,
    collect,
    config,
    generator,
    ours,
    peer,
    prompts,
    request,
    serve,
    small,
    trainer,
)

pytestmark = pytest.mark.slow

GREEDY = Sampling(temperature=0.0)
KINDS = [
    Sampling(),
    Sampling(temperature=0.7),
    Sampling(top_p=0.9),
    Sampling(top_k=5),
    Sampling(temperature=0.7, top_p=0.9, top_k=5),
]


@pytest.mark.parametrize("architecture", ["llama", "qwen3"])
def test_greedy_tokens_equal_those_of_transformers(architecture: str) -> None:
    model = peer(config(architecture))
    contexts = prompts(9, shortest=1, longest=50)
    requests = [
        request(f"r{at}", ids, 6 + 5 * (at % 4), sampling=GREEDY) for at, ids in enumerate(contexts)
    ]  # fewer slots than requests, and unlike lengths: most are admitted while others decode
    result = asyncio.run(serve(generator(ours(model), slots=3), requests))
    for spec in requests:
        ids = torch.tensor([spec.ids])
        settings: dict[str, Any] = {"do_sample": False, "max_new_tokens": spec.max_new_tokens, "pad_token_id": 0}
        expected = model.generate(ids, attention_mask=torch.ones_like(ids), **settings)[0, len(spec.ids) :]
        assert list(result[spec.id].ids) == expected.tolist()


@pytest.mark.parametrize("kind", KINDS)
def test_trainer_and_sampler_give_a_token_the_same_logprob(kind: Sampling) -> None:
    decoder = small()
    contexts = prompts(8, longest=30)
    requests = [request(f"r{at}", ids, 12, sampling=kind) for at, ids in enumerate(contexts)]
    result = asyncio.run(serve(generator(decoder, slots=4), requests))
    rows = [[*spec.ids, *result[spec.id].ids] for spec in requests]
    scores = asyncio.run(_logprobs(decoder, rows, kind)).split([len(row) for row in rows])
    for spec, row in zip(requests, scores, strict=True):
        sampled = torch.tensor(result[spec.id].logprobs)
        assert (row[len(spec.ids) :] - sampled).abs().max() < 1e-4


@pytest.mark.parametrize("kind", [Sampling(top_k=3), Sampling(top_p=0.5)])
def test_no_token_outside_the_truncation_is_sampled(kind: Sampling) -> None:
    model = peer(config("llama"))
    requests = [request(f"r{at}", ids, 10, sampling=kind) for at, ids in enumerate(prompts(12, longest=20))]
    result = asyncio.run(serve(generator(ours(model)), requests))
    for spec in requests:
        sampled = torch.tensor(result[spec.id].ids)
        with torch.no_grad():
            logits = model(torch.tensor([[*spec.ids, *result[spec.id].ids]])).logits[0]
        likely = logits[len(spec.ids) - 1 : -1].softmax(-1)
        likelier = likely > likely.gather(1, sampled[:, None])
        assert (likelier.sum(-1) < (kind.top_k or 40)).all()
        assert ((likely * likelier).sum(-1) < kind.top_p + 1e-4).all()


# Rows of small matrix products take another path through the BLAS where the inner size is 768 or more.
WIDE = {"hidden_size": 64, "intermediate_size": 1536, "head_dim": 16}


@pytest.mark.parametrize("seed", [0, 1])
def test_a_request_gives_the_same_bits_alone_and_in_random_batches(seed: int) -> None:
    decoder = small("qwen3" if seed else "llama", **WIDE)
    chance = random.Random(seed)
    kinds = [*KINDS, GREEDY]
    contexts = [*prompts(14, shortest=1, longest=30, seed=seed), *prompts(3, shortest=200, longest=400, seed=seed)]
    requests = [
        request(f"r{at}", ids, chance.randint(1, 24), sampling=kinds[at % len(kinds)])
        for at, ids in enumerate(contexts)
    ]
    requests.append(request("sibling", contexts[0], 9, sampling=KINDS[0]))
    alone = {
        spec.id: asyncio.run(serve(generator(decoder, slots=2, context=448), [spec]))[spec.id] for spec in requests
    }
    for slots, prefill in ((3, 64), (17, 8192), (40, 8192)):
        chance.shuffle(requests)
        engine = generator(decoder, slots=slots, context=448, prefill_tokens=prefill, flush_tokens=1000)
        assert asyncio.run(_trickle(engine, requests, chance)) == alone


def test_a_request_is_the_same_for_any_number_of_slots() -> None:
    decoder = small("llama", **WIDE)
    spec = request("r", [1, 2, 3], 12)
    alone = asyncio.run(serve(generator(decoder, slots=2), [spec]))["r"]
    for num in (1, 2, 3, 5, 8, 13, 20, 33):
        company = [request(f"c{at}", ids, 3 + at) for at, ids in enumerate(prompts(num, longest=12, seed=num))]
        result = asyncio.run(serve(generator(decoder, slots=num + 1), [*company[::2], spec, *company[1::2]]))
        assert result["r"] == alone


@pytest.mark.parametrize("kind", [Sampling(), Sampling(temperature=0.7, top_k=5)])
def test_a_resumed_request_continues_with_the_same_tokens(kind: Sampling) -> None:
    decoder = small()
    ids = [3, 1, 4, 1, 5]
    whole = asyncio.run(serve(generator(decoder), [request("r", ids, 20, key=11, sampling=kind)]))["r"]
    for cut in (1, 7, 19):
        rest = request("r", [*ids, *whole.ids[:cut]], 20 - cut, key=11, sampling=kind, produced=cut)
        resumed = asyncio.run(serve(generator(decoder), [rest]))["r"]
        assert resumed.ids == whole.ids[cut:]
        torch.testing.assert_close(
            torch.tensor(resumed.logprobs), torch.tensor(whole.logprobs[cut:]), rtol=0, atol=1e-4
        )


def test_siblings_share_a_prefill_and_differ_by_their_keys() -> None:
    decoder = small()
    requests = [request(f"r{at}", [1, 2, 3, 4], 10, key=at) for at in range(6)]
    together = asyncio.run(serve(generator(decoder, slots=4), requests))
    assert len({output.ids for output in together.values()}) > 1
    for spec in requests:
        assert asyncio.run(serve(generator(decoder), [spec]))[spec.id] == together[spec.id]


def test_progress_is_reported_every_progress_interval() -> None:
    async def outputs() -> list[Output]:
        engine = generator(small(), flush_tokens=3)
        await engine.start()
        await engine.submit([request("r", [1, 2], 8)])
        result: list[Output] = []
        while not result or result[-1].finish is None:
            result += await engine.events(1.0)
        return result

    result = asyncio.run(outputs())
    assert [len(output.ids) for output in result] == [3, 3, 2]
    assert [output.finish for output in result] == [None, None, Finish.LENGTH]


def test_prefills_are_limited_in_tokens_but_always_admit_one_prompt() -> None:
    requests = [request(f"r{at}", [at + 1] * 30, 4) for at in range(4)]
    for prefill_tokens in (1, 30, 61, 8192):
        result = asyncio.run(serve(generator(small(), prefill_tokens=prefill_tokens), requests))
        assert [len(result[spec.id].ids) for spec in requests] == [4, 4, 4, 4]


async def _logprobs(decoder: Decoder, rows: Sequence[Sequence[int]], kind: Sampling) -> torch.Tensor:
    engine = trainer(decoder, sampling=kind)
    await engine.start()
    return await engine.logprobs(batch_of(rows))


async def _trickle(engine: Any, requests: Sequence[Request], chance: random.Random) -> dict[str, Output]:
    """Submit at random moments, so that most requests are admitted while others decode."""
    await engine.start()
    waiting = list(requests)

    async def arrive() -> None:
        while waiting:
            num = chance.randint(1, 4)
            await engine.submit(waiting[:num])
            del waiting[:num]
            for _ in range(chance.randint(0, 5)):
                await asyncio.sleep(0)

    arriving = asyncio.create_task(arrive())
    result = await collect(engine, len(requests))
    await arriving
    return result
