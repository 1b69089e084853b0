"""Parts of Megatron-Core's transformer that differ from its own: norms, attention, rotations and the output layer.

Its local layer specifications refuse sequence and context parallelism, packed sequences and latent attention without
Transformer Engine. These parts have them, on a CPU and on a GPU, and are put into the specification.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed._functional_collectives as collectives
import torch.nn.functional as F  # noqa: N812 - its customary name
from torch import Tensor, nn

from roll.engines.megatron.package import PackedSeqParams
from roll.engines.native.attention import AttentionOptions, Ragged
from roll.engines.native.packed import PackedAttention


@dataclass
class Sequences(PackedSeqParams):
    """The packed sequences of a micro-batch; the blocks pass it to attention and rotations unread.

    `qkv_format` and the bounds of sequences stay None, so that the blocks treat the tokens as one sequence.
    """

    layout: Ragged | PackedAttention | None = None
    positions: Tensor | None = None
    """[slice] positions in their sequences of the tokens of this context-parallel rank."""
    num_tokens: int = 0
    """Tokens of all context-parallel ranks together, without padding."""
    context: Any = None
    """Context-parallel ranks; None if there is one."""
    experts: Tensor | None = None
    """[tokens of this rank between layers, layers, k] to choose, -1 where the router chooses; None: it always does."""
    token_weights: Tensor | None = None
    """[tokens of this rank between layers] in the losses of routers; None without these."""


class SequenceNorm(nn.Module):
    """RMS norm. Its gradient is summed over tensor-parallel ranks, which have different tokens or heads."""

    def __init__(self, config: Any, hidden_size: int, eps: float = 1e-5, **_: Any) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(hidden_size, dtype=config.params_dtype)), eps
        self.weight.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.weight.shape, self.weight, self.eps)


class PackedCoreAttention(nn.Module):
    """Causal attention within each sequence. With context parallelism each rank computes all tokens of some heads."""

    def __init__(self, config: Any, layer_number: int, *_: Any, softmax_scale: float | None = None, **__: Any) -> None:
        super().__init__()
        scale = getattr(config, "attention_scale", None) or softmax_scale
        self._layer, self._options = layer_number, None if scale is None else AttentionOptions(scale=scale)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None = None,
        *_: Any,
        packed_seq_params: Sequences | None = None,
        **__: Any,
    ) -> Tensor:
        """[slice, 1, heads, size] each -> [slice, 1, heads * size of values]."""
        sequences = packed_seq_params
        assert sequences is not None and sequences.layout is not None
        group, num = sequences.context, sequences.num_tokens
        flat = (x.squeeze(1) if x.ndim == 4 else x for x in (query, key, value))  # latent attention has flattened them
        q, k, v = (_gather_tokens(x, group)[:num] for x in flat)
        mixed = sequences.layout.attend(self._layer, q, k, v, self._options)
        total = len(query) * (1 if group is None else group.size())
        padded = F.pad(mixed, (0, 0, 0, total - num)).view(total, q.shape[1], -1)
        return _gather_heads(padded, group).flatten(1).unsqueeze(1)


def _gather_tokens(x: Tensor, group: Any) -> Tensor:
    """[slice, heads, size] of this rank's tokens -> [tokens, heads of this rank, size]."""
    if group is None:
        return x
    by_rank = x.unflatten(1, (group.size(), -1)).transpose(0, 1).contiguous()
    return collectives.all_to_all_single_autograd(by_rank, None, None, group).flatten(0, 1)


def _gather_heads(x: Tensor, group: Any) -> Tensor:
    """[tokens, heads of this rank, size] -> [slice, heads, size]."""
    if group is None:
        return x
    by_rank = x.unflatten(0, (group.size(), -1)).contiguous()
    return collectives.all_to_all_single_autograd(by_rank, None, None, group).transpose(0, 1).flatten(1, 2)


class PositionRotary(nn.Module):
    """Angles of rotations by the positions of packed tokens, in place of those of one sequence."""

    def __init__(self, frequencies: Tensor, *, latent: bool) -> None:
        super().__init__()
        self.frequencies, self._latent = frequencies, latent

    def get_rotary_seq_len(self, *args: Any) -> Tensor:
        """What the blocks pass to `forward`: the positions of the tokens."""
        sequences = next(each for each in args if isinstance(each, Sequences))
        assert sequences.positions is not None
        return sequences.positions

    def forward(self, positions: Tensor, *_: Any, **__: Any) -> Any:
        angles = torch.outer(positions.float(), self.frequencies.to(positions.device))
        twice = torch.cat([angles, angles], -1).unsqueeze(1)
        return twice if self._latent else twice.unsqueeze(1)  # latent attention has flattened the tokens


class DownProjection(nn.Module):
    """Projection to latent vectors, whole on every rank, of which each has some tokens.

    Megatron-Core's sharded one loses the gradient that rotated keys have on other tensor-parallel ranks.
    """

    def __init__(self, config: Any, num_in: int, num_out: int) -> None:
        super().__init__()
        device = torch.cuda.current_device()
        self.weight = nn.Parameter(torch.empty(num_out, num_in, dtype=config.params_dtype, device=device))
        self.weight.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]

    def forward(self, x: Tensor) -> tuple[Tensor, None]:
        return F.linear(x, self.weight), None


class ValueHead(nn.Module):
    """In place of the output layer: one number in 32 bits for each token of this rank.

    It is whole on every tensor-parallel rank. Its gradient is the sum of theirs, since they have different tokens.
    """

    def __init__(self, config: Any) -> None:
        super().__init__()
        device = torch.cuda.current_device()
        self.weight = nn.Parameter(torch.zeros(1, config.hidden_size, dtype=config.params_dtype, device=device))
        self.weight.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]

    def forward(self, hidden: Tensor, *_: Any, **__: Any) -> tuple[Tensor, None]:
        return F.linear(hidden.float(), self.weight.float()), None


def hidden_states(input_: Tensor, *_: Any, **__: Any) -> tuple[Tensor, None]:
    """In place of the output layer: logits are computed in chunks, by `vocabulary`."""
    return input_, None
