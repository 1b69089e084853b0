"""Laws of trainers, checked through the `Trainer` protocol alone.

A trainer with plain SGD, learning rate 1 and no clipping moves its weights by exactly the gradient. The gradient is
therefore the difference of what `save` writes before and after an update. It must not depend on how the batch is
ordered, split, packed, sharded or padded, and a step along it must lower the objective as `logprobs` measure it.
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
from roll.conformance.batches import Case, case, tokens
from roll.conformance.exact import Floats, exact_tokens, numbers
from roll.data.collate import split, supervised
from roll.engines.base import Trainer
from roll.types import Batch, Sampling, Spec
from roll.weights.huggingface import read_tensors

Factory: TypeAlias = Callable[[int], Trainer]
"""Creates equal trainers, by the most tokens per micro-batch; SGD, learning rate 1, no clipping."""
OBJECTIVES = (
    Objective(loss=Spec("clipped")),
    Objective(loss=Spec("sequence_clipped", {"clip_low": 0.3, "clip_high": 0.3}), entropy=0.01),
    Objective(loss=Spec("policy_gradient"), kl=Spec("k3"), kl_coefficient=0.1),
)
_WHOLE = 1_000_000
"""Micro-batch budget that holds any batch."""
_GAIN = 1024.0
"""Factor on the loss weights in a first attempt: single precision loses a small step relative to a large weight."""
_TOLERANCE = 1e-5
_STEP = 0.003
"""Length of the step with which the slope of an objective is measured."""
_CRITICS = frozenset({"squared_value"})
"""Losses of values."""
_SEED, _MAX_ROWS = 4, 12


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Rig:
    """A trainer factory, a directory for saved weights, and the case on which all gradients are computed."""

    make: Factory
    directory: Path
    case: Case
    objective: Objective
    expected: Floats

    async def fault(self, batch: Batch | Sequence[Batch], what: str, *, budget: int = _WHOLE) -> str:
        """The fault that the gradients of these shards do not sum to the batch's, or an empty string."""
        shards = [batch] if isinstance(batch, Batch) else batch
        result = sum([await _gradient(self.make(budget), shard, self.objective, self.directory) for shard in shards])
        size = float(np.linalg.norm(self.expected))
        error = float(np.linalg.norm(result - self.expected)) / size
        if error <= _TOLERANCE:
            return ""
        grown = float(np.linalg.norm(result)) / size
        return f"the gradient depends on {what}: off by {error:.2g} of its norm, {grown:.3g} times as long"


async def check_trainer(
    make: Factory, *, vocab: int, objectives: Sequence[Objective] = OBJECTIVES, make_clipped: Factory | None = None
) -> list[str]:
    """Faults of a policy's trainer; `vocab` is the vocabulary size of its model.

    `make_clipped` creates the same trainers with gradients clipped to norm 1; without it clipping is not checked.
    """
    faults = await check_logprobs(make, vocab=vocab)
    for objective in objectives:
        faults += await check_gradient(make, objective, vocab=vocab)
    with tempfile.TemporaryDirectory() as directory:
        faults.append(await _entropy_fault(make, vocab, Path(directory)))
        faults += await _refusal_faults(make, vocab, Path(directory))
        if make_clipped is not None:
            faults += await _clip_faults(make, make_clipped, vocab, Path(directory))
    return [fault for fault in faults if fault]


async def check_gradient(make: Factory, objective: Objective, *, vocab: int, seed: int = _SEED) -> list[str]:
    """Everything that the gradient of an objective wrongly depends on; a critic's objective is `squared_value`."""
    start = _whole(vocab, seed) if objective.loss.name in _CRITICS else await _near_policy(make, vocab, seed)
    with tempfile.TemporaryDirectory() as directory:
        example = await _amplify(make, start, objective, Path(directory))
        if example is None:
            return [f"{objective.loss.name}: the gradient is 0 or not finite"]
        expected = await _gradient(make(_WHOLE), example.batch, objective, Path(directory))
        rig = _Rig(make=make, directory=Path(directory), case=example, objective=objective, expected=expected)
        texts = [await rig.fault(example.batch, "chance: two equal trainers differ")]
        if not texts[0]:
            texts = [
                *await _split_faults(rig),
                *await _row_faults(rig),
                await _descent_fault(make, example, objective, expected),
            ]
    return [f"{objective.loss.name}: {text}" for text in texts if text]


async def check_logprobs(make: Factory, *, vocab: int) -> list[str]:
    """Whether logprobs belong to their token, depend on their sequence only, and increase with an update."""
    with tempfile.TemporaryDirectory() as directory:
        texts = [
            *await _shift_faults(make, vocab),
            *await _sampling_faults(make, vocab),
            await _packing_fault(make, vocab),
            await _climb_fault(make, vocab, Path(directory)),
        ]
    return [text for text in texts if text]


