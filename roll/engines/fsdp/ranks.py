"""The process group that holds one model: assignment of rows to ranks, and sums with gradients.

A rank is (data, context, tensor), the last varying fastest. Ranks with different data indices read different rows. The
others are peers, which read the same rows: each some of their tokens (context) or heads (tensor).
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
from roll.errors import ConfigError, PeerLost, one_line


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelLayout:
    """Number of ranks, their rendezvous, and how they divide the model."""

    url: str
    """`file:///path` in a directory that all ranks see, new for every start, or `tcp://host:port` of rank 0."""
    size: int
    role: str = "actor_train"
    tp: int = 1
    """Ranks that share every layer (tensor parallelism)."""
    cp: int = 1
    """Ranks that share every sequence (context parallelism)."""
    offload: bool = False
    """Keep parameters and optimizer state on the host; a layer is copied to the device when it is needed."""
    timeout_s: float = 600.0
    """For all ranks to join, and for each message."""

    @property
    def dp(self) -> int:
        """Number of peer groups; each reads different rows."""
        return self.size // (self.tp * self.cp)


class Ranks:
    """This process's rank and its groups. A process can be in one such set of ranks at a time."""

    mesh: DeviceMesh
    """Parameters are sharded along its first dimension, layers along `tp` if it exists."""
    data: Any
    """Group of ranks with different rows."""
    peers: Any = None
    """Group of ranks with the same rows; None if there are no others. Likewise for those below."""
    tensor: Any = None
    context: Any = None

    def __init__(self, layout: ParallelLayout, rank: int) -> None:
        if layout.size % (layout.tp * layout.cp):
            raise ConfigError(
                f"{layout.role}.workers: {layout.size} do not divide into groups of tp {layout.tp} times "
                f"cp {layout.cp}; name a multiple"
            )
        self.layout, self.rank = layout, rank
        self.dp_rank, self.peer = divmod(rank, layout.tp * layout.cp)
        self.cp_rank, self.tp_rank = divmod(self.peer, layout.tp)
        self.shard = rank // layout.tp
        """Index of this rank's shard along the mesh's first dimension."""
        self._joined = False

    def join(self, device: torch.device) -> None:
        """Join the other ranks; all must call this. Does nothing after the first call."""
        if self._joined:
            return
        layout, kind = self.layout, device.type
        if device.index is not None:
            torch.cuda.set_device(device)
        dist.init_process_group(
            "nccl" if kind == "cuda" else "gloo",
            init_method=layout.url,
            rank=self.rank,
            world_size=layout.size,
            timeout=timedelta(seconds=layout.timeout_s),
        )
        self.data = dist.group.WORLD
        if layout.tp * layout.cp > 1:
            rows = init_device_mesh(kind, (layout.dp, layout.tp * layout.cp), mesh_dim_names=("dp", "peers"))
            self.data, self.peers = rows["dp"].get_group(), rows["peers"].get_group()
        if layout.cp > 1:
            mesh = init_device_mesh(kind, (layout.dp, layout.cp, layout.tp), mesh_dim_names=("dp", "cp", "tp"))
            self.context = mesh["cp"].get_group()
        if layout.tp > 1:
            self.mesh = init_device_mesh(kind, (layout.size // layout.tp, layout.tp), mesh_dim_names=("shard", "tp"))
            self.tensor = self.mesh["tp"].get_group()
        else:
            self.mesh = init_device_mesh(kind, (layout.size,), mesh_dim_names=("shard",))
        self._joined = True

    @contextmanager
    def blame_peers(self, what: str) -> Generator[None]:
        """Convert the error of a collective operation into `PeerLost`: a peer died or did not arrive in time."""
        try:
            yield
        except (RuntimeError, dist.DistError) as error:
            reason = one_line(str(error).partition("\n")[0])
            if not isinstance(error, dist.DistError) and "gloo" not in reason:
                raise
            raise PeerLost(
                f"{self.layout.role} {self.rank}: lost another rank during {what} ({reason})",
                "see the logs of all ranks, then `roll resume` the run",
            ) from error

    def leave(self) -> None:
        """Leave the group."""
        if self._joined:
            dist.destroy_process_group()
            self._joined = False


def reduce_forward(x: Tensor, group: Any) -> Tensor:
    """Sum over the group; the gradient passes unchanged, because all members continue with the same value."""
    result: Tensor = x if group is None else _ReduceForward.apply(x, group)
    return result


def reduce_backward(x: Tensor, group: Any) -> Tensor:
    """`x` unchanged, for a value that all members hold and each uses in part; its gradient is summed."""
    result: Tensor = x if group is None else _ReduceBackward.apply(x, group)
    return result


def attend_over_slices(attend: Attend, group: Any, num_tokens: int) -> Attend:
    """Attention for ranks that each have one slice of the tokens: during it each has all tokens of some heads.

    Slices are equal in size; together they may exceed `num_tokens`, and the excess is ignored.
    """
    size = group.size()

    def on_slice(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        mine, dim, num_q, num_kv = len(q), q.shape[-1], q.shape[1] // size, k.shape[1] // size
        by_rank = torch.cat([x.reshape(mine, size, -1, dim) for x in (q, k, v)], 2).transpose(0, 1)
        whole = _all_to_all(by_rank, group).reshape(size * mine, -1, dim)[:num_tokens]
        mixed = attend(layer, *whole.split((num_q, num_kv, num_kv), 1))
        padded = F.pad(mixed, (0, 0, 0, size * mine - num_tokens)).view(size, mine, -1)
        return _all_to_all(padded, group).transpose(0, 1).reshape(mine, -1)

    return on_slice


def _all_to_all(x: Tensor, group: Any) -> Tensor:
    """[ranks, ...]: entry i is sent to rank i, and replaced by what rank i sends."""
    return collectives.all_to_all_single_autograd(x.contiguous(), None, None, group)


class _ReduceForward(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any) -> Tensor:
        return _all_reduce(x, group)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None


class _ReduceBackward(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any) -> Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return _all_reduce(gradient, ctx.group), None


def _all_reduce(x: Tensor, group: Any) -> Tensor:
    total = x.contiguous().clone()  # gloo would add up non-contiguous tensors in the wrong order
    dist.all_reduce(total, group=group)
    return total
