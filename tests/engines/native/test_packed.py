"""Packed attention without its kernel: its inputs and gradients, compared with padded sequences."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - its customary name
from torch import Tensor

from roll.engines.native import packed as room
from roll.engines.native.attention import AttentionOptions, Ragged, Sharing, sharing
from roll.engines.native.packed import PackedAttention
from tests.engines.models import CPU, batch_of, prompts

HEADS, KV_HEADS, DIM = 4, 2, 8


def plain(
    q: Tensor, k: Tensor, v: Tensor, *bounds_and_most: Any, window_size: tuple[int, int], scale: float | None = None
) -> Tensor:
    """A stand-in for the kernel: sequence by sequence, with the last query attending to the last key."""
    to_q, to_k, most_q, most_k = bounds_and_most
    before, after = window_size
    assert after == 0 and k.shape == v.shape
    assert (to_q.dtype, to_k.dtype) == (torch.int32, torch.int32)
    result: list[Tensor] = []
    for row in range(len(to_q) - 1):
        mine, keys = slice(int(to_q[row]), int(to_q[row + 1])), slice(int(to_k[row]), int(to_k[row + 1]))
        num_q, num_k = mine.stop - mine.start, keys.stop - keys.start
        assert 0 < num_q <= most_q
        assert num_q <= num_k <= most_k
        seen = torch.ones(num_q, num_k, dtype=torch.bool).tril(num_k - num_q)
        seen = seen if before < 0 else seen.triu(num_k - num_q - before)
        rows = (each.transpose(0, 1).unsqueeze(0) for each in (q[mine], k[keys], v[keys]))
        mixed = F.scaled_dot_product_attention(*rows, attn_mask=seen, enable_gqa=True, scale=scale)
        result.append(mixed.squeeze(0).transpose(0, 1))
    return torch.cat(result)


@pytest.fixture(autouse=True)
def kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "_kernel", lambda: plain)


def siblings(sizes: Sequence[int], *, prompt: int = 9) -> list[list[int]]:
    """Groups of these numbers of rows, each with a different prompt."""
    replies = iter(prompts(sum(sizes), longest=20, seed=2))
    contexts = prompts(len(sizes), shortest=prompt, longest=prompt, seed=1)
    return [contexts[group] + next(replies) for group, size in enumerate(sizes) for _ in range(size)]


@pytest.mark.parametrize(
    ("options", "value_dim"),
    [
        (None, DIM),
        (AttentionOptions(window=5, scale=0.7), DIM),
        (AttentionOptions(scale=0.7), DIM - 3),
        (AttentionOptions(softcap=1.5, sinks=torch.tensor([0.0, 1.0, -1.0, 0.5]), window=7), DIM),
    ],
    ids=["plain", "window", "narrow values", "cap and sinks"],
)
@pytest.mark.parametrize("sizes", [(1, 1), (4, 4), (3, 1, 5, 2)])
def test_shared_prefixes_occur_once_and_all_rows_attend_to_them(
    sizes: tuple[int, ...], options: AttentionOptions | None, value_dim: int
) -> None:
    rows = siblings(sizes)
    batch = batch_of(rows, prompt=9)
    noise = torch.Generator().manual_seed(0)
    result: list[list[Tensor]] = []
    for kind in (Ragged, PackedAttention):
        layout = kind(batch.lengths, device=CPU, shared=replace(sharing(batch), read=batch.lengths))
        count = len(batch.ids[layout.flat_tokens])
        assert count == batch.num_tokens - 9 * (len(rows) - len(sizes))
        noise.manual_seed(0)
        shapes = ((HEADS, DIM), (KV_HEADS, DIM), (KV_HEADS, value_dim))
        q, k, v = (torch.randn(count, *shape, generator=noise).requires_grad_() for shape in shapes)
        mixed = layout.attend(0, q, k, v, options)
        (mixed * torch.linspace(0, 1, mixed.numel()).view_as(mixed)).sum().backward()
        assert q.grad is not None and k.grad is not None and v.grad is not None
        everywhere = layout.flat_index(torch.arange(batch.num_tokens))
        result.append([mixed.detach(), q.grad, k.grad, v.grad, layout.positions, layout.last, everywhere])
    for padded, packed in zip(*result, strict=True):
        torch.testing.assert_close(packed, padded, atol=2e-5, rtol=1e-5)


def test_a_row_that_is_only_a_shared_prefix_keeps_its_last_token() -> None:
    layout = PackedAttention([5, 5], device=CPU, shared=Sharing((0, 0), (0, 5), (5, 5)))
    assert layout.flat_index(torch.arange(10)).tolist() == [0, 1, 2, 3, 4, 0, 1, 2, 3, 5]
    q, k, v = (torch.randn(6, n, DIM) for n in (HEADS, KV_HEADS, KV_HEADS))
    assert layout.attend(0, q, k, v).shape == (6, HEADS * DIM)


def test_gradients_of_a_shared_token_are_summed_in_32_bits() -> None:
    """259 times 1 is 259, which bf16 cannot represent: added one by one it stays 256, rounded once it is 260."""
    lengths = (2,) * 260
    layout = PackedAttention(lengths, device=CPU, shared=Sharing((0,) * 260, (0,) + (1,) * 259, lengths))
    q = torch.zeros(261, HEADS, DIM, dtype=torch.bfloat16)
    k = torch.zeros(261, KV_HEADS, DIM, dtype=torch.bfloat16)
    v = torch.ones(261, KV_HEADS, DIM, dtype=torch.bfloat16, requires_grad=True)
    layout.attend(0, q, k, v).float().sum().backward()
    assert v.grad is not None
    # Two queries share a head of values: each row gives half of its two to each of its two tokens, and the leader's
    # first query gives all of its two to the first.
    assert v.grad[0].unique().tolist() == [259.0 + 3.0]
