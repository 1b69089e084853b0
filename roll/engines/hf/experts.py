"""How a model of `transformers` distributes tokens over its experts, and how a trainer repeats a generator's choice."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode


def routers_of(module: nn.Module) -> list[nn.Module]:
    """The routers of a model or of one of its layers."""
    named = (each for each in module.modules() if type(each).__name__.lower().endswith("router"))
    return [each for each in named if any(weight.ndim == 2 for weight in each.parameters())]


def scores_weight(router: nn.Module) -> Tensor:
    """[experts, hidden]; families keep it in the router itself or in a layer of it."""
    return [weight for weight in router.parameters() if weight.ndim == 2][-1]


class RouterReplay(TorchFunctionMode):
    """Inside it, a router chooses the given experts instead of those with the highest scores, with their own scores.

    Routers differ in how they compute scores and weights, and agree in the one call that this replaces: the top k of
    all experts, `num_experts` of them. `chosen` [tokens, k] has -1 where the router chooses itself.
    """

    def __init__(self, chosen: Tensor, num_experts: int) -> None:
        super().__init__()
        self._chosen, self._num_experts = chosen, num_experts
        self.counts = torch.zeros(2, device=chosen.device)
        """Tokens with given experts, and those of them for which the router prefers others."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func not in (torch.topk, torch.Tensor.topk) or args[0].shape != (len(self._chosen), self._num_experts):
            return result  # a router may choose among groups of experts first
        given = self._chosen[:, :1] >= 0
        indices = torch.where(given, self._chosen, result.indices)
        changed = (indices.sort(-1).values != result.indices.sort(-1).values).any(-1)
        self.counts += torch.stack([given.sum(), changed.sum()])
        return torch.return_types.topk((args[0].gather(-1, indices), indices))


class ExpertLoad:
    """Tokens by layer and expert, and sums of the routers' probabilities, of the forward passes inside `counting`."""

    def __init__(self, model: nn.Module) -> None:
        self._routers = routers_of(model)
        self._num_experts = [len(scores_weight(router)) for router in self._routers]
        self._counting = False
        self._totals: dict[int, Tensor] = {}
        self._replayed = torch.zeros(2)
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

    def add_replayed(self, counts: Tensor) -> None:
        """Add the counts of a `RouterReplay`."""
        if self._counting:
            self._replayed = self._replayed.to(counts.device) + counts

    def take_replayed(self) -> Tensor:
        """[2]: counts of `RouterReplay` since the last call."""
        counts, self._replayed = self._replayed, torch.zeros_like(self._replayed)
        return counts

    def totals(self) -> Tensor | None:
        """[layers, 2, experts]: tokens and probabilities since the last call; None for a model without experts."""
        counted, self._totals = self._totals, {}
        devices = [next(router.parameters()).device for router in self._routers]
        layers = [
            counted[index] if index in counted else torch.zeros(2, num_experts, device=device)
            for index, (num_experts, device) in enumerate(zip(self._num_experts, devices, strict=True))
        ]
        return torch.stack(layers) if layers else None

    @torch.no_grad()
    def _add(self, index: int, router: nn.Module, inputs: Any, output: Any) -> None:
        """Routers return logits, weights and indices of the chosen experts, or these in the opposite order, each with
        one row per token."""
        if not self._counting or not isinstance(output, tuple):
            return
        logits, _, chosen = output if output[0].is_floating_point() else output[::-1]
        if hasattr(router, "e_score_correction_bias"):  # scores of one expert do not depend on those of others
            scores = logits.float().sigmoid()
            probabilities = scores / scores.sum(-1, keepdim=True)
        else:
            probabilities = logits.float().softmax(-1)
        counts = torch.bincount(chosen.flatten(), minlength=logits.shape[-1]).float()
        both = torch.stack([counts, probabilities.sum(0)])
        self._totals[index] = self._totals[index] + both if index in self._totals else both


def load_metrics(totals: Tensor, replayed: Tensor | None = None) -> dict[str, float]:
    """Metrics of `ExpertLoad.totals`, as means over layers, and of `take_replayed`; none if no token was counted."""
    if not totals.any():
        return {}
    given, changed = (0.0, 0.0) if replayed is None else replayed.tolist()
    shares = totals / totals.sum(-1, keepdim=True)
    experts = shares.shape[-1]
    return {
        "experts/max_load": float(shares[:, 0].amax(-1).mean() * experts),
        "experts/unused": float((totals[:, 0] == 0).float().mean()),
        "experts/balance": float((shares[:, 0] * shares[:, 1]).sum(-1).mean() * experts),
        **({"experts/replay_changed": changed / given} if given else {}),
    }
