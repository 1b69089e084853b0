"""The native generator gives a request the same bits in any batch, for all lengths."""

import asyncio
import random

import pytest
import torch

from roll.engines.native.attention import Ragged, SlotCache
from tests.engines.models import CPU, Answer, generator, prompts, request, serve, small

CONTEXT = 1100
LENGTHS = (1, 16, 17, 180, 193, 250, 257, 300, 383, 390, 420, 505, 513, 700, 769, 1000)
"""Around the lengths where attention kernels and BLAS split their sums: 192, 256, 384, 512 and 768."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("architecture", "changes"),
    [
        ("llama", {"hidden_size": 64, "head_dim": 16, "intermediate_size": 1536}),
        ("qwen3", {"num_attention_heads": 7, "num_key_value_heads": 1, "head_dim": 16}),
        ("llama", {"num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 64}),
    ],
    ids=["pairs", "seven heads read one", "one key head each"],
)
def test_lengths_of_all_widths_give_the_same_bits_alone_and_together(
    architecture: str, changes: dict[str, int]
) -> None:
    decoder = small(architecture, max_position_embeddings=CONTEXT, **changes)
    chance = random.Random(0)
    contexts = [prompts(1, shortest=length, longest=length, seed=length)[0] for length in LENGTHS]
    requests = [request(f"r{len(ids)}", ids, chance.randint(3, 12)) for ids in contexts]
    alone: dict[str, Answer] = {}
    for each in requests:
        alone |= asyncio.run(serve(generator(decoder, slots=2, context=CONTEXT), [each]))
    for slots, prefill_tokens in ((20, 8192), (5, 8192), (3, 600)):
        chance.shuffle(requests)
        engine = generator(decoder, slots=slots, context=CONTEXT, prefill_tokens=prefill_tokens)
        assert asyncio.run(serve(engine, requests)) == alone


@pytest.mark.slow
def test_a_request_gives_the_same_bits_next_to_a_longer_one() -> None:
    decoder = small("llama", max_position_embeddings=CONTEXT, hidden_size=64, head_dim=16)
    short = request("r", prompts(1, shortest=300, longest=300)[0], 2)
    alone = asyncio.run(serve(generator(decoder, context=CONTEXT), [short]))["r"]
    for length in range(304, 1050, 48):
        longer = request("c", prompts(1, shortest=length, longest=length, seed=1)[0], 2)
        answers = asyncio.run(serve(generator(decoder, context=CONTEXT), [longer, short]))
        assert answers["r"] == alone, f"next to {length} tokens"


@pytest.mark.parametrize("length", [5, 256, 257, 512, 700])
def test_a_token_decoded_over_blocks_of_keys_is_the_last_of_a_whole_sequence(length: int) -> None:
    """Another sequence of 900 tokens makes the span long."""
    decoder = small("llama")
    shape, cache = decoder.shape, SlotCache(decoder.cache_shape, slots=16, max_seq_len=CONTEXT, device=CPU)
    lengths = [length, 900]
    noise = torch.Generator().manual_seed(length)
    q, k, v = (
        torch.randn(sum(lengths), heads, shape.head_dim, generator=noise) * 3
        for heads in (shape.heads, shape.kv_heads, shape.kv_heads)
    )
    with torch.inference_mode():
        whole = Ragged(lengths, device=CPU).attend(0, q, k, v)
        last = torch.tensor([length - 1, sum(lengths) - 1])
        cache.prefill_attention(lengths, [[0], [1]])(0, q, k, v)
        decoded = cache.decode_attention(torch.tensor([length - 1, 899]))(0, q[last], k[last], v[last])
    torch.testing.assert_close(decoded, whole[last], rtol=1e-5, atol=1e-5)
