"""Logprobs over the ranks of Megatron-Core: micro-batches run through the stages of its pipeline schedules.

As in `roll.engines.fsdp.logprob_model`, every rank receives the same calls with the whole batch and returns the same
results. Ranks that read different rows run equally many micro-batches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812 - its customary name
from torch import Tensor

from roll.engines.base import Part
from roll.engines.fsdp.logprob_model import RankedLogprobModel
from roll.engines.fsdp.ranks import reduce_forward
from roll.engines.megatron.ranks import MegatronRanks
from roll.engines.native.attention import Ragged, sharing
from roll.engines.native.model_spec import ModelSpec, architecture, model_directory
from roll.engines.native.packed import PACKED, PackedAttention, to_device
from roll.engines.native.trainer import ForwardOutput, LogprobSettings, first_tokens, replay_arguments
from roll.errors import ConfigError
from roll.types import Batch, Sampling
from roll.weights.huggingface import TensorFiles

Read = Callable[[int, ForwardOutput], Tensor]
"""What to do with the output of a micro-batch, by its index; returns the loss."""


class MegatronLogprobModel(RankedLogprobModel):
    """`LogprobModel` on one of many ranks."""

    ranks: MegatronRanks

    def __init__(self, model_spec: ModelSpec, settings: LogprobSettings, ranks: MegatronRanks) -> None:
        self.settings, self.ranks, self.model_spec = settings, ranks, model_spec
        if model_spec.lora is not None:
            raise ConfigError("actor_train.lora: backend megatron trains no adapters; choose fsdp2")

    async def start(self) -> None:
        """Join the other ranks; each reads its part of the weights."""
        with self.ranks.blame_peers("its start"):
            self.ranks.join(self.settings.device)
            from roll.engines.megatron.model import MegatronModel  # the package exists from here

            config, new_score = architecture(self.model_spec.model), self.model_spec.head == "new score"
            self.decoder = MegatronModel(config, self.ranks, self.settings.precision, scored=self._scored)
            self._prepare()
            with model_directory(self.model_spec) as directory:
                self.decoder.fill(TensorFiles(directory), str(directory), new_score=new_score)

    def _prepare(self) -> None:
        """Called with allocated parameters, before they are filled."""

    def _move(self, parts: Sequence[Part], device: torch.device) -> None:
        raise ConfigError("megatron: its weights stay on their device; give the trainer devices that no other role has")

    @property
    def _module(self) -> Any:
        """The module that the schedule runs."""
        return self.decoder.module

    @property
    def _scored(self) -> bool:
        return self.model_spec.head != "logits"

    async def _each_output(
        self,
        batch: Batch,
        read: Callable[[Sequence[int], ForwardOutput], None],
        sampling: Sampling | None,
        *,
        base: bool,
    ) -> None:
        """Without gradients; only ranks whose rows count call `read`."""
        parts = list(self._microbatches(batch))

        def pass_on(index: int, output: ForwardOutput) -> Tensor:
            if self.ranks.reports:
                read(parts[index][0], output)
            return output.logprobs.sum()  # the schedule takes it for a loss

        with torch.no_grad():
            everything = [torch.ones_like(part.trained) for _, part in parts]
            self._run([part for _, part in parts], everything, pass_on, sampling=sampling, backward=False)

    def _whole_row(self, row: Tensor) -> Tensor:
        dist.all_reduce(row)
        return row

    def _run(
        self,
        parts: Sequence[Batch],
        needed: Sequence[Tensor],
        read: Read,
        *,
        sampling: Sampling | None = None,
        entropy_gradient: bool = False,
        backward: bool = True,
    ) -> None:
        """Run micro-batches through all stages; `read` receives the outputs on the last stage."""
        from roll.engines.megatron.package import get_forward_backward_func

        def forward(indices: Iterator[int], module: Any) -> tuple[Tensor, Any]:
            index = next(indices)
            part = parts[index]
            inputs = _StageInputs(part, self, index)
            counts = backward and bool(part.trained.any())  # an idle micro-batch has no trained tokens
            with self.decoder.router_load.counting(inputs.num_mine) if counts else nullcontext():
                hidden = module(inputs.ids, inputs.positions, None, packed_seq_params=inputs.sequences)
            score = partial(self._score, part, inputs, needed[index], sampling, entropy_gradient)
            return hidden, lambda hidden: (read(index, score(hidden)), torch.ones((), dtype=torch.int), {})

        get_forward_backward_func()(
            forward_step_func=forward,
            data_iterator=iter(range(len(parts))),
            model=[self._module],
            num_microbatches=len(parts),
            seq_length=1,  # differs between micro-batches: stages exchange shapes
            micro_batch_size=1,
            forward_only=not backward,
        )

    def _score(
        self,
        batch: Batch,
        inputs: _StageInputs,
        needed: Tensor,
        sampling: Sampling | None,
        entropy_gradient: bool,
        hidden: Tensor,
    ) -> ForwardOutput:
        """Outputs at the needed tokens, 0 elsewhere, from the hidden states or the values of this rank's slice."""
        from roll.engines.megatron.package import mappings
        from roll.engines.megatron.vocabulary import score

        decoder, ranks, device = self.decoder, self.ranks, self.decoder.device
        states = hidden.transpose(0, 1)
        if ranks.tensor is not None:  # gradients of hidden states are summed: each rank has part of the vocabulary
            summed = not self._scored
            states = mappings.gather_from_sequence_parallel_region(states.contiguous(), summed)
        at = to_device((needed & ~first_tokens(batch)).nonzero().squeeze(-1), device)
        positions = inputs.layout.flat_index(at - 1) - inputs.first
        inside = (positions >= 0) & (positions < inputs.size)
        at, before = at[inside], states[:, 0].index_select(0, positions[inside])
        zeros = torch.zeros(len(batch.ids), device=device)
        if self._scored:
            values = reduce_forward(zeros.index_copy(0, at, before.squeeze(-1)), ranks.context)
            return ForwardOutput(logprobs=zeros, entropies=zeros, values=values)
        logprobs, entropies, ids = zeros, zeros, to_device(batch.ids, device)
        kinds = self._samplings(batch, at.cpu()) if sampling is None else []
        for kind, chosen in kinds or [(sampling or self.settings.sampling, None)]:
            to, some = (at, before) if chosen is None else (at[chosen], before[chosen])
            scores = score(some, decoder.vocabulary(kind, entropy_gradient=entropy_gradient), ids[to])
            logprobs, entropies = logprobs.index_copy(0, to, scores[0]), entropies.index_copy(0, to, scores[1])
        return ForwardOutput(
            logprobs=reduce_forward(logprobs, ranks.context),
            entropies=reduce_forward(entropies, ranks.context),
            values=None,
        )