async def _split_faults(rig: _Rig) -> list[str]:
    """Faults with micro-batches and shards."""
    batch, longest = rig.case.batch, max(rig.case.batch.lengths)
    faults = [
        await rig.fault(batch, f"the micro-batch: with {budget} tokens each", budget=budget)
        for budget in (longest, 2 * longest + 1)
    ]
    for parts in (2, 3):
        faults.append(await rig.fault(split(batch, parts), f"the data-parallel split: with {parts} shards"))
    return faults


async def _row_faults(rig: _Rig) -> list[str]:
    """Faults with order, all-masked rows, tokens after the last trained one, and garbage."""
    batch = rig.case.batch
    order = np.random.default_rng(rig.case.seed).permutation(len(batch.lengths)).tolist()
    budget = 2 * max(batch.lengths) + 8
    return [
        await rig.fault(batch.select(order), "the order of sequences", budget=budget),
        await rig.fault(
            variations.add_masked_rows(rig.case, empty=False)[0].batch, "all-masked sequences", budget=budget
        ),
        await rig.fault(
            variations.append_observations(rig.case)[0].batch, "observation tokens after the last trained one"
        ),
        await rig.fault(variations.replace_garbage(rig.case)[0].batch, "values at untrained tokens"),
    ]


async def _shift_faults(make: Factory, vocab: int) -> list[str]:
    """The probabilities of all tokens at a position sum to 1; a position reads earlier tokens and no later ones."""
    position = 3
    batch = supervised([([1], [2, 0, token, 1]) for token in range(vocab)])
    rows = (await _scores(make, batch)).reshape(vocab, 5)
    other = (await _scores(make, supervised([([1], [2, 3, 0, 1]), ([1], [2, 0, 0, 1])]))).reshape(2, 5)
    total, faults = float(np.exp(rows[:, position]).sum()), list[str]()
    if np.any(rows[:, 0] != 0):
        faults.append(f"logprobs: the first token of a sequence has {rows[0, 0]:.3g} instead of 0: nothing scores it")
    if abs(total - 1) > 1e-4:
        faults.append(
            f"logprobs: wrong shift: the probabilities of all tokens at one position sum to {total:.4g}, not to 1"
        )
    if np.abs(rows[:, 1:position] - rows[0, 1:position]).max() > 1e-5:
        faults.append("logprobs: wrong shift: a token's logprob changes with the tokens after it")
    if abs(other[0, position] - other[1, position]) < 1e-7:
        faults.append("logprobs: wrong shift: a token's logprob does not change with the token before it")
    return faults


async def _sampling_faults(make: Factory, vocab: int) -> list[str]:
    """Logprobs under another temperature or top-p follow from those under the whole distribution."""
    row = await _distribution(make, vocab)
    faults = list[str]()
    for sampling in (Sampling(temperature=0.5), Sampling(top_p=0.7)):
        scaled = row / sampling.temperature
        order = np.argsort(-scaled)
        sorted_mass = np.exp(scaled - np.log(np.exp(scaled).sum()))[order]
        inside = order[np.cumsum(sorted_mass) - sorted_mass < sampling.top_p]
        expected = scaled[inside] - np.log(np.exp(scaled[inside]).sum())
        error = float(np.abs((await _distribution(make, vocab, sampling=sampling))[inside] - expected).max())
        if not error <= 1e-4:
            name = "top_p" if sampling.top_p < 1 else "temperature"
            faults.append(f"logprobs: wrong {name}: off by {error:.2g} at {getattr(sampling, name)}")
    return faults


async def _entropy_fault(make: Factory, vocab: int, directory: Path) -> str:
    """A step along the gradient of an entropy bonus raises the entropy, in proportion to the gradient's norm."""
    objective = Objective(loss=Spec("policy_gradient"), entropy=1.0)
    batch = _one_position(vocab).select([0])
    start = replace(_whole(vocab, _SEED), batch=replace(batch, advantages=torch.zeros(batch.num_tokens)))
    example = await _amplify(make, start, objective, directory)
    if example is None:
        return "update: an entropy bonus has no gradient"
    norm = float(np.linalg.norm(await _gradient(make(_WHOLE), example.batch, objective, directory)))
    step = _STEP / norm
    update = (objective, _times(example.batch, step)), (objective, _times(example.batch, -step))
    ahead, behind = [await _distribution(make, vocab, update=each) for each in update]
    rise = float(np.sum(np.exp(behind) * behind) - np.sum(np.exp(ahead) * ahead))
    scale = float(example.batch.weights.sum()) if example.batch.weights is not None else 1.0
    ratio = scale * rise / (2 * step * norm**2)
    return "" if abs(ratio - 1) <= 0.02 else f"update: the entropy rises {ratio:.3g} times as fast as its bonus says"


