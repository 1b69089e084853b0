"""Auxiliary losses of the routers of Megatron-Core's blocks, by the formula of `roll.engines.hf.router_losses`.

Those of Megatron-Core depend on how a batch is cut into micro-batches and ranks, and are not used.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from roll.config.router_losses import RouterLosses
from roll.engines.hf.router_losses import RoutingStatistics, attach, flat_weights, router_loss
from roll.engines.megatron.package import TopKRouter, TransformerLayer
from roll.types import Batch


class MegatronRouterLosses:
    """The losses of the routers of this rank, for its tokens."""

    def __init__(self, config: RouterLosses, module: Any, core: Any) -> None:
        size = (core.num_layers, core.num_moe_experts)
        self.statistics = RoutingStatistics(config, size, sum(core.moe_layer_freq))
        self._sigmoid = core.moe_router_score_function == "sigmoid"
        self._weights: dict[int, Tensor | None] = {}
        self._idle: set[int] = set()
        for layer in (each for each in module.modules() if isinstance(each, TransformerLayer)):
            for router in (each for each in layer.modules() if isinstance(each, TopKRouter)):
                index = layer.layer_number - 1
                layer.register_forward_pre_hook(partial(self._give, index), with_kwargs=True)
                router.register_forward_hook(partial(self._count, index))
                router.apply_z_loss = partial(self._attach, index)  # called with the logits, before experts are chosen

    def begin(self, batch: Batch, rows: Sequence[Sequence[int]]) -> None:
        """Begin the update of a batch, with the rows of each micro-batch of this rank."""
        self.statistics.begin(batch)
        self._idle = {index for index, each in enumerate(rows) if not each}

    def end(self) -> None:
        """End the update."""
        self.statistics.scale = 0.0

    def weights(self, index: int, batch: Batch, layout: Any) -> Tensor | None:
        """For each flat token of a micro-batch its weight in the losses; None outside an update."""
        if not self.statistics.scale:
            return None
        return flat_weights(batch, layout) * (0.0 if index in self._idle else self.statistics.scale)

    def _give(self, index: int, layer: Any, _: Any, inputs: Mapping[str, Any]) -> None:
        """A layer is given its micro-batch again when its activations are recomputed."""
        self._weights[index] = inputs["packed_seq_params"].token_weights

    @torch.no_grad()
    def _count(self, index: int, router: Any, inputs: Any, output: Any) -> None:
        weights = self._weights[index]
        if weights is not None and self.statistics.counting:
            self.statistics.add(index, weights @ output[1].flatten(0, -2).float())

    def _attach(self, index: int, logits: Tensor, padding_mask: Any = None) -> Tensor:
        weights = self._weights[index]
        if weights is None or self.statistics.counting or not torch.is_grad_enabled():
            return logits
        shares = self.statistics.shares(index)
        return attach(logits, router_loss(self.statistics.config, logits, weights, shares, sigmoid=self._sigmoid))
