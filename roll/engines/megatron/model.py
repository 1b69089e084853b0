"""This rank's part of a model in Megatron-Core's blocks, and its weights under their Hugging Face names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from transformers import PretrainedConfig

from roll.config.megatron import num_experts
from roll.engines.megatron.blocks import DownProjection, PositionRotary, ValueHead, hidden_states
from roll.engines.megatron.experts import RouterLoad
from roll.engines.megatron.families import attention_scale, block_spec, rotary_frequencies, transformer_config
from roll.engines.megatron.masters import MasterWeights
from roll.engines.megatron.names import SCORE, VOCABULARY, ParameterNames, ParameterSource, group_rows, pad_rows, read
from roll.engines.megatron.package import (
    ColumnParallelLinear,
    GPTModel,
    MLASelfAttention,
    RowParallelLinear,
    TransformerLayer,
    VocabParallelEmbedding,
    set_tensor_model_parallel_attributes,
)
from roll.engines.megatron.ranks import MegatronLayout, MegatronRanks
from roll.engines.megatron.replay import install_replay
from roll.engines.megatron.vocabulary import VocabularyPart
from roll.engines.native.mixed import Precision
from roll.errors import ConfigError
from roll.types import Sampling
from roll.weights.huggingface import classifier_config

_UNTRAINED = ("expert_bias",)
"""Ends of the names of buffers that are in the files of a model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterPiece:
    """One parameter of a rank, as all ranks know it."""

    rank: int
    index: int
    """Index among the rank's parameters."""
    source: ParameterSource
    part: int
    """Which of the shards."""
    parts: int
    shape: tuple[int, ...]
    dtype: torch.dtype
    """Of the tensor that is sent."""
    master: bool
    """Whether the optimizer's master weights are sent."""


