"""The laws of trainers, through nothing but the `Trainer` protocol.

A trainer with plain SGD, learning rate 1 and no clipping moves its weights by exactly the gradient, so what `save`
wrote before an update less what it writes after one is the gradient. It must not depend on how the batch was ordered,
cut, packed, sharded or padded; and a step along it must lower the objective as `logprobs` measure it.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

import numpy as np
import torch

from roll.algorithms.recipe import Objective
from roll.conformance import oracle, variations
from roll.conformance.batches import Case, case
from roll.conformance.exact import ExactTokens, Floats, exact_batch, numbers
from roll.data.collate import split
from roll.engines.base import Trainer
from roll.types import Batch, Call
from roll.weights.huggingface import read_tensors

Factory: TypeAlias = Callable[[int], Trainer]
"""Fresh trainers with the same weights, their micro-batches of at most so many tokens; SGD, rate 1, no clipping."""
OBJECTIVES = (
    Objective(loss=Call("clipped")),
    Objective(loss=Call("sequence_clipped", {"clip_low": 0.3, "clip_high": 0.3}), entropy=0.01),
    Objective(loss=Call("policy_gradient"), kl=Call("k3"), kl_coefficient=0.1),
)
_WHOLE = 1_000_000
"""Tokens that fit into one micro-batch: all."""
_GAIN = 1024.0
"""By how much weights are larger in a first try: single precision keeps no small step beside a large weight."""
_TOLERANCE = 1e-5
_STEP = 0.003
"""How far weights move when the slope of an objective is measured."""
_CRITICS = frozenset({"squared_value"})
"""Losses of values."""
_SEED, _MAX_ROWS = 4, 12


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Rig:
    """A factory, a folder to read weights from, and the case that all gradients are taken on."""

    make: Factory
    folder: Path
    case: Case
    objective: Objective
    expected: Floats

    async def fault(self, batch: Batch | Sequence[Batch], what: str, *, budget: int = _WHOLE) -> str:
        """That the gradients of these shards add up to another one than the batch's, or nothing."""
        shards = [batch] if isinstance(batch, Batch) else batch
        found = sum([await _gradient(self.make(budget), shard, self.objective, self.folder) for shard in shards])
        size = float(np.linalg.norm(self.expected))
        error = float(np.linalg.norm(found - self.expected)) / size
        if error <= _TOLERANCE:
            return ""
        grown = float(np.linalg.norm(found)) / size
        return f"the gradient depends on {what}: off by {error:.2g} of its norm, {grown:.3g} times as long"


async def check_trainer(make: Factory, *, vocab: int, objectives: Sequence[Objective] = OBJECTIVES) -> list[str]:
    """What is wrong with a policy's trainer; `vocab` is how many tokens its model knows."""
    found = await check_logprobs(make, vocab=vocab)
    for objective in objectives:
        found += await check_gradient(make, objective, vocab=vocab)
    return found


async def check_gradient(make: Factory, objective: Objective, *, vocab: int, seed: int = _SEED) -> list[str]:
    """What the gradient of one objective depends on although it must not; a critic's objective is `squared_value`."""
    given = _whole(vocab, seed) if objective.loss.name in _CRITICS else await _rewarded(make, vocab, seed)
    with tempfile.TemporaryDirectory() as folder:
        given = await _amplified(make, given, objective, Path(folder))
        if given is None:
            return [f"{objective.loss.name}: the gradient is 0 or not finite"]
        expected = await _gradient(make(_WHOLE), given.batch, objective, Path(folder))
        rig = _Rig(make=make, folder=Path(folder), case=given, objective=objective, expected=expected)
        texts = [await rig.fault(given.batch, "nothing but chance: two equal trainers differ")]
        if not texts[0]:
            texts = [
                *await _cut_faults(rig),
                *await _row_faults(rig),
                await _descent_fault(make, given.batch, objective, expected),
            ]
    return [f"{objective.loss.name}: {text}" for text in texts if text]


async def check_logprobs(make: Factory, *, vocab: int) -> list[str]:
    """Whether logprobs are about their own token, of their own sequence alone, and what an update makes larger."""
    with tempfile.TemporaryDirectory() as folder:
        texts = [
            *await _shift_faults(make, vocab),
            await _packing_fault(make, vocab),
            await _climb_fault(make, vocab, Path(folder)),
        ]
    return [text for text in texts if text]


async def _cut_faults(rig: _Rig) -> list[str]:
    """Micro-batches and shards."""
    batch, longest = rig.case.batch, max(rig.case.batch.lengths)
    found = [
        await rig.fault(batch, f"the micro-batch: with {budget} tokens each", budget=budget)
        for budget in (longest, 2 * longest + 1)
    ]
    for parts in (2, 3):
        found.append(await rig.fault(split(batch, parts), f"the data-parallel split: with {parts} shards"))
    return found


