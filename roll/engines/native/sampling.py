"""Sampling of tokens and the probability of sampled tokens, defined once for trainer and generator.

The noise of a token is a pure function of a key and a position, never of an engine's state. A request therefore samples
the same tokens regardless of its batch and of restarts.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - its customary name
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from roll.types import Sampling

_LOGIT_BYTES = 64 * 2**20
"""Upper bound on the memory of the fp32 logits of one chunk of tokens."""


def noise_key(*parts: str | int) -> int:
    """64 bits that identify one response: hash of the run's seed, task, attempt, sibling and turn."""
    return NoiseKeys(*parts[:-1])(parts[-1])


class NoiseKeys:
    """`noise_key` for keys that share their first parts, which are hashed once."""

    def __init__(self, *parts: str | int) -> None:
        self._prefix = hashlib.blake2b("".join(f"{part}\x1f" for part in parts).encode(), digest_size=8)

    def __call__(self, *rest: str | int) -> int:
        key = self._prefix.copy()
        key.update("\x1f".join(map(str, rest)).encode())
        return int.from_bytes(key.digest(), "little")


def uniforms(keys: Any, positions: Any) -> Any:
    """One number in [0, 1) for each key and position, by the SplitMix64 finaliser (uint64 arrays in, float64 out)."""
    with np.errstate(over="ignore"):  # wrapping is intended
        z = keys + (positions + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return ((z ^ (z >> np.uint64(31))) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def restrict(logits: Tensor, sampling: Sampling, *, keep: Tensor | None = None) -> Tensor:
    """Logits of the sampling distribution: divided by the temperature, -inf outside top-k and top-p.

    `keep` ([rows] ids) is never excluded: a sampled token had a nonzero probability, even if rounding puts it outside
    the cut the second time.
    """
    scaled = logits.float() / (sampling.temperature or 1.0)
    if sampling.top_k == 0 and sampling.top_p == 1.0:
        return scaled
    with torch.no_grad():
        order = scaled.sort(dim=-1, descending=True, stable=True)
        outside = torch.zeros_like(order.values, dtype=torch.bool)
        if sampling.top_k:
            outside[:, sampling.top_k :] = True
        if sampling.top_p < 1.0:
            probabilities = order.values.masked_fill(outside, -torch.inf).softmax(-1)
            outside |= probabilities.cumsum(-1) - probabilities >= sampling.top_p
        cut = torch.zeros_like(outside).scatter(-1, order.indices, outside)
        if keep is not None:
            cut.scatter_(-1, keep.unsqueeze(-1), False)
    return scaled.masked_fill(cut, -torch.inf)


def draw(logits: Tensor, sampling: Sampling, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Ids [rows] by inverse CDF at `noise` [rows] fp64, and their logprobs under the distribution drawn from."""
    logprobs = restrict(logits, sampling).log_softmax(-1)
    if sampling.temperature == 0:
        ids = logprobs.argmax(-1)
    else:
        cumulative = logprobs.exp().double().cumsum(-1)
        ids = torch.searchsorted(cumulative, (noise * cumulative[:, -1]).unsqueeze(-1), right=True).squeeze(-1)
    return ids, logprobs.gather(-1, ids.unsqueeze(-1)).squeeze(-1)


def draw_each(logits: Tensor, samplings: Sequence[Sampling], noise: Tensor) -> tuple[Tensor, Tensor]:
    """Sample each row with its own sampling parameters; rows with equal parameters are sampled together."""
    if all(sampling is samplings[0] for sampling in samplings):
        return draw(logits, samplings[0], noise)
    ids = torch.zeros(len(logits), dtype=torch.long, device=logits.device)
    logprobs = torch.zeros(len(logits), device=logits.device)
    for kind in set(samplings):
        at = torch.tensor([row for row, sampling in enumerate(samplings) if sampling == kind], device=logits.device)
        ids[at], logprobs[at] = draw(logits[at], kind, noise[at])
    return ids, logprobs


def cap_logits(logits: Tensor, cap: float | None) -> Tensor:
    """The logits limited smoothly to an absolute value."""
    return logits if cap is None else (logits / cap).tanh() * cap


def score(
    hidden: Tensor,
    head: Tensor,
    ids: Tensor,
    sampling: Sampling,
    *,
    entropy_gradient: bool = False,
    cap: float | None = None,
) -> tuple[Tensor, Tensor]:
    """Logprobs and entropies [tokens] of `ids`, each under the distribution of its hidden state [tokens, hidden].

    `cap` limits the logits. Entropies have a gradient only with `entropy_gradient`. Logits exist for one chunk of
    tokens at a time; with several chunks they are recomputed in the backward pass.
    """
    size, chunk = max(1, _LOGIT_BYTES // (4 * head.shape[0])), partial(_score_chunk, cap=cap)
    if len(ids) <= size:
        return chunk(hidden, head, ids, sampling, entropy_gradient)
    parts = [
        checkpoint(
            chunk,
            hidden[at : at + size],
            head,
            ids[at : at + size],
            sampling,
            entropy_gradient,
            use_reentrant=False,
        )
        for at in range(0, len(ids), size)
    ]
    return torch.cat([part[0] for part in parts]), torch.cat([part[1] for part in parts])


def _score_chunk(
    hidden: Tensor, head: Tensor, ids: Tensor, sampling: Sampling, entropy_gradient: bool, *, cap: float | None
) -> tuple[Tensor, Tensor]:
    logprobs = restrict(cap_logits(F.linear(hidden, head), cap), sampling, keep=ids).log_softmax(-1)
    with torch.set_grad_enabled(entropy_gradient and torch.is_grad_enabled()):
        entropies = -(logprobs.exp() * logprobs.clamp_min(-1e4)).sum(-1)  # 0 * -inf is NaN; a clamped term is exactly 0
    return logprobs.gather(-1, ids.unsqueeze(-1)).squeeze(-1), entropies