async def _refusal_faults(make: Factory, vocab: int, directory: Path) -> list[str]:
    """A non-finite update is reported and leaves the weights as they are, in any micro-batch."""
    batch = (await _near_policy(make, vocab, _SEED)).batch
    assert batch.advantages is not None
    faults = list[str]()
    for budget, index in ((_WHOLE, 0), (max(batch.lengths), 0), (max(batch.lengths), -1)):
        advantages = batch.advantages.clone()
        advantages[batch.trained.nonzero().squeeze(-1)[index]] = torch.inf
        trainer = make(budget)
        await trainer.start()
        before = await _weights(trainer, directory / "before")
        metrics = await trainer.update(replace(batch, advantages=advantages), OBJECTIVES[2])
        moved = not np.array_equal(before, await _weights(trainer, directory / "after"))
        await trainer.stop()
        if moved:
            faults.append("update: a non-finite update changes the weights")
        if metrics.get("loss/refused") != 1:
            faults.append("update: a non-finite update is not reported: loss/refused is not 1")
    return list(dict.fromkeys(faults))


async def _clip_faults(make: Factory, make_clipped: Factory, vocab: int, directory: Path) -> list[str]:
    """A gradient of norm above 1 is scaled to norm 1 as a whole."""
    example = await _amplify(make, await _near_policy(make, vocab, _SEED), OBJECTIVES[0], directory)
    if example is None:
        return []
    expected = await _gradient(make(_WHOLE), example.batch, OBJECTIVES[0], directory)
    expected /= np.linalg.norm(expected)
    faults = list[str]()
    for budget, what in ((_WHOLE, "one micro-batch"), (max(example.batch.lengths), "several micro-batches")):
        result = await _gradient(make_clipped(budget), example.batch, OBJECTIVES[0], directory)
        if not (error := float(np.linalg.norm(result - expected))) <= 1e-3:
            faults.append(f"update: the gradient of {what} is not clipped to norm 1: off by {error:.2g}")
    return faults


def _one_position(vocab: int) -> Batch:
    """One row per token of the vocabulary, which is the last and only trained token after the same prompt."""
    return supervised([([1, 2, 0], [token]) for token in range(vocab)])


async def _distribution(
    make: Factory, vocab: int, *, sampling: Sampling | None = None, update: tuple[Objective, Batch] | None = None
) -> Floats:
    """[vocab] logprobs of all tokens after one prompt, after an update if there is one."""
    trainer = make(_WHOLE)
    await trainer.start()
    if update is not None:
        await trainer.update(update[1], update[0])
    rows = numbers(await trainer.logprobs(_one_position(vocab), sampling=sampling))
    await trainer.stop()
    return rows.reshape(vocab, 4)[:, 3]


async def _packing_fault(make: Factory, vocab: int) -> str:
    """Logprobs of a sequence are the same alone and packed with others."""
    batch = (await _near_policy(make, vocab, _SEED)).batch
    whole, alone = await _scores(make, batch), await _scores(make, batch, budget=max(batch.lengths))
    order = list(reversed(range(len(batch.lengths))))
    reversed_row = np.zeros(batch.num_tokens)
    reversed_row[batch.positions(order)] = await _scores(make, batch.select(order))
    error = max(float(np.abs(whole - alone).max()), float(np.abs(whole - reversed_row).max()))
    return f"logprobs: depend on the sequences packed together: off by {error:.2g}" if not error <= 1e-4 else ""


async def _climb_fault(make: Factory, vocab: int, directory: Path) -> str:
    """The last token of a sequence, usually an end of sequence, is trained like any other."""
    start = await _near_policy(make, vocab, _SEED)
    last = _last_tokens(start.batch)
    rows = {"trained": last, "weights": last.float() / last.sum(), "advantages": last.float()}
    objective = Objective(loss=Spec("policy_gradient"))
    example = await _amplify(make, replace(start, batch=replace(start.batch, **rows)), objective, directory)
    if example is None:
        return "update: the last token of a sequence has no gradient: it is not trained"
    gradient = await _gradient(make(_WHOLE), example.batch, objective, directory)
    text = await _descent_fault(make, example, objective, gradient)
    return f"update: the last token of a sequence: {text}" if text else ""


