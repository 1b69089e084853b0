"""Logprobs over many ranks: each rank scores some rows, or some tokens of rows that it shares with its peers.

Every rank receives the same calls with the same arguments, including the whole batch, and returns the same results; the
rank group in `roll.cluster` ensures that. Rows are assigned by a pure function, and all ranks run equally many
micro-batches.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from roll.data.collate import pack
from roll.engines.base import Part
from roll.engines.fsdp.huggingface import ShardedHuggingFace
from roll.engines.fsdp.model import ShardedDecoder
from roll.engines.fsdp.ranks import Ranks, reduce_backward, reduce_forward
from roll.engines.fsdp.weight_source import DirectoryWeights
from roll.engines.native.attention import Ragged, sharing
from roll.engines.native.likelihood import likelihood
from roll.engines.native.model_spec import ModelSpec, architecture, build
from roll.engines.native.packed import PACKED, PackedAttention, to_device
from roll.engines.native.sampling import score
from roll.engines.native.trainer import (
    ForwardOutput,
    LogprobSettings,
    NativeLogprobModel,
    first_tokens,
    replay_arguments,
)
from roll.types import Batch, Sampling


class RankedLogprobModel(NativeLogprobModel):
    """What trainers and models over ranks have in common: rows are assigned to ranks, and all ranks stop together."""

    decoder: Any
    ranks: Any

    async def stop(self) -> None:
        self.ranks.leave()

    async def _row(self, *args: Any, **kwargs: Any) -> Tensor:
        with self.ranks.blame_peers("scoring"):
            return await super()._row(*args, **kwargs)

    def _microbatches(self, batch: Batch) -> Iterator[tuple[list[int], Batch]]:
        """The micro-batches of this rank, padded with idle ones: all ranks must run the same number."""
        ranks, budget = self.ranks, self.settings.tokens_per_microbatch
        for rows in assign_rows(batch.lengths, budget, ranks.layout.dp)[ranks.dp_rank]:
            yield rows, batch.select(rows) if rows else pad_idle(batch)


class FsdpLogprobModel(RankedLogprobModel):
    """`LogprobModel` on one of many ranks."""

    def __init__(self, model_spec: ModelSpec, settings: LogprobSettings, ranks: Ranks) -> None:
        self.settings, self.ranks, self.model_spec = settings, ranks, model_spec
        self.decoder = self._empty_decoder(model_spec)
        self._source = self._weights() if ranks.rank == 0 else {}

    def _empty_decoder(self, model_spec: ModelSpec) -> Any:
        """The model without memory."""
        if model_spec.engine == "hf":
            return ShardedHuggingFace(model_spec, self.ranks)
        config, scored = architecture(model_spec.model), model_spec.head != "logits"
        return ShardedDecoder(config, self.ranks, scored=scored, lora=model_spec.lora)

    def _weights(self) -> Mapping[str, Tensor]:
        """All weights, for rank 0: read from files when they are asked for, or of a model that is built."""
        model_spec = self.model_spec
        path = model_spec.model.path
        if path is not None and model_spec.engine == "native" and model_spec.lora is None:
            return DirectoryWeights(Path(path), self.decoder, model_spec.head)
        # Models of transformers are compared with their own forward pass, and adapters start at random numbers.
        source = build(model_spec)
        return dict(chain(source.named_tensors(), source.adapter_tensors()))

    async def start(self) -> None:
        """Join the other ranks and receive the weights that rank 0 has, reads or initialises."""
        with self.ranks.blame_peers("its start"):
            self.ranks.join(self.settings.device)
            self.decoder.shard(self.settings.device, self.settings.precision)
            self._prepare()
            source, self._source = self._source, {}
            self.decoder.fill(source)

    def _prepare(self) -> None:
        """Called with allocated parameters, before they are filled."""

    def _move(self, parts: Sequence[Part], device: torch.device) -> None:
        if not self.ranks.layout.offload:
            super()._move(parts, device)

    def _move_weights(self, device: torch.device) -> None:
        self.decoder.to(device)

    def _whole_row(self, row: Tensor) -> Tensor:
        self.decoder.reshard()
        dist.all_reduce(row, group=self.ranks.data)
        return row

    def _forward(
        self, batch: Batch, needed: Tensor, *, sampling: Sampling | None = None, entropy_gradient: bool = False
    ) -> ForwardOutput:
        """As in one process; each peer scores some of the tokens, and their rows are summed."""
        decoder, peers, device = self.decoder, self.ranks.peers, self.decoder.device
        packed = device.type == "cuda" and self.settings.precision.dtype in PACKED
        layout = (PackedAttention if packed else Ragged)(batch.lengths, device=device, shared=sharing(batch))
        if self.router_losses is not None:
            self.router_losses.enter(batch, layout)
        ids = to_device(batch.ids, device)
        flat_ids = ids[layout.flat_tokens]
        replays = isinstance(decoder, ShardedHuggingFace) and decoder.score is None
        hidden_arguments = replay_arguments(batch, layout) if replays else {}
        hidden = decoder(flat_ids, layout.positions, layout.attend, **hidden_arguments)
        at, positions = self._assigned(to_device(needed & ~first_tokens(batch), device), layout, len(flat_ids))
        before = reduce_backward(hidden, self.ranks.tensor).index_select(0, positions)
        zeros = torch.zeros(len(ids), device=device)
        if decoder.score_weight is not None:
            scores = (before @ reduce_backward(decoder.score_weight, self.ranks.tensor).t()).squeeze(-1).float()
            values = reduce_forward(zeros.index_copy(0, at, scores), peers)
            return ForwardOutput(logprobs=zeros, entropies=zeros, values=values)
        logprobs = entropies = zeros
        head = reduce_backward(decoder.head, self.ranks.tensor)
        kinds = self._samplings(batch, at.cpu()) if sampling is None else []
        for kind, chosen in kinds or [(sampling or self.settings.sampling, None)]:
            to, states = (at, before) if chosen is None else (at[chosen], before[chosen])
            cap = decoder.logit_cap
            if states.dtype == torch.float32 or kind.top_k or kind.top_p < 1.0 or cap is not None:
                rows = score(states, head, ids[to], kind, entropy_gradient=entropy_gradient, cap=cap)
            else:
                wide = head.float() if head.requires_grad else head  # its gradient is accumulated in 32 bits
                rows = likelihood(states, wide, ids[to], kind.temperature or 1.0, entropy_gradient=entropy_gradient)
            logprobs, entropies = logprobs.index_copy(0, to, rows[0]), entropies.index_copy(0, to, rows[1])
        return ForwardOutput(
            logprobs=reduce_forward(logprobs, peers), entropies=reduce_forward(entropies, peers), values=None
        )

    def _assigned(self, needed: Tensor, layout: Ragged | PackedAttention, num_flat: int) -> tuple[Tensor, Tensor]:
        """The needed tokens that this rank scores, and the positions in its slice of the states before them.

        The first token of a row, which has no state before it, must not be needed.
        """
        at = needed.nonzero().squeeze(-1)
        first, size = self.decoder.slice_of(num_flat)
        positions = layout.flat_index(at - 1) - first
        turn = torch.arange(len(at), device=at.device) % self.ranks.layout.tp
        mine = (positions >= 0) & (positions < size) & (turn == self.ranks.tp_rank)
        return at[mine], positions[mine]


def assign_rows(lengths: Sequence[int], budget: int, ranks: int) -> list[list[list[int]]]:
    """For each data-parallel rank the rows of each of its micro-batches: equal in number, similar in tokens.

    Rows of similar length go to neighbouring ranks, so that all take equally long. With few rows some are empty.
    """
    packed = pack(lengths, budget, multiple=ranks)
    return [packed[rank::ranks] for rank in range(ranks)]


def pad_idle(batch: Batch) -> Batch:
    """A micro-batch with a gradient of 0: the shortest row, without trained tokens."""
    shortest = batch.select([min(range(len(batch.lengths)), key=batch.lengths.__getitem__)])
    masked = {"trained": torch.zeros_like(shortest.trained)}
    if shortest.weights is not None:
        masked["weights"] = torch.zeros_like(shortest.weights)
    return replace(shortest, **masked)
