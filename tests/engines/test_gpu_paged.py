"""The paged generator on a GPU: graphs and kernels give the tokens and logprobs of plain operations on a CPU."""

import asyncio
from typing import Any

import numpy as np
import pytest
import torch

from roll.engines.base import Request
from roll.engines.native.generator import NativeGeneratorSettings
from roll.engines.native.paged_generator import PagedGenerator
from roll.types import Sampling
from roll.weights.channel import Shared
from tests.engines import contract
from tests.engines.models import Answer, prompts, request, serve, small

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]


def paged(device: str, **changes: Any) -> PagedGenerator:
    numbers: dict[str, Any] = {
        "max_num_seqs": 40,
        "max_seq_len": 300,
        "max_num_batched_tokens": 500,
        "progress_interval": 16,
        "device": torch.device(device),
        **changes,
    }
    decoder = small(hidden_size=64, head_dim=32, vocab_size=500)
    return PagedGenerator(decoder, NativeGeneratorSettings(**numbers), Shared())


def requests(sampling: Sampling) -> list[Request]:
    rows = prompts(24, vocab=500, shortest=1, longest=150, seed=4)
    return [
        request(f"{at}-{sibling}", ids, 5 + (7 * at + 5 * sibling) % 60, key=10 * at + sibling, sampling=sampling)
        for at, ids in enumerate(rows)
        for sibling in range(3)
    ]


def answers(device: str, sampling: Sampling, **changes: Any) -> dict[str, Answer]:
    return asyncio.run(serve(paged(device, **changes), requests(sampling)))


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=0), Sampling(temperature=0.8, top_p=0.9)])
def test_in_32_bits_its_tokens_are_those_of_a_cpu(sampling: Sampling) -> None:
    actual, expected = answers("cuda", sampling), answers("cpu", sampling)
    equal = [name for name, answer in expected.items() if actual[name].ids == answer.ids]
    assert len(equal) >= len(expected) - 2  # noise may be at the border of two tokens
    for name in equal:
        np.testing.assert_allclose(actual[name].logprobs, expected[name].logprobs, atol=2e-3)


def test_in_16_bits_the_first_token_has_the_logprob_of_a_cpu() -> None:
    actual, expected = (answers(device, Sampling(), dtype=torch.bfloat16) for device in ("cuda", "cpu"))
    first = [
        (actual[name].logprobs[0], answer.logprobs[0])
        for name, answer in expected.items()
        if actual[name].ids[0] == answer.ids[0]
    ]
    assert len(first) > 0.8 * len(expected)
    assert np.abs(np.diff(first, axis=1)).mean() < 0.05


@pytest.mark.parametrize(
    "promise",
    [
        contract.replies_end_by_length_or_by_a_stop_token,
        contract.abort_brings_back_what_ran_and_what_queued,
        contract.abort_by_name_leaves_the_others_alone,
    ],
)
def test_it_fulfils_the_contract_of_a_generator(promise: Any) -> None:
    decoder = small()
    settings = NativeGeneratorSettings(
        max_num_seqs=8,
        max_seq_len=128,
        max_num_batched_tokens=512,
        progress_interval=64,
        device=torch.device("cuda"),
        steps_per_read=1,
    )
    asyncio.run(promise(PagedGenerator(decoder, settings, Shared())))
