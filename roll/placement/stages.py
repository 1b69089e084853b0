"""Bytes per rank of a trainer of backend megatron, for each pipeline stage.

| part | bytes |
|---|---|
| weights | the stage's by tp, experts by ep if that is above 1; embeddings on the first stage, output on the last |
| gradients | 4 per weight, always allocated |
| optimizer | AdamW: 8 per weight, and 4 if it has 16 bits, divided among the ranks that have the same weights |
| activations | of as many micro-batches as are in flight, which is pp on the first stage and 1 on the last |
| of these, recomputed | the layers' inputs per micro-batch, and one layer whole |
| logits | last stage: chunks of 256 MiB, and the output layer's gradient |
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil

from roll.placement.blocks import Blocks, LayerSize, StageSize
from roll.placement.facts import RoleFacts, RunFacts

_GRADIENT, _MOMENTS, _MASTER = 4, 8, 4
_CHUNK, _CHUNK_COPIES = 256 * 2**20, 4
"""Logits of a chunk of tokens, their logprobs, and the gradient of both, with what computes it."""
PERSISTENT, TEMPORARY = ("weights", "gradients", "optimizer"), ("activations", "logits")


@dataclass(frozen=True, slots=True, kw_only=True)
class StageBytes:
    """Bytes of each rank of one stage."""

    stage: int
    bytes: Mapping[str, int]
    """By part."""

    @property
    def total(self) -> int:
        return sum(self.bytes.values())


def blocks_of(role: RoleFacts) -> Blocks:
    """The layers of the model of a trainer of backend megatron."""
    assert role.model is not None and role.model.blocks is not None, "the planner knows its family"
    return role.model.blocks


def stage_bytes(facts: RunFacts, role: RoleFacts, num: int) -> list[StageBytes]:
    """The bytes of the ranks of each stage, with `num` ranks together."""
    return [_bytes(facts, role, num, index, stage) for index, stage in enumerate(blocks_of(role).stages(role.pp))]


def fullest_stage(facts: RunFacts, role: RoleFacts, num: int) -> StageBytes:
    """The stage whose ranks need the most memory: of equal ones the first, which holds the most activations."""
    kinds = blocks_of(role).stage_kinds(role.pp)
    return max((_bytes(facts, role, num, *kind) for kind in kinds), key=lambda each: each.total)


def _bytes(facts: RunFacts, role: RoleFacts, num: int, index: int, stage: StageSize) -> StageBytes:
    return StageBytes(stage=index, bytes=_parts(facts, role, num, stage, _in_flight(facts, role, num, index)))


def num_weights(role: RoleFacts, stage: StageSize) -> tuple[int, int]:
    """Weights of a rank of a stage: those of dense layers, and those of experts."""
    experts = stage.layers.experts // (role.ep * role.expert_tp)
    return blocks_of(role).dense_parameters(stage, role.tp, single=role.pp == 1), experts


def copies(role: RoleFacts, num: int) -> tuple[int, int]:
    """Ranks that have the same weights of dense layers, and of experts, and divide their optimizer state."""
    return max(1, num // (role.pp * role.tp)), max(1, num // (role.pp * role.ep * role.expert_tp))


def _in_flight(facts: RunFacts, role: RoleFacts, num: int, stage: int) -> int:
    """Most micro-batches whose activations a stage holds: it is `pp - stage` forward passes ahead."""
    rows = ceil(facts.trajectories / facts.minibatches * role.tp * role.cp * role.pp / max(1, num))
    most = ceil(max(1, rows) * facts.max_seq_len / max(1, role.tokens))
    return max(1, min(role.pp - stage, most))


def _parts(facts: RunFacts, role: RoleFacts, num: int, stage: StageSize, in_flight: int) -> dict[str, int]:
    blocks = blocks_of(role)
    dense, experts = num_weights(role, stage)
    dense_copies, expert_copies = copies(role, num)
    tokens = min(role.tokens, facts.trajectories * facts.max_seq_len) / role.cp
    per_weight = 0 if role.offload_optimizer else _MOMENTS + _MASTER * bool(role.master_bytes)
    held = dense / dense_copies + experts / expert_copies
    if not role.adaptive:  # state of SGD is not divided
        per_weight, held = _MASTER * bool(role.master_bytes), dense + experts
    parts = {
        "weights": (dense + experts) * role.weight_bytes,
        "gradients": (dense + experts) * _GRADIENT * role.trains,
        "optimizer": held * per_weight * role.trains,
        "activations": tokens * _activations(role, stage, blocks.hidden, in_flight) * role.weight_bytes,
        "logits": _logits(role, blocks, tokens) if stage.last else 0,
    }
    return {part: int(size) for part, size in parts.items()}


def _activations(role: RoleFacts, stage: StageSize, hidden: int, in_flight: int) -> float:
    """Values per token of a context-parallel rank, if experts get equally many tokens."""
    if role.checkpointed:
        return in_flight * stage.num_layers * hidden / role.tp + _row(role, stage.largest)
    return in_flight * _row(role, stage.layers)


def _row(role: RoleFacts, layer: LayerSize) -> float:
    """Tensor-parallel ranks divide the tokens; those that share an expert gather them."""
    return layer.row / role.tp + layer.copies / (1 if role.expert_tp > 1 else role.tp)


def _logits(role: RoleFacts, blocks: Blocks, tokens: float) -> float:
    rows = ceil(blocks.vocab / role.tp)
    return min(_CHUNK, tokens * rows * 4) * _CHUNK_COPIES + rows * blocks.hidden * _GRADIENT
