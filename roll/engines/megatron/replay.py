"""Routers of Megatron-Core's blocks that choose the experts of a generator, with their own weights of these."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from roll.engines.megatron.experts import RouterLoad
from roll.engines.megatron.package import TopKRouter, TransformerLayer


def install_replay(module: Any, load: RouterLoad) -> None:
    """Let the routers of a model choose the experts of the micro-batch that a layer computes.

    A layer is given its micro-batch again when its activations are recomputed, so that it chooses the same experts.
    """
    for layer in (each for each in module.modules() if isinstance(each, TransformerLayer)):
        for router in (each for each in layer.modules() if isinstance(each, TopKRouter)):
            router.router_replay = _LayerReplay(load)
            layer.register_forward_pre_hook(partial(_give, router), with_kwargs=True)


def _give(router: Any, layer: Any, _: Any, inputs: Mapping[str, Any]) -> None:
    experts = inputs["packed_seq_params"].experts
    router.router_replay.chosen = None if experts is None else experts[:, layer.layer_number - 1].long()


class _LayerReplay:
    """The attribute `router_replay` of a router, which computes the top k of all experts.

    As `roll.engines.hf.experts.RouterReplay`: -1 in `chosen` [tokens, k] leaves the choice to the router.
    """

    def __init__(self, load: RouterLoad) -> None:
        self._load = load
        self.chosen: Tensor | None = None

    def get_replay_topk(
        self, scores: Tensor, topk: int, num_groups: Any, group_topk: Any, compute: Callable[..., tuple[Tensor, Tensor]]
    ) -> tuple[Tensor, Tensor]:
        """Values and indices [tokens, k]; Megatron-Core calls it by this name."""
        values, preferred = compute(scores, topk, num_groups, group_topk)
        if self.chosen is None:
            return values, preferred
        given = self.chosen[:, :1] >= 0
        indices = torch.where(given, self.chosen, preferred)
        changed = (indices.sort(-1).values != preferred.sort(-1).values).any(-1)
        self._load.add_replayed(torch.stack([given.sum(), changed.sum()]))
        return scores.gather(1, indices), indices
