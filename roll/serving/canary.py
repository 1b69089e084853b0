"""A text that trainer and generators must find equally likely, word for word, before a version is served.

A digest proves that the right numbers arrived; the canary proves that they are used as the trainer uses them. Its text
is read afresh, which proves the layout of the weights, and then carried on by the way of all requests, which proves
that no cache of prefixes is older than the weights.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from roll.cluster.handle import Cluster
from roll.data.collate import supervised
from roll.engines.base import Generator, Output, Probed, Trainer
from roll.errors import RunStopped
from roll.types import Sampling

NUM_TOKENS = 64
EXACT_NEW, ROUNDED_NEW = 2, 4
"""Tokens that are added to the text: what is sampled first comes of reading alone, so two to decode once.

Of weights with fewer digits means are compared, which want more.
"""
EXACT_MAX, ROUNDED_MEAN, ROUNDED_PART = 1e-3, 0.02, 0.05
"""How far logprobs may lie apart: the largest of fp32 weights, the mean of those with fewer digits.

Of the latter it may be a part of how widely the text's logprobs are spread, where that is more: what is rounded is the
last digit of logits. A model with random weights finds all of the text alike, a trained one some of it far less likely.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Canary:
    """The text, the same in every run of a model."""

    ids: tuple[int, ...]
    num_new: int

    async def check(
        self,
        trainers: Cluster[Trainer],
        heard: Mapping[int, Output],
        *,
        version: int,
        kinds: Collection[str],
        policy: str = "",
    ) -> float:
        """The widest gap between a generator and the trainer; a gap past the limit ends the run, naming the fault.

        `heard` is what each generator said to `probe`, by rank; `kinds` are the dtypes of the weights. `policy` names
        whose they are, where a run has several.
        """
        if not heard:
            return 0.0
        # alike texts are scored once
        said = {tuple(map(int, output.ids)): output.logprobs for output in heard.values()}
        batch = supervised([(self.ids[:1], text) for text in said])
        sampled = torch.tensor([logprob for row in said.values() for logprob in (0.0, *map(float, row))])
        batch = replace(batch, sampler_logprobs=sampled)
        scores = (await trainers.each(Trainer.logprobs, batch, sampling=Sampling()))[0]
        row_of = dict(zip(said, torch.split(scores, list(batch.lengths)), strict=True))
        exact = set(kinds) <= {"torch.float32", "torch.float64"}
        return max(
            self._gap(rank, output, row_of[tuple(map(int, output.ids))][1:], place=named(version, policy), exact=exact)
            for rank, output in heard.items()
        )

    async def probe(self, generators: Cluster[Generator], rank: int) -> Output:
        """What one generator says of the text and after it, while it is paused and empty."""
        return await generators.at(rank, Probed.probe, self.ids, self.num_new)

    def _gap(self, rank: int, output: Output, wanted: torch.Tensor, *, place: str, exact: bool) -> float:
        """How far one generator is from the trainer, once that is near enough."""
        gaps = (torch.as_tensor(output.logprobs) - wanted).abs()
        limit = allowed(wanted, exact=exact)
        read, served = (_size(part, exact=exact) for part in (gaps[: len(self.ids) - 1], gaps[len(self.ids) - 1 :]))
        if not read <= limit:  # NaN is past any limit
            raise RunStopped(
                f"{place}: generator {rank} holds the trainer's weights but uses them otherwise: its "
                f"logprobs differ by {read:.3g} ({_said(limit, exact)}); layout, dtype or model code is not the same"
            )
        if not served <= limit:
            raise RunStopped(
                f"{place}: generator {rank} serves from a stale prefix cache: it reads the canary right, but "
                f"its tokens after it differ by {served:.3g} ({_said(limit, exact)}); it must be reset at every version"
            )
        return max(read, served)


def named(version: int, policy: str) -> str:
    """A version in words; `policy` says whose, where a run has several."""
    return f"policy {policy!r}, version {version}" if policy else f"version {version}"


def canary_of(*, vocab: int, context: int, exact: bool = True) -> Canary:
    """The canary of a model: ids all over its vocabulary, as many as fit where the context is short.

    `exact` says that trainer and generators compute with 32 bits.
    """
    new = EXACT_NEW if exact else ROUNDED_NEW
    num = max(1, min(NUM_TOKENS, context - new))
    return Canary(ids=tuple(_spread(num, vocab)), num_new=min(new, context - num))


def _spread(num: int, vocab: int) -> Sequence[int]:
    """Numbers below `vocab` without a pattern, the same on every machine."""
    state, found = 1, list[int]()
    for _ in range(num):
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        found.append((state >> 33) % vocab)
    return found


def _size(gaps: torch.Tensor, *, exact: bool) -> float:
    if not len(gaps):
        return 0.0
    return float(gaps.max() if exact else gaps.mean())


def allowed(wanted: torch.Tensor, *, exact: bool) -> float:
    """How far logprobs may lie from those of the trainer."""
    if exact:
        return EXACT_MAX
    return ROUNDED_MEAN if len(wanted) < 2 else max(ROUNDED_MEAN, ROUNDED_PART * float(wanted.std()))


def _said(limit: float, exact: bool) -> str:
    return f"at most {limit:g} for fp32" if exact else f"at most {limit:.2g} on average"
