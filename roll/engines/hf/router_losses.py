"""Auxiliary losses of routers, whose gradient depends neither on micro-batches nor on ranks.

The load-balancing loss needs the share of tokens of each expert in the whole batch, so these are counted in a forward
pass before the update. What remains is a sum over tokens, whose gradient enters the backward pass at each router.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function

from roll.config.router_losses import RouterLosses
from roll.engines.hf.experts import routers_of, scores_weight
from roll.errors import ConfigError
from roll.types import Batch


def num_computed(batch: Batch) -> int:
    """Tokens of all rows that a model computes: the last one of a row predicts nothing."""
    return sum(max(1, size - 1) for size in batch.lengths)


def flat_weights(batch: Batch, layout: Any) -> Tensor:
    """For each flat token of a layout, the number of computed tokens of rows that it stands for."""
    ends = torch.tensor(batch.lengths).cumsum(0)
    computed = torch.ones(batch.num_tokens, dtype=torch.bool)
    computed[ends - 1] = torch.tensor(batch.lengths) == 1
    tokens = layout.flat_index(computed.nonzero().squeeze(-1).to(layout.positions.device))
    return torch.bincount(tokens, minlength=len(layout.positions)).float()


def router_loss(
    config: RouterLosses, logits: Tensor, weights: Tensor, shares: Tensor | None, *, sigmoid: bool
) -> Tensor:
    """The losses of some tokens of a layer, from logits [tokens, experts].

    `weights` [tokens] have the sum 1 over all layers of the batch; `shares` [experts] are those of the layer's tokens.
    """
    logits = logits.float()
    loss = config.z * (weights * logits.logsumexp(-1).square()).sum()
    if shares is not None:
        scores = logits.sigmoid() if sigmoid else logits.softmax(-1)
        probabilities = scores / scores.sum(-1, keepdim=True)
        loss = loss + config.balance * len(shares) * (weights * (probabilities @ shares)).sum()
    return loss


def attach(x: Tensor, loss: Tensor) -> Tensor:
    """`x`, whose backward pass also computes the gradient of `loss`."""
    attached: Tensor = _Attached.apply(x, loss)
    return attached


class _Attached(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, loss: Tensor) -> Tensor:
        ctx.save_for_backward(loss)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        (loss,) = ctx.saved_tensors
        return gradient, torch.ones_like(loss)


class RoutingStatistics:
    """Shares of experts in a batch. `counting` is true in the pass before the update."""

    def __init__(self, config: RouterLosses, size: tuple[int, int], num_sparse: int) -> None:
        """`size`: numbers of layers and of experts; `num_sparse` of the layers have experts."""
        self.config, self.size, self._num_sparse = config, size, num_sparse
        self._counts: Tensor | None = None
        self._shares: Tensor | None = None
        self.counting = False
        self.scale = 0.0
        """Weight of a token of a layer: one over their number in the batch."""

    def begin(self, batch: Batch) -> None:
        """Begin a batch; experts are counted until `finish` if there is a load-balancing loss."""
        self.scale = 1 / (num_computed(batch) * self._num_sparse)
        self._counts = self._shares = None
        self.counting = self.config.balance > 0

    def add(self, layer: int, counts: Tensor) -> None:
        """Add weighted tokens of the experts of a layer."""
        if self._counts is None:
            self._counts = torch.zeros(self.size, device=counts.device)
        self._counts[layer] += counts

    def finish(self, device: torch.device, whole: Callable[[Tensor], Tensor]) -> None:
        """End the counting; `whole` sums over ranks."""
        counts = torch.zeros(self.size, device=device) if self._counts is None else self._counts
        counts = whole(counts)
        self._shares, self.counting = counts / counts.sum(-1, keepdim=True).clamp_min(1e-12), False

    def shares(self, layer: int) -> Tensor | None:
        """[experts]; None without a load-balancing loss."""
        return None if self._shares is None else self._shares[layer]


class HuggingFaceRouterLosses:
    """The losses of the routers of a model of `transformers`."""

    def __init__(self, config: RouterLosses, model: nn.Module) -> None:
        routers = routers_of(model)
        if not routers:
            raise ConfigError("actor_train.router_losses: the model has no routers that engine hf knows; leave it out")
        size = (len(routers), len(scores_weight(routers[0])))
        self.statistics = RoutingStatistics(config, size, len(routers))
        self._weights: Tensor | None = None
        self._silent = set(range(len(routers)))
        self.idle = False
        """Whether the micro-batch belongs to no rank."""
        for index, router in enumerate(routers):
            router.register_forward_hook(partial(self._attach, index))

    def begin(self, batch: Batch) -> None:
        """Begin the update of a batch."""
        self.statistics.begin(batch)
        self._silent = set(range(self.statistics.size[0]))

    def enter(self, batch: Batch, layout: Any) -> None:
        """Begin a micro-batch, which is no longer than the batch of `begin`."""
        factor = 0.0 if self.idle else self.statistics.scale
        self._weights = flat_weights(batch, layout) * factor if self.statistics.scale else None

    def end(self) -> None:
        """End the update before the optimizer's step; raises `ConfigError` if a router has returned no scores."""
        self.statistics.scale, self._weights = 0.0, None
        if self._silent:
            raise ConfigError(
                "actor_train.router_losses: the routers of this model do not return their scores; leave it out"
            )

    def _attach(self, index: int, router: nn.Module, inputs: Any, output: Any) -> Any:
        """Routers return logits, weights and indices, or these in the opposite order."""
        if self._weights is None or not isinstance(output, tuple) or len(output) != 3:
            return None
        self._silent.discard(index)
        first, weights, last = output
        logits, chosen = (first, last) if first.is_floating_point() else (last, first)
        if self.statistics.counting:
            counts = logits.new_zeros(logits.shape[-1], dtype=torch.float32)
            repeated = self._weights.repeat_interleave(chosen.shape[-1])
            self.statistics.add(index, counts.index_add(0, chosen.flatten(), repeated))
            return None
        sigmoid, shares = hasattr(router, "e_score_correction_bias"), self.statistics.shares(index)
        loss = router_loss(self.statistics.config, logits, self._weights, shares, sigmoid=sigmoid)
        return first, attach(weights, loss), last
