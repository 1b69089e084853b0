"""A model whose parameters DeepSpeed ZeRO holds: whole on every rank in stages 1 and 2, in parts in stage 3."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional

from roll.engines.deepspeed.package import deepspeed
from roll.engines.deepspeed.ranks import ZeroLayout
from roll.engines.fsdp.huggingface import ShardedHuggingFace
from roll.engines.fsdp.model import ShardedDecoder
from roll.engines.fsdp.sharded import ShardedModel
from roll.engines.native.mixed import Precision


class ZeroModel(ShardedModel):
    """Created without memory: `allocate` gives it some, `fill` loads the weights once the optimizer exists."""

    def allocate(self, layers: Iterable[nn.Module], device: torch.device, precision: Precision) -> None:
        """Allocate the parameters; in stage 3 one after the other, of which this rank keeps its part."""
        self.device, dtype = device, precision.dtype or torch.float32
        buffers = {name: buffer.to(device) for name, buffer in self.named_buffers()}
        allocated: dict[int, nn.Parameter] = {}  # tied parameters stay one object
        for module in list(self.modules()):
            for name, empty in list(module.named_parameters(recurse=False)):
                if id(empty) not in allocated:
                    parameter = nn.Parameter(torch.zeros(empty.shape, dtype=dtype, device=device))
                    if self.divided:
                        self._divide(parameter, next(iter(allocated.values()), None))
                    allocated[id(empty)] = parameter
                    allocated[id(parameter)] = parameter
                setattr(module, name, allocated[id(empty)])
        for name, buffer in buffers.items():
            owner, _, last = name.rpartition(".")
            setattr(self.get_submodule(owner), last, buffer)

    def reshard(self) -> None:
        """Does nothing: DeepSpeed releases gathered parameters at the end of a forward pass."""

    @torch.no_grad()
    def fill(self, tensors: Mapping[str, Tensor], *, adapters: bool | None = None) -> None:
        """Receive the weights that rank 0 passes by name; `tensors` of other ranks are ignored."""
        for name, parameter in self.named_parameters():
            shape = shape_of(parameter)
            if self.ranks.rank == 0:
                outline = torch.empty(shape, device="meta")
                whole = self.whole_of(name, outline, tensors).to(self.device, torch.float32).contiguous()
            else:
                whole = torch.empty(shape, device=self.device)
            dist.broadcast(whole, 0)
            if self.divided and not cast(Any, parameter).ds_persist:
                cast(Any, parameter).ds_tensor.copy_(self._part(parameter, whole))  # without gathering the old weights
            elif self.divided:
                with deepspeed().zero.GatheredParameters([parameter], modifier_rank=0):
                    parameter.copy_(whole)
            else:
                parameter.copy_(whole)
            self.write("weights", parameter, whole)
            del whole  # before the next is read

    @torch.no_grad()
    def named_tensors(
        self, *, adapters: bool = False, dtype: torch.dtype | None = None
    ) -> Iterator[tuple[str, Tensor]]:
        """Every parameter, whole, one by one, on every rank: all ranks must iterate to the end.

        In `dtype`, as they are published; None: the 32-bit weights that the optimizer changes.
        """
        for name, parameter in [] if adapters else list(self.named_parameters()):
            whole = self.read("weights", parameter) if dtype is None else self._gather(parameter)
            for part, tensor in self.parts_of(name, whole):
                yield part, tensor.to(dtype or tensor.dtype)

    def local_parts(self, *, adapters: bool = False, dtype: torch.dtype | None = None) -> Iterator[tuple[str, Tensor]]:
        """This rank's parts of all parameters, rounded to `dtype`."""
        for name, parameter in self.named_parameters():
            if self.divided:
                yield name, self._own_part(parameter).to(dtype or parameter.dtype)
            else:
                flat = parameter.detach().view(-1)
                first, size = _span(flat.numel(), self.ranks.rank, self.ranks.layout.size)
                yield name, flat[first : first + size].to(dtype or parameter.dtype)

    def read(self, what: str, parameter: Any) -> Tensor:
        """A parameter's 32-bit `weights`, or a state of the optimizer, whole on every rank; all ranks must call it."""
        utils = deepspeed("utils")
        if what == "weights":
            return utils.safe_get_full_fp32_param(parameter)
        return utils.safe_get_full_optimizer_state(parameter, what)

    def write(self, what: str, parameter: Any, whole: Tensor) -> None:
        """The opposite of `read`: each rank keeps its part."""
        utils, key = deepspeed("utils"), () if what == "weights" else (what,)
        if not self.divided:
            setter = utils.safe_set_full_optimizer_state if key else utils.safe_set_full_fp32_param
            setter(parameter, whole, *key)
            return
        setter = utils.safe_set_local_optimizer_state if key else utils.safe_set_local_fp32_param
        setter(parameter, self._part(parameter, whole), *key)

    def _gather(self, parameter: Any) -> Tensor:
        if not self.divided:
            return parameter.detach()
        with deepspeed().zero.GatheredParameters([parameter]):
            return parameter.detach().to(self.device, copy=True)

    def _part(self, parameter: Any, whole: Tensor) -> Tensor:
        """This rank's part of a whole tensor, with the padding of the last rank."""
        size = parameter.ds_tensor.numel()
        part = whole.reshape(-1)[size * self.ranks.rank :][:size]
        return functional.pad(part, (0, size - len(part)))

    def _own_part(self, parameter: Any) -> Tensor:
        """Without the padding of the last rank."""
        part = parameter.ds_tensor.detach().view(-1)
        return part[: max(0, min(len(part), parameter.ds_numel - len(part) * self.ranks.rank))]

    @property
    def divided(self) -> bool:
        """Whether this rank holds a part of each parameter."""
        return self._layout.stage == 3

    @property
    def _layout(self) -> ZeroLayout:
        return cast(ZeroLayout, self.ranks.layout)

    def _divide(self, parameter: nn.Parameter, other: Any) -> None:
        """Leave this rank its part of a parameter; `other` is one that is divided already."""
        if other is not None:
            other.convert_to_zero_parameters(param_list=[parameter])
            return
        config = {"train_micro_batch_size_per_gpu": 1, "zero_optimization": self._layout.settings()}
        deepspeed().zero.Init(
            module=nn.ParameterList([parameter]),
            config_dict_or_path=config,
            dtype=parameter.dtype,
            mem_efficient_linear=False,
        )


class ZeroDecoder(ShardedDecoder, ZeroModel):
    """The native decoder."""

    def shard(self, device: torch.device, precision: Precision) -> None:
        super().shard(device, precision)
        cos, sin = (table.to(precision.dtype or table.dtype) for table in self.rotations)
        self.rotations = (cos, sin)


class ZeroHuggingFace(ShardedHuggingFace, ZeroModel):
    """A model of transformers."""


def shape_of(parameter: Any) -> torch.Size:
    """The shape of the whole parameter."""
    return torch.Size(getattr(parameter, "ds_shape", parameter.shape))


def _span(num: int, rank: int, ranks: int) -> tuple[int, int]:
    """The first of the numbers of a rank, and how many there are."""
    size = -(-num // ranks)
    first = min(num, rank * size)
    return first, min(size, num - first)
