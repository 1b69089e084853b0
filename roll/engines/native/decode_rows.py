"""The requests that a device decodes, one row each, and the decode step over them.

A step leaves nothing to the host: it samples, records the tokens, and notices that a request has ended, which then
changes no more. On a GPU it is one CUDA graph per number of rows, so several steps run before the host looks at them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from roll.engines.base import Request
from roll.engines.native.decoder import Decoder
from roll.engines.native.mixed import Precision, hidden
from roll.engines.native.packed import to_device
from roll.engines.native.paged_kernels import sample_rows
from roll.engines.native.pages import PagedCache
from roll.engines.native.sampling import cap_logits, draw_each
from roll.types import Sampling

MOST_STOPS = 16
"""Most stop tokens of a request."""
Draw = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
"""Logits [rows, vocabulary], temperatures and noise [rows] -> ids and logprobs [rows]."""
_ID, _POSITION, _KEY, _PRODUCED, _COUNT, _LIMIT, _ALIVE, _STOPS = range(8)
_GOLDEN, _FIRST, _SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoded:
    """The results of some steps, on their way to the host."""

    ids: Tensor
    """[steps, rows]"""
    logprobs: Tensor
    """[steps, rows]"""
    counts: Tensor
    """[rows] tokens of each request so far."""
    alive: Tensor
    """[rows] 0 where the request has ended."""
    arrived: torch.cuda.Event | None
    """When they are there; None: now."""

    def wait(self) -> None:
        """Return when the results have arrived."""
        if self.arrived is not None:
            self.arrived.synchronize()


class DecodeRows:
    """The state of every row on the device. Rows are numbered from 0; those without a request are not alive."""

    def __init__(self, decoder: Decoder, cache: PagedCache, *, num_rows: int, most_pages: int, most_steps: int) -> None:
        device = cache.keys.device
        self.decoder, self.cache = decoder, cache
        self.precision = Precision(dtype=decoder.embed.dtype)
        self.sizes = row_counts(num_rows)
        self._integers = torch.zeros(self.sizes[-1], _STOPS + MOST_STOPS, dtype=torch.int64, device=device)
        self._temperatures = torch.ones(self.sizes[-1], dtype=torch.float32, device=device)
        self._table = torch.zeros(self.sizes[-1], most_pages, dtype=torch.int32, device=device)
        self._ids = torch.zeros(most_steps, self.sizes[-1], dtype=torch.int64, device=device)
        self._logprobs = torch.zeros(most_steps, self.sizes[-1], dtype=torch.float32, device=device)
        self._cursor = torch.zeros(1, dtype=torch.int64, device=device)
        self._graphs: dict[int, torch.cuda.CUDAGraph] = {}

    def write(self, rows: Sequence[int], requests: Sequence[Request], pages: Sequence[Sequence[int]]) -> None:
        """Begin these requests: all tokens but the last one of each are in its pages."""
        device = self._integers.device
        values = np.full((len(rows), _STOPS + MOST_STOPS), -1, np.int64)
        table = np.zeros((len(rows), self._table.shape[1]), np.int32)
        for at, (request, own) in enumerate(zip(requests, pages, strict=True)):
            key = np.uint64(request.key).astype(np.int64)
            values[at, :_STOPS] = (
                request.ids[-1],
                len(request.ids) - 1,
                key,
                request.produced,
                0,
                request.max_new_tokens,
                1,
            )
            values[at, _STOPS : _STOPS + len(request.stop)] = sorted(request.stop)
            table[at, : len(own)] = own
        index = to_device(torch.tensor(rows), device)
        self._integers.index_copy_(0, index, to_device(torch.from_numpy(values), device))
        temperatures = torch.tensor([request.sampling.temperature for request in requests], dtype=torch.float32)
        self._temperatures.index_copy_(0, index, to_device(temperatures, device))
        self._table.index_copy_(0, index, to_device(torch.from_numpy(table), device))

    @torch.inference_mode()
    def end(self, rows: Sequence[int]) -> None:
        """End the requests of these rows."""
        self._integers[:, _ALIVE].index_fill_(0, to_device(torch.tensor(rows), self._integers.device), 0)

    @torch.inference_mode()
    def arrange(self, rows: Sequence[int]) -> None:
        """Move these rows to the front, in this order; all others end."""
        index = to_device(torch.tensor(rows, dtype=torch.int64), self._integers.device)
        for tensor in (self._integers, self._temperatures, self._table):
            tensor[: len(rows)] = tensor.index_select(0, index)
        self._integers[len(rows) :, _ALIVE] = 0

    def decode(self, samplings: Sequence[Sampling], num_steps: int) -> Decoded:
        """Start steps of the first rows, with the sampling parameters of each; the results arrive later."""
        num_rows = len(samplings)
        size = next(size for size in self.sizes if size >= num_rows)
        graph = self._graphs.get(size)
        draw: Draw = draw_rows
        if any(sampling.top_k or sampling.top_p < 1 for sampling in samplings):
            graph, each = None, [*samplings, *[Sampling()] * (size - num_rows)]
            draw = lambda logits, _, noise: draw_each(logits, each, noise)  # noqa: E731
        self._cursor.zero_()
        for _ in range(num_steps):
            if graph is None:
                self._step(size, draw)
            else:
                graph.replay()
        on_gpu = self._integers.device.type == "cuda"

        def to_host(tensor: Tensor) -> Tensor:
            if not on_gpu:
                return tensor.clone()
            return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True).copy_(tensor, non_blocking=True)

        ids, logprobs = to_host(self._ids[:num_steps, :num_rows]), to_host(self._logprobs[:num_steps, :num_rows])
        counts, alive = (to_host(self._integers[:num_rows, at]) for at in (_COUNT, _ALIVE))
        arrived = torch.cuda.Event() if on_gpu else None
        if arrived is not None:
            arrived.record()
        return Decoded(ids=ids, logprobs=logprobs, counts=counts, alive=alive, arrived=arrived)

    def capture(self) -> None:
        """Record the graph of every number of rows, the largest first, so that the others reuse its memory."""
        if self._integers.device.type != "cuda":
            return
        pool = None
        for size in reversed(self.sizes):
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                for _ in range(2):  # compiles kernels, which must not happen while recording
                    self._cursor.zero_()
                    self._step(size, draw_rows)
            torch.cuda.current_stream().wait_stream(stream)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=pool):
                self._step(size, draw_rows)
            pool = graph.pool()
            self._graphs[size] = graph

    def _step(self, size: int, draw: Draw) -> None:
        state = self._integers[:size]
        ids, positions, keys, produced, counts, limits = state[:, :_ALIVE].unbind(1)
        alive = state[:, _ALIVE] > 0
        attend = self.cache.decode_attention(self._table[:size], positions, alive)
        logits = compute_logits(self.decoder, hidden(self.decoder, ids, positions, attend, self.precision))
        tokens, logprobs = draw(logits, self._temperatures[:size], uniforms(keys, produced + counts))
        self._ids[:, :size].index_copy_(0, self._cursor, tokens.unsqueeze(0))
        self._logprobs[:, :size].index_copy_(0, self._cursor, logprobs.unsqueeze(0))
        self._cursor.add_(1)
        counts.add_(alive)
        positions.add_(alive)
        ended = (tokens.unsqueeze(1) == state[:, _STOPS:]).any(1) | (counts >= limits)
        ids.copy_(torch.where(alive, tokens, ids))
        state[:, _ALIVE].copy_(alive & ~ended)


def row_counts(most: int) -> list[int]:
    """The numbers of rows with a graph of their own, up to at least `most`: steps of 8, then of at most an eighth."""
    sizes = [8]
    while sizes[-1] < most:
        sizes.append(sizes[-1] + max(8, 2 ** (sizes[-1].bit_length() - 4)))
    return sizes


def compute_logits(decoder: Decoder, states: Tensor) -> Tensor:
    """[rows, vocabulary] in fp32: products of 16-bit numbers, not rounded to 16 bits."""
    if states.device.type == "cuda" and states.dtype is not torch.float32:
        logits = torch.mm(states, decoder.head.t(), out_dtype=torch.float32)
    else:
        logits = states.float() @ decoder.head.float().t()
    return cap_logits(logits, decoder.logit_cap)


def draw_rows(logits: Tensor, temperatures: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Ids and logprobs of each row at its own temperature; the formula of `roll.engines.native.sampling.draw`."""
    if logits.device.type == "cuda":
        return sample_rows(logits, temperatures, noise)
    scaled = logits / torch.where(temperatures == 0, 1.0, temperatures).unsqueeze(1)
    logprobs = scaled.log_softmax(-1)
    cumulative = logprobs.exp().double().cumsum(-1)
    drawn = torch.searchsorted(cumulative, (noise * cumulative[:, -1]).unsqueeze(-1), right=True).squeeze(-1)
    ids = torch.where(temperatures == 0, logprobs.argmax(-1), drawn)
    return ids, logprobs.gather(-1, ids.unsqueeze(-1)).squeeze(-1)


def uniforms(keys: Tensor, positions: Tensor) -> Tensor:
    """`roll.engines.native.sampling.uniforms` on the device: int64 tensors, of which the bits are those of uint64."""
    z = keys + (positions + 1) * _signed(_GOLDEN)
    z = (z ^ _shift(z, 30)) * _signed(_FIRST)
    z = (z ^ _shift(z, 27)) * _signed(_SECOND)
    return _shift(z ^ _shift(z, 31), 11).double() * 2.0**-53


def _signed(number: int) -> int:
    """The int64 with the bits of a uint64."""
    return number - 2**64 if number >= 2**63 else number


def _shift(z: Tensor, bits: int) -> Tensor:
    """Shift right, filled with zeros."""
    return (z >> bits) & (2 ** (64 - bits) - 1)
