"""The processes that hold one model together: who of them reads which rows, and the sums that gradients flow through.

A rank is (data, context, tensor), the last counting fastest. Ranks that differ in the first read other rows; those that
differ in the others alone are peers, who read the same rows: each some of their tokens (context) or heads (tensor).
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as collectives
import torch.nn.functional as F  # noqa: N812 - its customary name
from torch import Tensor
from torch.autograd import Function
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from roll.engines.native.decoder import Attend
from roll.errors import ConfigError, WorkerDied


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """How many ranks there are, where they meet, and what they share."""

    url: str
    """`file:///path` in a folder that all of them see, fresh for every start, or `tcp://host:port` of rank 0."""
    size: int
    role: str = "actor_train"
    tp: int = 1
    """Ranks that share every layer."""
    cp: int = 1
    """Ranks that share every sequence."""
    offload: bool = False
    """Keep parameters and what the optimizer remembers on the host; a layer is copied to the device when it is due."""
    timeout_s: float = 600.0
    """For all to come, and for any one message between them."""

    @property
    def dp(self) -> int:
        """Groups of peers; each reads rows of its own."""
        return self.size // (self.tp * self.cp)


class Ranks:
    """This process's place among the others. One such group at a time is all that a process can be part of."""

    mesh: DeviceMesh
    """Along its first dimension parameters are sharded, along `tp`, where there is one, layers are."""
    data: Any
    """The group over which rows are dealt out."""
    peers: Any = None
    """The group that reads the same rows; None: nobody else does. So are those below."""
    tensor: Any = None
    context: Any = None
    aside: Any
    """The group of all for what is done while they do something else, between hosts."""

    def __init__(self, spread: Spread, rank: int) -> None:
        if spread.size % (spread.tp * spread.cp):
            raise ConfigError(
                f"{spread.role}.workers: {spread.size} do not divide into groups of tp {spread.tp} times "
                f"cp {spread.cp}; name a multiple"
            )
        self.spread, self.rank = spread, rank
        self.dp_rank, self.peer = divmod(rank, spread.tp * spread.cp)
        self.cp_rank, self.tp_rank = divmod(self.peer, spread.tp)
        self.shard = rank // spread.tp
        """Which of the shards along the mesh's first dimension is here."""
        self._joined = False

    def join(self, device: torch.device) -> None:
        """Meet the others; all of them must come. Nothing happens where they have met."""
        if self._joined:
            return
        spread, kind = self.spread, device.type
        if device.index is not None:
            torch.cuda.set_device(device)
        dist.init_process_group(
            "nccl" if kind == "cuda" else "gloo",
            init_method=spread.url,
            rank=self.rank,
            world_size=spread.size,
            timeout=timedelta(seconds=spread.timeout_s),
        )
        self.data = dist.group.WORLD
        if spread.tp * spread.cp > 1:
            rows = init_device_mesh(kind, (spread.dp, spread.tp * spread.cp), mesh_dim_names=("dp", "peers"))
            self.data, self.peers = rows["dp"].get_group(), rows["peers"].get_group()
        if spread.cp > 1:
            whole = init_device_mesh(kind, (spread.dp, spread.cp, spread.tp), mesh_dim_names=("dp", "cp", "tp"))
            self.context = whole["cp"].get_group()
        if spread.tp > 1:
            self.mesh = init_device_mesh(kind, (spread.size // spread.tp, spread.tp), mesh_dim_names=("shard", "tp"))
            self.tensor = self.mesh["tp"].get_group()
        else:
            self.mesh = init_device_mesh(kind, (spread.size,), mesh_dim_names=("shard",))
        self.aside = dist.new_group(backend="gloo")  # now: where they have met is gone later
        self._joined = True

    @contextmanager
    def together(self, what: str) -> Generator[None]:
        """What all do at once: one that is gone, or does not come in time, is a death like any other."""
        try:
            yield
        except (RuntimeError, dist.DistError) as error:
            reason = str(error).splitlines()[0]
            if not isinstance(error, dist.DistError) and "gloo" not in reason:
                raise
            raise WorkerDied(
                f"{self.spread.role} {self.rank}: lost another rank during {what} ({reason}); "
                "see the logs of all ranks, then `roll resume` the run"
            ) from error

    def leave(self) -> None:
        """Part from the others."""
        if self._joined:
            dist.destroy_process_group()
            self._joined = False


def summed(x: Tensor, group: Any) -> Tensor:
    """The sum over a group whose members go on alike from here, so a gradient is everybody's as it is."""
    found: Tensor = x if group is None else _Summed.apply(x, group)
    return found


def shared(x: Tensor, group: Any) -> Tensor:
    """What a group has in common and each uses for a part: its gradient is the sum of theirs."""
    found: Tensor = x if group is None else _Shared.apply(x, group)
    return found


def sliced(attend: Attend, group: Any, num_tokens: int) -> Attend:
    """Attention for ranks that have one slice of the tokens each: for its time each has all tokens of some heads.

    Slices are equal; together they may have more than `num_tokens`, and what is beyond is of no account.
    """
    size = group.size()

    def on_slice(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        mine, dim, num_q, num_kv = len(q), q.shape[-1], q.shape[1] // size, k.shape[1] // size
        by_rank = torch.cat([x.reshape(mine, size, -1, dim) for x in (q, k, v)], 2).transpose(0, 1)
        whole = _exchanged(by_rank, group).reshape(size * mine, -1, dim)[:num_tokens]
        mixed = attend(layer, *whole.split((num_q, num_kv, num_kv), 1))
        padded = F.pad(mixed, (0, 0, 0, size * mine - num_tokens)).view(size, mine, -1)
        return _exchanged(padded, group).transpose(0, 1).reshape(mine, -1)

    return on_slice


def _exchanged(x: Tensor, group: Any) -> Tensor:
    """[ranks, ...]: entry i goes to rank i, and is then what came from there."""
    return collectives.all_to_all_single_autograd(x.contiguous(), None, None, group)


class _Summed(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any) -> Tensor:
        return _total(x, group)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None


class _Shared(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any) -> Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return _total(gradient, ctx.group), None


def _total(x: Tensor, group: Any) -> Tensor:
    total = x.contiguous().clone()  # of another layout, gloo would add up the wrong numbers
    dist.all_reduce(total, group=group)
    return total