class _StageInputs:
    """What a rank feeds to the blocks for one micro-batch."""

    def __init__(self, batch: Batch, model: MegatronLogprobModel, index: int) -> None:
        """`index`: of the micro-batch."""
        from roll.engines.megatron.blocks import Sequences

        layout, ranks, device = model.ranks.layout, model.ranks, model.decoder.device
        packed = device.type == "cuda" and model.settings.precision.dtype in PACKED
        self.layout = (PackedAttention if packed else Ragged)(batch.lengths, device=device, shared=sharing(batch))
        flat = to_device(batch.ids, device)[self.layout.flat_tokens]
        multiple = layout.tp * layout.cp
        total = -(-len(flat) // multiple) * multiple
        self.size = total // layout.cp
        self.first = ranks.cp_rank * self.size
        share = self.size // layout.tp
        self.num_mine = min(max(0, len(flat) - self.first - ranks.tp_rank * share), share)
        """Tokens of this rank between layers, where tensor parallelism divides them, without padding."""
        mine = slice(self.first, self.first + self.size)
        ids, positions = (F.pad(row, (0, total - len(flat)))[mine] for row in (flat, self.layout.positions))
        self.ids, self.positions = ids[None], positions[None]
        experts = replay_arguments(batch, self.layout).get("experts") if model.model_spec.head == "logits" else None
        weights = None if model.router_losses is None else model.router_losses.weights(index, batch, self.layout)
        start = self.first + ranks.tp_rank * share

        def pad(rows: Tensor | None, value: int) -> Tensor | None:
            if rows is None:
                return None
            return torch.cat([rows, rows.new_full((total - len(flat), *rows.shape[1:]), value)])[start : start + share]

        self.sequences = Sequences(
            layout=self.layout,
            positions=positions,
            num_tokens=len(flat),
            context=ranks.context,
            experts=pad(experts, -1),
            token_weights=pad(weights, 0),
        )
