"""Master weights: 32-bit copies of weights of 16 bits, which the optimizer steps and then rounds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from roll.engines.megatron.ranks import parallel_state


class _Range(NamedTuple):
    """A range of the numbers of a parameter, as this rank's optimizer has it."""

    values: Tensor
    start: int


class MasterWeights:
    """This rank's ranges of them: AdamW shards them over data-parallel ranks, SGD does not."""

    def __init__(self, parts: Sequence[Any]) -> None:
        """`parts` are Megatron-Core's optimizers, over a model of 16 bits."""
        groups = parallel_state()
        self._dense = groups.get_data_parallel_group(with_context_parallel=True)
        self._experts = groups.get_expert_data_parallel_group()
        self._sharded = any(hasattr(part, "shard_fp32_from_float16_groups") for part in parts)
        self._ranges = {id(parameter): values for part in parts for parameter, values in _ranges(part)}

    def set(self, parameter: Tensor, values: Tensor) -> None:
        """Take over values of at least the parameter's precision, with its shape."""
        if (mine := self._ranges.get(id(parameter))) is not None:
            part = values.flatten()[mine.start : mine.start + mine.values.numel()]
            mine.values.detach().copy_(part.view_as(mine.values))

    def shared_by(self, rank: int, *, expert: bool) -> bool:
        """Whether this rank and `rank` have ranges of the same parameters."""
        return rank in dist.get_process_group_ranks(self._experts if expert else self._dense)

    def whole(self, parameter: Tensor, *, expert: bool) -> Tensor:
        """The master of a parameter, on all ranks that share it, which must all call this."""
        mine = self._ranges.get(id(parameter))
        if not self._sharded:
            assert mine is not None
            return mine.values.detach()
        whole = torch.zeros(parameter.numel(), device=parameter.device)
        if mine is not None:
            whole[mine.start : mine.start + mine.values.numel()] = mine.values.detach().flatten()
        dist.all_reduce(whole, group=self._experts if expert else self._dense)
        return whole.view_as(parameter)


def _ranges(part: Any) -> Iterator[tuple[Tensor, _Range]]:
    sharded = hasattr(part, "shard_fp32_from_float16_groups")
    models = part.model_float16_groups if sharded else part.float16_groups
    masters = part.shard_fp32_from_float16_groups if sharded else part.fp32_from_float16_groups
    for parameters, values in zip(models, masters, strict=True):
        for parameter, each in zip(parameters, values, strict=True):
            yield parameter, _Range(each, part._get_model_param_range_map(parameter)["param"].start if sharded else 0)
