"""A model of which this rank holds a shard, by FSDP2."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor
from transformers import PretrainedConfig

from roll.config.lora import Lora
from roll.engines.fsdp.ranks import Ranks
from roll.engines.native.lora import is_adapter
from roll.engines.native.mixed import Precision
from roll.errors import ConfigError
from roll.weights.digest import Digest


class ShardedModel(nn.Module):
    """It is created without memory: `allocate` gives it some, `fill` loads the weights."""

    logit_cap: float | None = None

    def __init__(self, config: PretrainedConfig, ranks: Ranks, lora: Lora | None) -> None:
        super().__init__()
        self.config, self.ranks, self.lora = config, ranks, lora
        self.frozen_digest: Digest | None = None
        """Digest of this rank's part of the frozen weights, computed on first use."""
        self.device = torch.device("cpu")

    def allocate(self, layers: Iterable[nn.Module], device: torch.device, precision: Precision) -> None:
        """Shard each layer and then the rest, and allocate this rank's shards. Buffers keep their contents."""
        ranks, offload = self.ranks, self.ranks.layout.offload
        self.device = device
        if self.lora is not None and precision.dtype is not None:
            for parameter in self.parameters():
                if not parameter.requires_grad:  # frozen, so it needs no more precision than the computation
                    parameter.data = parameter.data.to(precision.dtype)
        options: dict[str, Any] = {
            "mesh": ranks.mesh["shard"],
            "mp_policy": MixedPrecisionPolicy(param_dtype=precision.dtype, reduce_dtype=torch.float32),
            "offload_policy": CPUOffloadPolicy(pin_memory=device.type == "cuda") if offload else OffloadPolicy(),
        }
        for layer in layers:
            fully_shard(layer, **options)
        fully_shard(self, **options)
        for module in self.modules():
            if isinstance(module, FSDPModule):
                module.set_gradient_divide_factor(1.0)  # a sum: token weights include the denominator
                module.set_force_sum_reduction_for_comms(True)
        buffers = {name: buffer.to(device) for name, buffer in self.named_buffers()}
        self.to_empty(device="cpu" if offload else device)
        for name, buffer in buffers.items():
            module, _, last = name.rpartition(".")
            setattr(self.get_submodule(module), last, buffer)

    def slice_of(self, num_tokens: int) -> tuple[int, int]:
        """The first token that this rank computes, and how many; the last ones may be padding."""
        size = -(-num_tokens // self.ranks.layout.cp)
        return self.ranks.cp_rank * size, size

    @torch.no_grad()
    def fill(self, tensors: Mapping[str, Tensor], *, adapters: bool | None = None) -> None:
        """Receive the weights that rank 0 passes by name; `tensors` of other ranks are ignored.

        `adapters`: True for adapters only, False for everything else, None for both.
        """
        for name, parameter in self._sharded_parameters(adapters=adapters):
            if self.ranks.rank == 0:
                whole = self.whole_of(name, parameter, tensors).to(self.device, parameter.dtype).contiguous()
            else:
                whole = torch.empty(parameter.shape, dtype=parameter.dtype, device=self.device)
            dist.broadcast(whole, 0)
            parameter.to_local().copy_(self.shard_of(parameter, whole))
            del whole  # before the next is read

    @torch.no_grad()
    def named_tensors(
        self, *, adapters: bool = False, dtype: torch.dtype | None = None
    ) -> Iterator[tuple[str, Tensor]]:
        """Every parameter, or every adapter, whole, one by one, on every rank: all ranks must iterate to the end.

        Parameters are rounded to `dtype`; None leaves them as they are.
        """
        for name, parameter in self._sharded_parameters(adapters=adapters):
            for part, tensor in self.parts_of(name, parameter.detach().to(self.device).full_tensor()):
                yield part, tensor.to(dtype or tensor.dtype)

    def local_parts(self, *, adapters: bool = False, dtype: torch.dtype | None = None) -> Iterator[tuple[str, Tensor]]:
        """This rank's shards, rounded to `dtype`; of those replicated over tensor-parallel ranks, the first one's."""
        for name, parameter in self._sharded_parameters(adapters=adapters):
            if self.ranks.tp_rank == 0 or tp_dim(parameter) is not None:
                yield name, parameter.detach().to_local().to(dtype or parameter.dtype)

    def shard_of(self, parameter: DTensor, whole: Tensor) -> Tensor:
        """This rank's shard of a parameter, or of a tensor of the same shape."""
        dim, layout = tp_dim(parameter), self.ranks.layout
        if dim is not None:
            whole = _piece(whole, dim, layout.tp, self.ranks.tp_rank)
        return _piece(whole, 0, layout.size // layout.tp, self.ranks.shard)

    def check_names(self, tensors: Mapping[str, Tensor], where: str) -> None:
        """Raise `ConfigError`, on all ranks, if a tensor of the model is missing."""
        for name, parameter in self.named_parameters():
            for part in self.names_in(name, getattr(parameter, "ds_shape", parameter.shape)):
                if part not in tensors:
                    raise ConfigError(f"{where}: tensor {part} is missing; the weights are incomplete")

    def names_in(self, name: str, shape: Sequence[int]) -> list[str]:
        """The names of the tensors of a file in a parameter of this shape."""
        return [part for part, _ in self.parts_of(name, torch.empty(tuple(shape), device="meta"))]

    def whole_of(self, name: str, parameter: Any, tensors: Mapping[str, Tensor]) -> Tensor:
        """A parameter, or a tensor of the same shape, from the tensors of a file."""
        return tensors[name]

    def parts_of(self, name: str, whole: Tensor) -> Iterator[tuple[str, Tensor]]:
        """The tensors of a file in a parameter."""
        yield name, whole

    def _sharded_parameters(self, *, adapters: bool | None = None) -> list[tuple[str, Any]]:
        parameters = [each for each in self.named_parameters() if adapters is None or is_adapter(each[0]) == adapters]
        assert all(isinstance(parameter, DTensor) for _, parameter in parameters), "reshard after every forward pass"
        return parameters


def tp_dim(parameter: DTensor) -> int | None:
    """The dimension that tensor parallelism shards; None if the parameter is replicated."""
    if parameter.device_mesh.ndim == 1:
        return None
    placement: Any = parameter.placements[1]
    return placement.dim if placement.is_shard() else None


def _piece(whole: Tensor, dim: int, parts: int, index: int) -> Tensor:
    """The piece of the rank with this index; empty if there are more ranks than rows."""
    pieces = whole.chunk(parts, dim)
    return pieces[index] if index < len(pieces) else whole.narrow(dim, 0, 0)
