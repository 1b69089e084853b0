"""The Triton source of `roll.engines.native.paged_kernels`. This module needs Triton, which is installed with CUDA."""

# pyright: basic, reportMissingImports=false
# ruff: noqa: N803, PLR0913

import triton
import triton.language as tl


# fmt: off
@triton.jit
def attend(
    q_ptr, k_ptr, v_ptr, table_ptr, length_ptr, out_ptr, sum_ptr,
    scale, q_stride, token_stride, table_stride, split_stride,
    SPLITS: tl.constexpr, PRECISION: tl.constexpr, GROUP: tl.constexpr, GROUP_PAD: tl.constexpr,
    DIM: tl.constexpr, DIM_PAD: tl.constexpr, PAGE: tl.constexpr,
):
    # fmt: on
    """Attention of the query heads of one key head of one row, over one part of its pages, with a running maximum."""
    row, head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    heads = tl.num_programs(1) * GROUP
    length = tl.load(length_ptr + row)
    num_pages = tl.cdiv(length, PAGE)
    per_split = tl.cdiv(num_pages, SPLITS)
    first = split * per_split
    end = tl.minimum(first + per_split, num_pages)
    dims, group, within = tl.arange(0, DIM_PAD), tl.arange(0, GROUP_PAD), tl.arange(0, PAGE)
    is_dim, is_head = dims < DIM, group < GROUP
    query = head * GROUP + group
    q = tl.load(
        q_ptr + row * q_stride + query[:, None] * DIM + dims[None, :],
        mask=is_head[:, None] & is_dim[None, :],
        other=0.0,
    )
    largest = tl.full([GROUP_PAD], -float("inf"), tl.float32)
    total = tl.zeros([GROUP_PAD], tl.float32)
    mixed = tl.zeros([GROUP_PAD, DIM_PAD], tl.float32)
    for index in range(first, end):
        page = tl.load(table_ptr + row * table_stride + index).to(tl.int64)
        cells = (page * PAGE + within) * token_stride + head * DIM
        seen = index * PAGE + within < length
        k = tl.load(k_ptr + cells[None, :] + dims[:, None], mask=seen[None, :] & is_dim[:, None], other=0.0)
        v = tl.load(v_ptr + cells[:, None] + dims[None, :], mask=seen[:, None] & is_dim[None, :], other=0.0)
        products = tl.dot(q, k, input_precision=PRECISION) * scale
        products = tl.where(seen[None, :], products, -float("inf"))
        top = tl.maximum(largest, tl.max(products, 1))
        weights = tl.exp(products - top[:, None])
        before = tl.exp(largest - top)
        mixed = mixed * before[:, None] + tl.dot(weights.to(v.dtype), v, input_precision=PRECISION)
        total = total * before + tl.sum(weights, 1)
        largest = top
    at = (split * split_stride + row * heads) + query
    safe = tl.where(total > 0, total, 1.0)
    result = (mixed / safe[:, None]).to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + at[:, None] * DIM + dims[None, :], result, mask=is_head[:, None] & is_dim[None, :])
    tl.store(sum_ptr + at, tl.where(total > 0, largest + tl.log(safe), -float("inf")), mask=is_head)


@triton.jit
def combine(
    part_ptr,
    sum_ptr,
    out_ptr,
    split_stride,
    SPLITS: tl.constexpr,
    SPLITS_PAD: tl.constexpr,
    DIM: tl.constexpr,
    DIM_PAD: tl.constexpr,
):
    """The parts of one query head, weighted by their sums of exponentials."""
    at = tl.program_id(0)
    splits, dims = tl.arange(0, SPLITS_PAD), tl.arange(0, DIM_PAD)
    is_split, is_dim = splits < SPLITS, dims < DIM
    sums = tl.load(sum_ptr + splits * split_stride + at, mask=is_split, other=-float("inf"))
    weights = tl.exp(sums - tl.max(sums, 0))
    parts = tl.load(
        part_ptr + (splits[:, None] * split_stride + at) * DIM + dims[None, :],
        mask=is_split[:, None] & is_dim[None, :],
        other=0.0,
    )
    result = tl.sum(parts * weights[:, None], 0) / tl.sum(weights, 0)
    tl.store(out_ptr + at * DIM + dims, result.to(out_ptr.dtype.element_ty), mask=is_dim)


@triton.jit
def store(
    k_ptr,
    v_ptr,
    key_ptr,
    value_ptr,
    cell_ptr,
    k_stride,
    v_stride,
    cell_stride,
    WIDTH: tl.constexpr,
    WIDTH_PAD: tl.constexpr,
):
    """One row: its key and value of all heads, copied to its cell."""
    row = tl.program_id(0)
    cell = tl.load(cell_ptr + row)
    at = tl.arange(0, WIDTH_PAD)
    inside = at < WIDTH
    tl.store(key_ptr + cell * cell_stride + at, tl.load(k_ptr + row * k_stride + at, mask=inside), mask=inside)
    tl.store(value_ptr + cell * cell_stride + at, tl.load(v_ptr + row * v_stride + at, mask=inside), mask=inside)


@triton.jit
def sample(logit_ptr, temperature_ptr, noise_ptr, id_ptr, logprob_ptr, vocabulary, row_stride, BLOCK: tl.constexpr):
    """One row: the sum of exponentials, then the first token at which the cumulative sum exceeds the noise."""
    row = tl.program_id(0).to(tl.int64)
    within = tl.arange(0, BLOCK)
    temperature = tl.load(temperature_ptr + row)
    inverse = 1.0 / tl.where(temperature == 0, 1.0, temperature)
    largest, total, best = -float("inf"), 0.0, 0
    for begin in range(0, vocabulary, BLOCK):
        at = begin + within
        x = tl.load(logit_ptr + row * row_stride + at, mask=at < vocabulary, other=-float("inf")) * inverse
        block_top, block_at = tl.max(x, 0, return_indices=True)
        best = tl.where(block_top > largest, begin + block_at, best)
        top = tl.maximum(largest, block_top)
        total = total * tl.exp(largest - top) + tl.sum(tl.exp(x - top), 0)
        largest = top
    target = tl.load(noise_ptr + row) * total
    begin, before, chosen = 0, 0.0, -1
    while (begin < vocabulary) & (chosen < 0):
        at = begin + within
        x = tl.load(logit_ptr + row * row_stride + at, mask=at < vocabulary, other=-float("inf")) * inverse
        weights = tl.exp(x - largest)
        cumulative = before + tl.cumsum(weights, 0).to(tl.float64)
        reached = (cumulative > target) & (weights > 0)
        first = tl.min(tl.where(reached, at, vocabulary), 0)
        chosen = tl.where(first < vocabulary, first, chosen)
        before += tl.sum(weights, 0)
        begin += BLOCK
    chosen = tl.where((temperature == 0) | (chosen < 0), best, chosen)  # rounding may leave the last token unreached
    value = tl.load(logit_ptr + row * row_stride + chosen) * inverse
    tl.store(id_ptr + row, chosen.to(tl.int64))
    tl.store(logprob_ptr + row, value - largest - tl.log(total))
