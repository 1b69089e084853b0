"""The Triton kernels of the paged generator, in Triton's interpreter, against the formulas that they replace."""

import importlib.util
import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")

ATTENTION = """
import torch
from roll.engines.native.paged_kernels import paged_attention
from roll.engines.native.pages import PAGE, attend_pages
torch.manual_seed(0)
for rows, heads, kv_heads, dim in ((5, 12, 2, 128), (300, 4, 2, 64), (3, 4, 4, 96)):
    pages = rows * 4 + 1
    keys, values = (torch.randn(pages * PAGE, kv_heads, dim) for _ in range(2))
    table = (torch.randperm(pages - 1) + 1).view(rows, 4).int()
    lengths = torch.randint(1, 4 * PAGE + 1, (rows,)).int()
    lengths[0], lengths[-1] = 1, 4 * PAGE
    queries = torch.randn(rows, heads + kv_heads, dim)[:, :heads]
    actual = paged_attention(queries, keys, values, table, lengths, page=PAGE).flatten(1)
    torch.testing.assert_close(actual, attend_pages(queries, keys, values, table, lengths), atol=1e-5, rtol=1e-5)
"""
STORING = """
import torch
from roll.engines.native.paged_kernels import store_tokens
torch.manual_seed(0)
for rows, heads, dim in ((5, 2, 128), (3, 3, 96)):
    both = torch.randn(rows, 2 * heads + 1, dim)
    k, v = both[:, 1 : heads + 1], both[:, heads + 1 :]
    keys, values = torch.zeros(40, heads, dim), torch.zeros(40, heads, dim)
    expected = keys.clone(), values.clone()
    cells = torch.randperm(40)[:rows]
    store_tokens(k, v, keys, values, cells)
    for target, source, actual in zip(expected, (k, v), (keys, values)):
        assert torch.equal(target.index_copy_(0, cells, source), actual)
"""
SAMPLING = """
import numpy as np
import torch
from roll.engines.native.paged_kernels import sample_rows
from roll.engines.native.sampling import draw, uniforms
from roll.types import Sampling
torch.manual_seed(0)
logits, number = torch.randn(64, 10_000) * 3, np.arange(64, dtype=np.uint64)
noise = torch.from_numpy(uniforms(number, number))
for temperature in (1.0, 0.7, 0.0):
    ids, logprobs = sample_rows(logits, torch.full((64,), temperature), noise)
    expected = draw(logits, Sampling(temperature=temperature), noise)
    assert (ids == expected[0]).all()
    torch.testing.assert_close(logprobs, expected[1], atol=1e-5, rtol=1e-5)
"""


@pytest.mark.parametrize("script", [ATTENTION, STORING, SAMPLING], ids=["attention", "storing", "sampling"])
def test_a_kernel_computes_the_formula(script: str) -> None:
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    subprocess.run([sys.executable, "-c", script], env=environment, check=True, timeout=600)
