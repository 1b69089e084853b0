"""Kernels of decoding on a GPU: attention over pages, and sampling. Triton is imported at the first call."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor

_PROGRAMS = 528
"""Programs that fill a device: four per multiprocessor of an H200. With fewer rows, a row's pages are split."""
_MOST_SPLITS = 16


def paged_attention(q: Tensor, keys: Tensor, values: Tensor, table: Tensor, lengths: Tensor, *, page: int) -> Tensor:
    """[rows, heads, dim] queries over the first `lengths` tokens of each row's pages -> [rows, heads, dim].

    `keys` and `values` are [pages * page, kv_heads, dim], `table` [rows, most pages] int32, `lengths` [rows] int32 and
    positive. Only the pages of a row are read.
    """
    triton, kernels = _compiled()
    (rows, heads, dim), kv_heads = q.shape, keys.shape[1]
    assert keys.stride(1) == values.stride(1) == dim and q.stride(1) == dim, "heads are stored one after the other"
    splits = max(1, min(_MOST_SPLITS, table.shape[1], _PROGRAMS // (rows * kv_heads)))
    out = torch.empty(rows, heads, dim, dtype=q.dtype, device=q.device)
    partial = torch.empty(splits, rows, heads, dim, dtype=torch.float32, device=q.device) if splits > 1 else out
    sums = torch.empty(splits, rows, heads, dtype=torch.float32, device=q.device)
    group = heads // kv_heads
    sizes = {
        "GROUP": group,
        "GROUP_PAD": max(16, triton.next_power_of_2(group)),
        "DIM": dim,
        "DIM_PAD": max(16, triton.next_power_of_2(dim)),
        "PAGE": page,
    }
    kernels.attend[(rows, kv_heads, splits)](
        q,
        keys,
        values,
        table,
        lengths,
        partial,
        sums,
        dim**-0.5,
        q.stride(0),
        keys.stride(0),
        table.stride(0),
        rows * heads,
        SPLITS=splits,
        PRECISION="ieee" if q.dtype is torch.float32 else "tf32",
        **sizes,
        num_warps=4,
        num_stages=3,
    )
    if splits > 1:
        kernels.combine[(rows * heads,)](
            partial, sums, out, rows * heads, SPLITS=splits, SPLITS_PAD=triton.next_power_of_2(splits), **_dims(sizes)
        )
    return out


def store_tokens(k: Tensor, v: Tensor, keys: Tensor, values: Tensor, cells: Tensor) -> None:
    """Write [rows, kv_heads, dim] keys and values of one token per row to `cells` [rows] of [cells, kv_heads, dim]."""
    triton, kernels = _compiled()
    rows, kv_heads, dim = k.shape
    assert k.stride(1) == v.stride(1) == keys.stride(1) == values.stride(1) == dim, "heads lie one after the other"
    width = kv_heads * dim
    kernels.store[(rows,)](
        k,
        v,
        keys,
        values,
        cells,
        k.stride(0),
        v.stride(0),
        keys.stride(0),
        WIDTH=width,
        WIDTH_PAD=triton.next_power_of_2(width),
        num_warps=4,
    )


def sample_rows(logits: Tensor, temperature: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Ids [rows] by inverse CDF at `noise` [rows] fp64, and their logprobs; at temperature 0 the largest logit.

    `logits` are [rows, vocabulary] fp32. Each row is read twice and no other tensor of that size exists.
    """
    _, kernels = _compiled()
    rows, vocabulary = logits.shape
    ids = torch.empty(rows, dtype=torch.int64, device=logits.device)
    logprobs = torch.empty(rows, dtype=torch.float32, device=logits.device)
    kernels.sample[(rows,)](
        logits, temperature, noise, ids, logprobs, vocabulary, logits.stride(0), BLOCK=8192, num_warps=8
    )
    return ids, logprobs


def _dims(sizes: dict[str, int]) -> dict[str, int]:
    return {name: sizes[name] for name in ("DIM", "DIM_PAD")}


@cache
def _compiled() -> tuple[Any, Any]:
    import triton  # pyright: ignore[reportMissingImports]

    from roll.engines.native import triton_kernels

    return triton, triton_kernels
