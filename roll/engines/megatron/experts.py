"""How the routers of Megatron-Core's blocks distribute tokens over experts. No token is ever dropped."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor

from roll.engines.megatron.package import TopKRouter


class RouterLoad:
    """As `roll.engines.hf.experts.ExpertLoad`, for the layers and tokens of this rank."""

    def __init__(self, module: Any, core: Any) -> None:
        self._sparse = [layer for layer, sparse in enumerate(_sparse_layers(core)) if sparse]
        self._sigmoid = core.moe_router_score_function == "sigmoid"
        self._size = (core.num_layers, 2, core.num_moe_experts or 0)
        self._num_tokens: int | None = None
        self._totals: Tensor | None = None
        self._replayed = torch.zeros(2)
        for router in (each for each in module.modules() if isinstance(each, TopKRouter)):
            router.register_forward_hook(partial(self._add, router.layer_number - 1))

    @contextmanager
    def counting(self, num_tokens: int) -> Iterator[None]:
        """Count the first `num_tokens` tokens of this rank in each layer; padding follows them."""
        self._num_tokens = num_tokens
        try:
            yield
        finally:
            self._num_tokens = None

    def totals(self, device: torch.device) -> Tensor | None:
        """[layers, 2, experts]: tokens and probabilities since the last call; None for a dense model."""
        totals, self._totals = self._totals, None
        if not self._sparse:
            return None
        return torch.zeros(self._size, device=device) if totals is None else totals

    def add_replayed(self, counts: Tensor) -> None:
        """Add tokens with given experts, and those of them for which the router prefers others."""
        if self._num_tokens is not None:
            self._replayed = self._replayed.to(counts.device) + counts

    def take_replayed(self, device: torch.device) -> Tensor:
        """[2]: the counts of `add_replayed` since the last call."""
        counts, self._replayed = self._replayed.to(device), torch.zeros(2)
        return counts

    def with_experts(self, totals: Tensor) -> Tensor:
        """Those of the layers that have experts."""
        return totals[self._sparse]

    @torch.no_grad()
    def _add(self, layer: int, router: Any, inputs: Any, output: Any) -> None:
        if self._num_tokens is None:  # recomputation for a backward pass, or no update
            return
        logits = router.gating(inputs[0]).flatten(0, -2)[: self._num_tokens].float()
        scores = logits.sigmoid() if self._sigmoid else logits.softmax(-1)
        chosen = output[1].flatten(0, -2)[: self._num_tokens].float()
        if self._totals is None:
            self._totals = torch.zeros(self._size, device=logits.device)
        self._totals[layer, 0] += chosen.sum(0)
        self._totals[layer, 1] += (scores / scores.sum(-1, keepdim=True)).sum(0)


def _sparse_layers(core: Any) -> list[int]:
    return list(core.moe_layer_freq) if core.num_moe_experts else []


def free_activations(module: Any) -> None:
    """Free the tensors of the last forward pass that token dispatchers keep; the module cannot run afterwards.

    Their graph refers to the gradient hooks of the module. Garbage collection does not see this cycle, so the module
    would live on with its process groups, and each group has threads that poll.
    """
    for layer in module.modules():
        dispatcher = getattr(layer, "token_dispatcher", None)
        if dispatcher is not None:
            kept = [name for name, value in vars(dispatcher).items() if isinstance(value, Tensor)]
            for name in kept:
                setattr(dispatcher, name, None)