async def _descent_fault(make: Factory, example: Case, objective: Objective, gradient: Floats) -> str:
    """A step along the gradient lowers the objective by its formula, in proportion to the gradient's norm.

    Only logprobs or values are measured at both ends of the step. Their effect on the objective is the derivative of
    the formula, so clips do not interfere. Entropies are not part of the protocol, so their bonus is not checked.
    """
    if objective.entropy:
        return ""
    batch = example.batch
    assert batch.weights is not None
    norm = float(np.linalg.norm(gradient))
    step = _STEP / norm
    start, ahead, behind = [await _scores(make, batch, objective, size) for size in (0.0, step, -step)]
    inputs = replace(exact_tokens(tokens(example)), logprobs=start, frozen_logprobs=start, values=start)
    slopes = oracle.gradient(inputs, numbers(batch.weights), objective, _model_output(objective))
    ratio = float(np.sum(slopes * (behind - ahead))) / (2 * step * norm**2)
    return "" if abs(ratio - 1) <= 0.02 else f"the objective falls {ratio:.3g} times as fast as the gradient says"


async def _scores(
    make: Factory, batch: Batch, objective: Objective = OBJECTIVES[0], step: float = 0.0, *, budget: int = _WHOLE
) -> Floats:
    """Logprobs, or the values of a critic's objective, after a step of this multiple of the gradient."""
    trainer = make(budget)
    await trainer.start()
    if step:
        await trainer.update(_times(batch, step), objective)
    scores = numbers(await (trainer.values if _model_output(objective) == "values" else trainer.logprobs)(batch))
    await trainer.stop()
    return scores


def _model_output(objective: Objective) -> oracle.Input:
    """The model output that an objective uses."""
    return "values" if objective.loss.name in _CRITICS else "logprobs"


def _whole(vocab: int, seed: int) -> Case:
    """The first case after `seed` with six non-empty sequences or more and advantages of both signs."""
    cases = (case(seed + 1000 * more, max_rows=_MAX_ROWS, vocab=vocab) for more in range(1000))
    chosen = next(each for each in cases if _has_both_signs(each.batch))
    rows = [row for row, length in enumerate(chosen.batch.lengths) if length]
    positions = chosen.batch.positions(rows)
    selected = {name: getattr(chosen, name)[positions] for name in ("logprobs", "values", "entropies")}
    return replace(chosen, batch=chosen.batch.select(rows), **selected)


def _has_both_signs(batch: Batch) -> bool:
    assert batch.advantages is not None
    advantages = batch.advantages[batch.trained]
    both_signs = bool((advantages > 0).any() and (advantages < 0).any())
    return sum(length > 0 for length in batch.lengths) >= 6 and both_signs


async def _near_policy(make: Factory, vocab: int, seed: int) -> Case:
    """A case with old and reference logprobs near the trainer's."""
    start = _whole(vocab, seed)
    batch = start.batch
    noise = torch.as_tensor(np.random.default_rng(seed).normal(0, 0.3, (2, batch.num_tokens)).astype(np.float32))
    current = torch.as_tensor((await _scores(make, batch)).astype(np.float32))
    hidden = torch.where(batch.trained, 0.0, torch.nan)
    near = {"old_logprobs": current + noise[0] + hidden, "ref_logprobs": current + noise[1] + hidden}
    return replace(start, batch=replace(batch, **near))


async def _amplify(make: Factory, start: Case, objective: Objective, directory: Path) -> Case | None:
    """Scales the loss weights so that a step is long relative to the model's weights; None if the gradient is 0."""
    gradient = await _gradient(make(_WHOLE), _times(start.batch, _GAIN), objective, directory)
    norm = float(np.linalg.norm(gradient))
    if not np.isfinite(norm) or norm == 0:
        return None
    before = np.concatenate([numbers(tensor).ravel() for _, tensor in read_tensors(directory / "before")])
    return replace(start, batch=_times(start.batch, _GAIN * 10 * float(np.linalg.norm(before)) / norm))


def _times(batch: Batch, factor: float) -> Batch:
    assert batch.weights is not None
    return replace(batch, weights=batch.weights * factor)


async def _gradient(trainer: Trainer, batch: Batch, objective: Objective, directory: Path) -> Floats:
    """All weights before an update minus all weights after it."""
    await trainer.start()
    before = await _weights(trainer, directory / "before")
    await trainer.update(batch, objective)
    after = await _weights(trainer, directory / "after")
    await trainer.stop()
    return before - after


async def _weights(trainer: Trainer, path: Path) -> Floats:
    await trainer.save(path, resumable=False)
    tensors = sorted(read_tensors(path), key=lambda item: item[0])
    return np.concatenate([numbers(tensor).ravel() for _, tensor in tensors])


def _last_tokens(batch: Batch) -> torch.Tensor:
    """[tokens] bool: the last token of every row with more than one token."""
    ends = np.cumsum(batch.lengths) - 1
    last = torch.zeros(batch.num_tokens, dtype=torch.bool)
    last[ends[np.array(batch.lengths) > 1]] = True
    return last
