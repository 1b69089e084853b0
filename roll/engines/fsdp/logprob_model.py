"""Reading a batch on many ranks: each scores its rows, or some of the tokens of rows that it shares with its peers.

Every rank is given the same calls with the same arguments, the whole batch included, and gives the same answers; `Gang`
in `roll.cluster` sees to that. Rows are taken by a pure function, and all run equally many micro-batches.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from roll.data.packing import pack
from roll.engines.base import Part
from roll.engines.fsdp.model import SpreadDecoder
from roll.engines.fsdp.ranks import Ranks, shared, summed
from roll.engines.native.attention import Ragged, sharing
from roll.engines.native.decoder import Decoder
from roll.engines.native.likelihood import likelihood
from roll.engines.native.lora import adapter_tensors, without
from roll.engines.native.model_spec import Origin, architecture, build
from roll.engines.native.packed import PACKED, Packed, there
from roll.engines.native.sampling import score
from roll.engines.native.trainer import Measured, NativeScorer, ScoreSettings, first_of_rows
from roll.types import Batch, Sampling


class FsdpScorer(NativeScorer):
    """`Scorer` on one of many ranks."""

    decoder: Any

    def __init__(self, origin: Origin, settings: ScoreSettings, ranks: Ranks) -> None:
        self.settings, self.ranks = settings, ranks
        scored = origin.head != "logits"
        self.decoder = SpreadDecoder(architecture(origin.model), ranks, scored=scored, lora=origin.lora)
        self._first = build(origin) if ranks.rank == 0 else None

    async def start(self) -> None:
        """Meet the others and take over the weights that rank 0 has read or made up."""
        with self.ranks.together("its start"):
            self.ranks.join(self.settings.device)
            self.decoder.spread(self.settings.device, self.settings.reading)
            self.decoder.fill({} if self._first is None else _named(self._first))
        self._first = None

    async def stop(self) -> None:
        self.ranks.leave()

    def _move(self, parts: Sequence[Part], device: torch.device) -> None:
        if "weights" in parts and not self.ranks.spread.offload:
            self.decoder.to(device)

    async def _row(
        self,
        batch: Batch,
        chosen: Callable[[Measured], Tensor | None],
        sampling: Sampling | None = None,
        *,
        base: bool = False,
    ) -> Tensor:
        row = torch.zeros(batch.num_tokens, device=self.decoder.device)
        with self.ranks.together("scoring"):
            for rows, part in self._microbatches(batch):
                with torch.no_grad(), without(self.decoder) if base else nullcontext():
                    found = chosen(self._measure(part, torch.ones_like(part.trained), sampling=sampling))
                assert found is not None
                if rows:
                    row[torch.from_numpy(batch.places(rows)).to(row.device)] = found
                await asyncio.sleep(0)
            self.decoder.reshard()
            dist.all_reduce(row, group=self.ranks.data)
        return row.cpu()

    def _microbatches(self, batch: Batch) -> Iterator[tuple[list[int], Batch]]:
        """Ours; where we have fewer than others, one that changes nothing, for all must do the same."""
        ranks, budget = self.ranks, self.settings.tokens_per_microbatch
        for rows in dealt(batch.lengths, budget, ranks.spread.dp)[ranks.dp_rank]:
            yield rows, batch.select(rows) if rows else _idle(batch)

    def _measure(
        self, batch: Batch, wanted: Tensor, *, sampling: Sampling | None = None, entropy_gradient: bool = False
    ) -> Measured:
        """As in one process; peers measure some of the tokens each, and add up their rows."""
        decoder, peers, device = self.decoder, self.ranks.peers, self.decoder.device
        ragged = self._laid(batch)
        ids = there(batch.ids, device)
        kept = ids[ragged.kept]
        hidden = decoder(kept, ragged.positions, ragged.attend)
        at, places = self._own(there(wanted & ~first_of_rows(batch), device), ragged, len(kept))
        before = shared(hidden, self.ranks.tensor).index_select(0, places)
        nothing = torch.zeros(len(ids), device=device)
        if decoder.score is not None:
            found = (before @ shared(decoder.score.weight, self.ranks.tensor).t()).squeeze(-1).float()
            values = summed(nothing.index_copy(0, at, found), peers)
            return Measured(logprobs=nothing, entropies=nothing, values=values)
        logprobs = entropies = nothing
        head = shared(decoder.head, self.ranks.tensor)
        kinds = self._kinds(batch, at.cpu()) if sampling is None else []
        for kind, chosen in kinds or [(sampling or self.settings.sampling, None)]:
            to, states = (at, before) if chosen is None else (at[chosen], before[chosen])
            if states.dtype == torch.float32 or kind.top_k or kind.top_p < 1.0:
                found = score(states, head, ids[to], kind, entropy_gradient=entropy_gradient)
            else:
                wide = head.float() if head.requires_grad else head  # what is added up to its gradient is
                found = likelihood(states, wide, ids[to], kind.temperature or 1.0, entropy_gradient=entropy_gradient)
            logprobs, entropies = logprobs.index_copy(0, to, found[0]), entropies.index_copy(0, to, found[1])
        return Measured(logprobs=summed(logprobs, peers), entropies=summed(entropies, peers), values=None)

    def _laid(self, batch: Batch) -> Ragged | Packed:
        """Where the tokens of a batch stand."""
        device = self.decoder.device
        packed = device.type == "cuda" and self.settings.reading.dtype in PACKED
        return (Packed if packed else Ragged)(batch.lengths, device=device, shared=sharing(batch))

    def _own(self, wanted: Tensor, ragged: Ragged | Packed, num_flat: int) -> tuple[Tensor, Tensor]:
        """Those of the wanted tokens that are measured here, and where in our slice the states before them are.

        The first of a row, before which there is none, must not be wanted.
        """
        at = wanted.nonzero().squeeze(-1)
        first, size = self.decoder.slice_of(num_flat)
        places = ragged.standing(at - 1) - first
        turn = torch.arange(len(at), device=at.device) % self.ranks.spread.tp
        mine = (places >= 0) & (places < size) & (turn == self.ranks.tp_rank)
        return at[mine], places[mine]


def _named(decoder: Decoder) -> dict[str, Tensor]:
    """All that ranks take over from a whole model."""
    return {**dict(decoder.named_tensors()), **dict(adapter_tensors(decoder))}


def dealt(lengths: Sequence[int], budget: int, ranks: int) -> list[list[list[int]]]:
    """For each data-parallel rank the rows of each of its micro-batches: equally many, alike in tokens.

    Neighbours in length go to neighbouring ranks, so that all are busy for as long. Some are empty where rows are few.
    """
    packed = pack(lengths, budget, multiple=ranks)
    return [packed[rank::ranks] for rank in range(ranks)]


def _idle(batch: Batch) -> Batch:
    """A micro-batch whose gradient is 0: the shortest row, with nothing in it to be trained."""
    shortest = batch.select([min(range(len(batch.lengths)), key=batch.lengths.__getitem__)])
    nothing = {"trained": torch.zeros_like(shortest.trained)}
    if shortest.weights is not None:
        nothing["weights"] = torch.zeros_like(shortest.weights)
    return replace(shortest, **nothing)
