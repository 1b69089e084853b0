"""A fixed text to which trainer and generators must assign the same logprobs before a version is served.

A digest proves that the right weights arrived; the canary proves that a generator computes with them as the trainer
does. The generator scores the text without a prefix cache, which checks the layout of the weights, and then continues
it like any request, which checks that its prefix cache holds nothing from older weights.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

import torch

from roll.cluster.handle import Cluster
from roll.data.collate import supervised
from roll.engines.base import Output, Trainer
from roll.errors import RunStopped
from roll.types import Sampling

NUM_TOKENS = 64
EXACT_NEW, ROUNDED_NEW = 2, 4
"""Tokens sampled after the text. The first comes from prefill alone, so two are needed for one decode step.

Below fp32 mean differences are compared, which need more tokens.
"""
EXACT_MAX, ROUNDED_MEAN, ROUNDED_PART = 1e-3, 0.02, 0.05
"""Tolerances on logprob differences: on the largest for fp32 weights, on the mean for lower precision.

Below fp32 the tolerance grows to `ROUNDED_PART` of the standard deviation of the text's logprobs where that is more:
rounding errors scale with the logits, which a trained model spreads wider than one with random weights.
"""
QUANTISED_MEAN, QUANTISED_PART = 0.1, 0.5
"""The same for weights in eight bits, against a trainer whose weights are not quantised."""
_QUANTISED = {"torch.int8", "torch.float8_e4m3fn"}
Weights = Literal["exact", "rounded", "quantised"]
"""Precision of the served weights: fp32, 16 bits, or eight."""


CanaryScores: TypeAlias = Mapping[tuple[int, ...], torch.Tensor]
"""The trainer's logprobs of a text after its first token, by the text without that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Canary:
    """The canary text; every run of a model uses the same one."""

    ids: tuple[int, ...]
    num_new: int

    async def score(self, trainers: Cluster[Trainer], outputs: Iterable[Output]) -> CanaryScores:
        """The trainer's logprobs of the texts that generators answered to `probe`; equal texts are scored once."""
        logprobs_of = {tuple(map(int, output.ids)): output.logprobs for output in outputs}
        if not logprobs_of:
            return {}
        batch = supervised([(self.ids[:1], text) for text in logprobs_of])
        sampled = torch.tensor([logprob for row in logprobs_of.values() for logprob in (0.0, *map(float, row))])
        batch = replace(batch, sampler_logprobs=sampled)
        scores = (await trainers.each(Trainer.logprobs, batch, sampling=Sampling()))[0]
        return {text: row[1:] for text, row in zip(logprobs_of, torch.split(scores, list(batch.lengths)), strict=True)}

    def check(
        self,
        outputs: Mapping[int, Output],
        scores: CanaryScores,
        *,
        version: int,
        dtypes: Collection[str],
        policy: str = "",
    ) -> float:
        """The largest difference between a generator and the trainer; raises `RunStopped` past the tolerance.

        `outputs` holds each generator's answer to `probe`, by rank; `dtypes` are the dtypes of the weights. `policy`
        names the policy in a run with several. Of a text that was not scored the part is compared that begins one.
        """
        weights, where = precision_of(dtypes), describe_version(version, policy)
        gaps = [self._gap(rank, output, scores, where=where, weights=weights) for rank, output in outputs.items()]
        return max(gaps, default=0.0)

    def _gap(self, rank: int, output: Output, scores: CanaryScores, *, where: str, weights: Weights) -> float:
        """The difference of one generator from the trainer; raises `RunStopped` past the tolerance."""
        ids = tuple(map(int, output.ids))
        text = max(scores, key=lambda text: _num_shared(ids, text))
        num_shared = _num_shared(ids, text)
        expected = scores[text][:num_shared]
        gaps = (torch.as_tensor(output.logprobs)[:num_shared] - expected).abs()
        limit, exact = tolerance(expected, weights), weights == "exact"
        num_scored = len(self.ids) - 1
        read, served = (_summarise(part, exact=exact) for part in (gaps[:num_scored], gaps[num_scored:]))
        if not read <= limit:  # also false for NaN
            raise RunStopped(
                f"{where}: generator {rank} holds the trainer's weights but computes differently with them: its "
                f"logprobs differ by {read:.3g} ({_describe_limit(limit, weights)}); "
                "layout, dtype or model code is not the same"
            )
        if not served <= limit:
            raise RunStopped(
                f"{where}: generator {rank} serves from a stale prefix cache: it scores the canary correctly, but "
                f"tokens sampled after it differ by {served:.3g} ({_describe_limit(limit, weights)}); "
                "reset the cache at every version"
            )
        return max(read, served)


def describe_version(version: int, policy: str) -> str:
    """The version for messages, with the name of its policy in a run with several."""
    return f"policy {policy!r}, version {version}" if policy else f"version {version}"


def canary_for(*, vocab: int, max_seq_len: int, exact: bool = True) -> Canary:
    """The canary of a model: ids from its whole vocabulary, as many as `max_seq_len` allows.

    `exact`: trainer and generators compute in fp32.
    """
    num_new = EXACT_NEW if exact else ROUNDED_NEW
    num = max(1, min(NUM_TOKENS, max_seq_len - num_new))
    return Canary(ids=tuple(_pseudo_random_ids(num, vocab)), num_new=min(num_new, max_seq_len - num))


def _pseudo_random_ids(num: int, vocab: int) -> Sequence[int]:
    """Pseudo-random numbers below `vocab`, the same on every machine."""
    state, ids = 1, list[int]()
    for _ in range(num):
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        ids.append((state >> 33) % vocab)
    return ids


def _num_shared(first: Sequence[int], second: Sequence[int]) -> int:
    """Number of equal ids at the start of two texts."""
    different = (index for index, pair in enumerate(zip(first, second, strict=False)) if pair[0] != pair[1])
    return next(different, min(len(first), len(second)))


def _summarise(gaps: torch.Tensor, *, exact: bool) -> float:
    if not len(gaps):
        return 0.0
    return float(gaps.max() if exact else gaps.mean())


def precision_of(dtypes: Collection[str]) -> Weights:
    """The precision of weights of these dtypes."""
    if not _QUANTISED.isdisjoint(dtypes):
        return "quantised"
    return "exact" if set(dtypes) <= {"torch.float32", "torch.float64"} else "rounded"


def tolerance(expected: torch.Tensor, weights: Weights) -> float:
    """The largest acceptable difference from the trainer's logprobs `expected`."""
    if weights == "exact":
        return EXACT_MAX
    mean, part = (ROUNDED_MEAN, ROUNDED_PART) if weights == "rounded" else (QUANTISED_MEAN, QUANTISED_PART)
    return mean if len(expected) < 2 else max(mean, part * float(expected.std()))


def _describe_limit(limit: float, weights: Weights) -> str:
    if weights == "exact":
        return f"at most {limit:g} for fp32"
    return f"at most {limit:.2g} on average" + (" for quantised weights" if weights == "quantised" else "")