async def _row_faults(rig: _Rig) -> list[str]:
    """Order, all-masked rows, tokens after the last trained one, and garbage."""
    batch = rig.case.batch
    order = np.random.default_rng(rig.case.seed).permutation(len(batch.lengths)).tolist()
    budget = 2 * max(batch.lengths) + 8
    return [
        await rig.fault(batch.select(order), "the order of sequences", budget=budget),
        await rig.fault(variations.masked(rig.case, empty=False)[0].batch, "all-masked sequences", budget=budget),
        await rig.fault(variations.trailed(rig.case)[0].batch, "observation tokens after the last trained one"),
        await rig.fault(variations.soiled(rig.case)[0].batch, "what stands at untrained tokens"),
    ]


async def _shift_faults(make: Factory, vocab: int) -> list[str]:
    """Over all tokens at one place probabilities sum to 1; a place reads the tokens before it and none after."""
    place, context = 3, [1, 2, 0]
    batch = _plain([[*context, token, 1] for token in range(vocab)])
    rows = (await _logprobs(make, batch)).reshape(vocab, 5)
    other = (await _logprobs(make, _plain([[1, 2, 3, 0, 1], [1, 2, 0, 0, 1]]))).reshape(2, 5)
    total, found = float(np.exp(rows[:, place]).sum()), list[str]()
    if np.any(rows[:, 0] != 0):
        found.append(f"logprobs: the first token of a sequence has {rows[0, 0]:.3g} instead of 0: nothing scores it")
    if abs(total - 1) > 1e-4:
        found.append(
            f"logprobs: wrong shift: the probabilities of all tokens at one place sum to {total:.4g}, not to 1"
        )
    if np.abs(rows[:, 1:place] - rows[0, 1:place]).max() > 1e-5:
        found.append("logprobs: wrong shift: a token's logprob changes with the tokens after it")
    if abs(other[0, place] - other[1, place]) < 1e-7:
        found.append("logprobs: wrong shift: a token's logprob does not change with the token before it")
    return found


async def _packing_fault(make: Factory, vocab: int) -> str:
    """Logprobs of a sequence are the same alone and among others."""
    batch = (await _rewarded(make, vocab, _SEED)).batch
    whole, alone = await _logprobs(make, batch), await _logprobs(make, batch, budget=max(batch.lengths))
    order = list(reversed(range(len(batch.lengths))))
    turned = np.zeros(batch.num_tokens)
    turned[batch.places(order)] = await _logprobs(make, batch.select(order))
    error = max(float(np.abs(whole - alone).max()), float(np.abs(whole - turned).max()))
    return f"logprobs: depend on what a sequence is packed with: off by {error:.2g}" if not error <= 1e-4 else ""


async def _climb_fault(make: Factory, vocab: int, folder: Path) -> str:
    """The last token of a sequence, an end of sequence as a rule, is trained like any other."""
    given = await _rewarded(make, vocab, _SEED)
    last = _last_tokens(given.batch)
    rows = {"trained": last, "weights": last.float() / last.sum(), "advantages": last.float()}
    objective = Objective(loss=Call("policy_gradient"))
    given = await _amplified(make, replace(given, batch=replace(given.batch, **rows)), objective, folder)
    if given is None:
        return "update: the last token of a sequence has no gradient: it is not trained"
    gradient = await _gradient(make(_WHOLE), given.batch, objective, folder)
    text = await _descent_fault(make, given.batch, objective, gradient)
    return f"update: the last token of a sequence: {text}" if text else ""


async def _descent_fault(make: Factory, batch: Batch, objective: Objective, gradient: Floats) -> str:
    """A small step along the gradient lowers the objective, by its formula, as fast as the gradient is long.

    Only logprobs, or values, are measured at both ends of the step; what they do to the objective is the formula's
    derivative, so no clip can come between. Entropies are not part of the protocol: of their bonus nothing is said.
    """
    if objective.entropy:
        return ""
    assert batch.weights is not None
    norm = float(np.linalg.norm(gradient))
    step = _STEP / norm
    start, ahead, behind = [await _scores(make, batch, objective, size) for size in (0.0, step, -step)]
    slopes = oracle.gradient(_exact(batch, objective, start), numbers(batch.weights), objective, _read(objective))
    ratio = float(np.sum(slopes * (behind - ahead))) / (2 * step * norm**2)
    return "" if abs(ratio - 1) <= 0.02 else f"the objective falls {ratio:.3g} times as fast as the gradient says"


async def _scores(make: Factory, batch: Batch, objective: Objective, step: float) -> Floats:
    """Logprobs, or a critic's values, after a step of this length times the gradient."""
    trainer = make(_WHOLE)
    await trainer.start()
    if step:
        await trainer.update(_times(batch, step), objective)
    found = numbers(await (trainer.values if _read(objective) == "values" else trainer.logprobs)(batch))
    await trainer.stop()
    return found


def _read(objective: Objective) -> oracle.Input:
    """What an objective makes of a model's output."""
    return "values" if objective.loss.name in _CRITICS else "logprobs"


