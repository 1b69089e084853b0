"""How a model of `transformers` distributes tokens over its experts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn


class ExpertLoad:
    """Tokens by layer and expert, and sums of the routers' probabilities, of the forward passes inside `counting`."""

    def __init__(self, model: nn.Module) -> None:
        self._routers = [each for each in model.modules() if type(each).__name__.lower().endswith("router")]
        self._counting = False
        self._totals: dict[int, Tensor] = {}
        for index, router in enumerate(self._routers):
            router.register_forward_hook(partial(self._add, index))

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Count the tokens of forward passes; those that recompute activations for a backward pass are outside."""
        self._counting = True
        try:
            yield
        finally:
            self._counting = False

    def totals(self) -> Tensor | None:
        """[layers, 2, experts]: tokens and probabilities since the last call; None for a model without experts."""
        counted, self._totals = self._totals, {}
        weights: list[Any] = [router.weight for router in self._routers]
        layers = [
            counted[index] if index in counted else torch.zeros(2, len(weight), device=weight.device)
            for index, weight in enumerate(weights)
        ]
        return torch.stack(layers) if layers else None

    @torch.no_grad()
    def _add(self, index: int, router: nn.Module, inputs: Any, output: Any) -> None:
        """Routers return logits, weights and indices of the chosen experts, each with one row per token."""
        if not self._counting or not isinstance(output, tuple):
            return
        logits, _, chosen = output
        if hasattr(router, "e_score_correction_bias"):  # scores of one expert do not depend on those of others
            scores = logits.float().sigmoid()
            probabilities = scores / scores.sum(-1, keepdim=True)
        else:
            probabilities = logits.float().softmax(-1)
        counts = torch.bincount(chosen.flatten(), minlength=logits.shape[-1]).float()
        both = torch.stack([counts, probabilities.sum(0)])
        self._totals[index] = self._totals[index] + both if index in self._totals else both


def load_metrics(totals: Tensor) -> dict[str, float]:
    """Metrics of `ExpertLoad.totals`, as means over layers; none if no token was counted."""
    if not totals.any():
        return {}
    shares = totals / totals.sum(-1, keepdim=True)
    experts = shares.shape[-1]
    return {
        "experts/max_load": float(shares[:, 0].amax(-1).mean() * experts),
        "experts/unused": float((totals[:, 0] == 0).float().mean()),
        "experts/balance": float((shares[:, 0] * shares[:, 1]).sum(-1).mean() * experts),
    }