class MegatronModel:
    """The layers, embeddings and output layer of one rank."""

    def __init__(
        self, config: PretrainedConfig, ranks: MegatronRanks, precision: Precision, *, scored: bool = False
    ) -> None:
        """With `scored` it has a score head instead of an output layer: a critic or a reward model."""
        layout: MegatronLayout = ranks.layout
        self.config, self.ranks = classifier_config(config) if scored else config, ranks
        self.masters: MasterWeights | None = None
        """Set by an optimizer of weights of 16 bits."""
        self.core = transformer_config(config, layout, precision)
        self.core.attention_scale = attention_scale(config)
        self.vocab = config.vocab_size
        self.padded_vocab = -(-config.vocab_size // layout.tp) * layout.tp
        self.scored = scored
        self.tied = bool(config.tie_word_embeddings) and not scored
        self._names = ParameterNames.of(config.model_type, scored=scored)
        self.module: Any = self._build()
        self._experts = num_experts(config.to_dict()) // layout.ep
        self.tensors = list(self._sources(self.module))
        self.router_load = RouterLoad(self.module, self.core)
        install_replay(self.module, self.router_load)

    def _build(self) -> Any:
        module = GPTModel(
            self.core,
            block_spec(self.core),
            vocab_size=self.padded_vocab,
            max_sequence_length=self.config.max_position_embeddings,
            pre_process=self.ranks.stage == 0,
            post_process=self.ranks.last_stage,
            position_embedding_type="rope",
            share_embeddings_and_output_weights=self.tied,
            parallel_output=True,
        )
        rotary = PositionRotary(rotary_frequencies(self.config), latent=self._names.latent)
        for each in module.modules():
            if hasattr(each, "rotary_pos_emb"):
                each.rotary_pos_emb = rotary
            if isinstance(each, MLASelfAttention):
                _replace_down_projections(each, self.core)
        if module.post_process and self.scored:
            module.output_layer = ValueHead(self.core)
        elif module.post_process:
            module.output_layer.forward = hidden_states
        _mark_shards(module)
        return module.cuda()  # parts of it begin on the host

    def vocabulary(self, sampling: Sampling, *, entropy_gradient: bool = False) -> VocabularyPart:
        """This rank's part of the output layer, for a distribution; only on the last stage."""
        module, ranks = self.module, self.ranks
        weight = module.shared_embedding_or_output_weight() if self.tied else module.output_layer.weight
        return VocabularyPart(
            weight=weight,
            first=ranks.tp_rank * len(weight),
            total=self.vocab,
            group=ranks.tensor,
            sampling=sampling,
            entropy_gradient=entropy_gradient,
        )

    @torch.no_grad()
    def fill(self, tensors: Mapping[str, Any], where: str, *, new_score: bool = False) -> None:
        """Copy this rank's part of the tensors of a model directory, which are read one by one.

        With `new_score` a score head that is not among them stays 0.
        """
        for _, source, target in self.tensors:
            if new_score and source.names == (SCORE,) and SCORE not in tensors:
                continue
            shard = self.cut(source, [read(tensors, each, where) for each in source.names])
            if shard.shape != target.shape:
                name, shape = source.names[0], tuple(shard.shape)
                raise ConfigError(f"{where}: tensor {name} {shape} does not fit config.json; take both from one model")
            target.copy_(shard)
            if self.masters is not None:
                self.masters.set(target, shard)

    def cut(self, source: ParameterSource, parts: Sequence[Tensor]) -> Tensor:
        """This rank's part of a parameter, from tensors of files."""
        if source.names[0] in VOCABULARY:
            parts = [pad_rows(part, self.padded_vocab) for part in parts]
        return source.shard(parts, *self.part_of(source), self._groups)

    def join(self, source: ParameterSource, shards: Sequence[Tensor]) -> dict[str, Tensor]:
        """The tensors of files, from the parts of a parameter."""
        whole = source.whole(shards, self._groups, group_rows(self.core))
        return {name: tensor[: self.vocab] if name in VOCABULARY else tensor for name, tensor in whole.items()}

    @property
    def _groups(self) -> int:
        """Groups of heads that share keys and values."""
        return self.core.num_query_groups or self.core.num_attention_heads

    def local_parts(self, dtype: torch.dtype | None = None) -> Iterator[Tensor]:
        """The tensors of this rank of which it has the first copy, rounded to `dtype` except for buffers."""
        for name, source, tensor in self.tensors:
            if self._owns(name, source):
                yield _rounded(tensor, dtype)

    def named_tensors(self, dtype: torch.dtype | None = None) -> Iterator[tuple[str, Tensor]]:
        """On rank 0 all tensors under their names in files, one by one; the other ranks send theirs and yield none.

        Without a `dtype`, weights of 16 bits are those of the optimizer's master weights, in 32.
        """
        rows: list[Tensor] = []
        for piece in self._plan(dtype):
            shard = self._fetch(piece, dtype)
            if self.ranks.rank != 0:
                continue
            assert shard is not None
            rows.append(shard)
            if piece.part < piece.parts - 1:
                continue
            whole = self.join(piece.source, rows)
            del shard, rows[:]  # each tensor is freed before the next one arrives
            for name in list(whole):
                yield name, whole.pop(name)

    def _fetch(self, piece: ParameterPiece, dtype: torch.dtype | None) -> Tensor | None:
        """On rank 0 a piece of any rank."""
        tensor: Tensor | None = None
        if piece.master and self.masters is not None:
            if self.masters.shared_by(piece.rank, expert=piece.source.expert):  # these ranks have equal parameters
                tensor = self.masters.whole(self.tensors[piece.index][2], expert=piece.source.expert)
        elif piece.rank == self.ranks.rank:
            tensor = _rounded(self.tensors[piece.index][2], dtype)
        if piece.rank == self.ranks.rank:
            assert tensor is not None
            if self.ranks.rank != 0:
                dist.send(tensor.contiguous(), 0)
            return tensor
        if self.ranks.rank != 0:
            return None
        received = torch.empty(piece.shape, dtype=piece.dtype, device=self.device)
        dist.recv(received, piece.rank)
        return received

    def _has_master(self, tensor: Tensor) -> bool:
        return self.masters is not None and isinstance(tensor, nn.Parameter) and tensor.dtype == torch.bfloat16

    @property
    def device(self) -> torch.device:
        return self.tensors[0][2].device

    def _plan(self, dtype: torch.dtype | None) -> list[ParameterPiece]:
        """The pieces of all ranks, each once: those of one parameter follow one another, in the order of its parts."""
        mine = [
            ParameterPiece(
                rank=self.ranks.rank,
                index=index,
                source=source,
                part=self.part_of(source)[0],
                parts=self.part_of(source)[1],
                shape=tuple(tensor.shape),
                dtype=torch.float32 if dtype is None and self._has_master(tensor) else _rounded(tensor, dtype).dtype,
                master=dtype is None and self._has_master(tensor),
            )
            for index, (name, source, tensor) in enumerate(self.tensors)
            if self._owns(name, source)
        ]
        every: list[Any] = [None] * self.ranks.layout.size
        dist.all_gather_object(every, mine)
        by_names: dict[tuple[str, ...], dict[int, ParameterPiece]] = {}
        for piece in (each for pieces in every for each in pieces):
            by_names.setdefault(piece.source.names, {}).setdefault(piece.part, piece)
        return [pieces[part] for pieces in by_names.values() for part in sorted(pieces)]

    def part_of(self, source: ParameterSource) -> tuple[int, int]:
        """Which part of a parameter this rank has, and how many there are."""
        ranks, layout = self.ranks, self.ranks.layout
        if source.dim is None:
            return 0, 1
        return (ranks.expert_tp_rank, layout.expert_tp) if source.expert else (ranks.tp_rank, layout.tp)

    def _owns(self, name: str, source: ParameterSource) -> bool:
        """Whether this rank has the first copy of a parameter."""
        if self.tied and name == "output_layer.weight":  # the copy of the embeddings on the last stage
            return False
        if source.expert:
            return self.ranks.first_expert_copy
        return self.ranks.first_copy and (source.dim is not None or self.ranks.tp_rank == 0)

    def _sources(self, module: Any) -> Iterator[tuple[str, ParameterSource, Tensor]]:
        """The parameters and saved buffers of a module, and where they are in files."""
        layers = [each for each in module.modules() if isinstance(each, TransformerLayer)]
        first_layer = layers[0].layer_number - 1
        buffers = [each for each in module.named_buffers() if each[0].endswith(_UNTRAINED)]
        for name, tensor in [*module.named_parameters(), *buffers]:
            tied = name == "output_layer.weight" and self.tied
            source = self._names.source(
                "embedding.word_embeddings.weight" if tied else name,
                first_layer=first_layer,
                first_expert=self.ranks.expert_rank * self._experts,
            )
            yield name, source, tensor


def _rounded(tensor: Tensor, dtype: torch.dtype | None) -> Tensor:
    detached = tensor.detach()
    return detached if dtype is None or not isinstance(tensor, nn.Parameter) else detached.to(dtype)


def _replace_down_projections(attention: Any, core: Any) -> None:
    if core.q_lora_rank is not None:
        attention.linear_q_down_proj = DownProjection(core, core.hidden_size, core.q_lora_rank)
    size = core.kv_lora_rank + core.qk_pos_emb_head_dim
    attention.linear_kv_down_proj = DownProjection(core, core.hidden_size, size)


def _mark_shards(module: nn.Module) -> None:
    """Mark parameters that are sharded, as initialisation would: the norm of the gradient counts others once."""
    for each in module.modules():
        dim = {ColumnParallelLinear: 0, VocabParallelEmbedding: 0, RowParallelLinear: 1}.get(type(each))
        if dim is None or each.weight is None:
            continue
        set_tensor_model_parallel_attributes(each.weight, True, dim, 1)