def _exact(batch: Batch, objective: Objective, scores: Floats) -> ExactTokens:
    """What the formula of the objective reads."""
    given = exact_batch(batch)
    rows = {
        name: None if row is None else numbers(row)
        for name, row in (("ref_logprobs", batch.ref_logprobs), ("returns", batch.returns))
    }
    assert batch.advantages is not None
    return ExactTokens(
        logprobs=scores,
        frozen_logprobs=scores,
        old_logprobs=scores if given.old_logprobs is None else given.old_logprobs,
        sampler_logprobs=given.sampler_logprobs,
        advantages=numbers(batch.advantages),
        trained=given.trained,
        row=np.repeat(np.arange(len(batch.lengths)), batch.lengths),
        turn=given.turn,
        values=scores,
        old_values=given.values,
        **rows,
    )


def _whole(vocab: int, seed: int) -> Case:
    """Six sequences or more, none of them empty, some of them good and some bad: the first such case after `seed`."""
    found = (case(seed + 1000 * more, max_rows=_MAX_ROWS, vocab=vocab) for more in range(1000))
    given = next(given for given in found if _telling(given.batch))
    rows = [row for row, length in enumerate(given.batch.lengths) if length]
    places = given.batch.places(rows)
    cut = {name: getattr(given, name)[places] for name in ("logprobs", "values", "entropies")}
    return replace(given, batch=given.batch.select(rows), **cut)


def _telling(batch: Batch) -> bool:
    assert batch.advantages is not None
    earned = batch.advantages[batch.trained]
    return sum(length > 0 for length in batch.lengths) >= 6 and bool((earned > 0).any() and (earned < 0).any())


async def _rewarded(make: Factory, vocab: int, seed: int) -> Case:
    """With old and reference logprobs near the trainer's own."""
    given = _whole(vocab, seed)
    batch = given.batch
    noise = torch.as_tensor(np.random.default_rng(seed).normal(0, 0.3, (2, batch.num_tokens)).astype(np.float32))
    own = torch.as_tensor((await _logprobs(make, batch)).astype(np.float32))
    hidden = torch.where(batch.trained, 0.0, torch.nan)
    near = {"old_logprobs": own + noise[0] + hidden, "ref_logprobs": own + noise[1] + hidden}
    return replace(given, batch=replace(batch, **near))


async def _amplified(make: Factory, given: Case, objective: Objective, folder: Path) -> Case | None:
    """With weights so large that a step is long beside what it is taken from; None if there is no step to be taken."""
    gradient = await _gradient(make(_WHOLE), _times(given.batch, _GAIN), objective, folder)
    norm = float(np.linalg.norm(gradient))
    if not np.isfinite(norm) or norm == 0:
        return None
    before = np.concatenate([numbers(tensor).ravel() for _, tensor in read_tensors(folder / "before")])
    return replace(given, batch=_times(given.batch, _GAIN * 10 * float(np.linalg.norm(before)) / norm))


def _times(batch: Batch, factor: float) -> Batch:
    assert batch.weights is not None
    return replace(batch, weights=batch.weights * factor)


async def _gradient(trainer: Trainer, batch: Batch, objective: Objective, folder: Path) -> Floats:
    """All weights before an update less all weights after it."""
    await trainer.start()
    before = await _weights(trainer, folder / "before")
    await trainer.update(batch, objective)
    after = await _weights(trainer, folder / "after")
    await trainer.stop()
    return before - after


async def _weights(trainer: Trainer, path: Path) -> Floats:
    await trainer.save(path, resumable=False)
    tensors = sorted(read_tensors(path), key=lambda item: item[0])
    return np.concatenate([numbers(tensor).ravel() for _, tensor in tensors])


async def _logprobs(make: Factory, batch: Batch, *, budget: int = _WHOLE) -> Floats:
    trainer = make(budget)
    await trainer.start()
    found = numbers(await trainer.logprobs(batch))
    await trainer.stop()
    return found


def _plain(rows: list[list[int]]) -> Batch:
    """Sequences whose tokens after the first are trained, each its own trajectory of one turn."""
    lengths, size = tuple(len(row) for row in rows), len(rows)
    ids = torch.tensor([token for row in rows for token in row])
    trained = torch.tensor([place > 0 for row in rows for place in range(len(row))])
    each, nothing = torch.arange(size), torch.zeros(len(ids))
    return Batch(
        ids=ids,
        trained=trained,
        sampler_logprobs=nothing,
        versions=trained.int() - 1,
        lengths=lengths,
        trajectory=each,
        group=each,
        rewards=torch.zeros(size),
        truncated=torch.zeros(size, dtype=torch.bool),
        turn=torch.repeat_interleave(each, torch.tensor(lengths)),
        turn_trajectory=each,
        turn_rewards=torch.zeros(size),
        weights=trained.float() / trained.sum(),
        advantages=trained.float(),
    )


def _last_tokens(batch: Batch) -> torch.Tensor:
    """The last token of every row with more than one, as if all of them had been sampled."""
    ends = np.cumsum(batch.lengths) - 1
    found = torch.zeros(batch.num_tokens, dtype=torch.bool)
    found[ends[np.array(batch.lengths) > 1]] = True
    return found
