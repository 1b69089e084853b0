"""The smallest trainer there is: the logits of a token are a row of a table, chosen by the token before it."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import safetensors.torch
import torch

from roll.algorithms.objective import evaluate
from roll.algorithms.recipe import Objective
from roll.data.packing import pack
from roll.types import Batch, Digest, Tokens
from roll.weights.plan import Plan

VOCAB = 12


class Bigram:
    """`Trainer` with plain SGD, learning rate 1 and no clipping; subclasses get one thing wrong."""

    def __init__(self, budget: int) -> None:
        self.budget = budget
        noise = torch.Generator().manual_seed(0)
        self.table = torch.randn(VOCAB, VOCAB, generator=noise).requires_grad_()

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    async def logprobs(self, batch: Batch) -> torch.Tensor:
        found = torch.zeros(batch.num_tokens)
        for rows in pack(batch.lengths, self.budget):
            found[batch.places(rows)] = self.score(batch.select(rows))[0].detach()
        return found

    async def values(self, batch: Batch) -> torch.Tensor:
        raise AssertionError("a policy has no values")

    async def update(self, batch: Batch, objective: Objective) -> dict[str, float]:
        parts = [batch.select(rows) for rows in pack(batch.lengths, self.budget)]
        for part in parts:
            loss, _ = evaluate(self.tokens(part), self.weights(part, batch), objective)
            (loss / self.divisor(len(parts))).backward()
        with torch.no_grad():
            self.table -= self.table.grad
        self.table.grad = None
        return {"loss/refused": 0.0}

    async def send(self, plan: Plan, version: int) -> Digest:
        raise AssertionError("nobody receives")

    async def save(self, path: Path, *, resumable: bool = True) -> None:
        path.mkdir(exist_ok=True)
        safetensors.torch.save_file({"table": self.table.detach().clone()}, path / "model.safetensors")

    async def load(self, path: Path) -> None:
        raise AssertionError("nothing to go on with")

    def score(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """Logprobs and entropies, 0 for the first token of a row."""
        scores = self.table[self.before(batch)].log_softmax(-1)
        first = self.first(batch)
        logprobs = torch.where(first, 0.0, scores.gather(1, batch.ids[:, None]).squeeze(1))
        return logprobs, torch.where(first, 0.0, -(scores.exp() * scores).sum(-1))

    def before(self, batch: Batch) -> torch.Tensor:
        """The token whose row of the table scores each token."""
        return batch.ids.roll(1)

    def first(self, batch: Batch) -> torch.Tensor:
        lengths = torch.tensor(batch.lengths)
        found = torch.zeros(batch.num_tokens, dtype=torch.bool)
        found[(lengths.cumsum(0) - lengths)[lengths > 0]] = True
        return found

    def weights(self, part: Batch, batch: Batch) -> torch.Tensor:
        """Of a micro-batch; they carry the denominator of the whole batch."""
        assert part.weights is not None
        return part.weights

    def divisor(self, num_parts: int) -> float:
        """What a micro-batch's gradient is divided by: nothing, since the weights have done it."""
        return 1.0

    def tokens(self, batch: Batch) -> Tokens:
        logprobs, entropies = self.score(batch)
        row = torch.repeat_interleave(torch.arange(len(batch.lengths)), torch.tensor(batch.lengths))
        rows: dict[str, Any] = {
            "logprobs": logprobs,
            "old_logprobs": logprobs.detach() if batch.old_logprobs is None else batch.old_logprobs,
            "sampler_logprobs": batch.sampler_logprobs,
            "advantages": batch.advantages,
            "ref_logprobs": batch.ref_logprobs,
            "entropies": entropies,
        }
        return Tokens(trained=batch.trained, row=row, trajectory=batch.trajectory[row], turn=batch.turn, **rows)


class NoShift(Bigram):
    """Logits at t score token t."""

    def before(self, batch: Batch) -> torch.Tensor:
        return batch.ids


class ShiftedTwice(Bigram):
    """Logits at t score token t+2."""

    def before(self, batch: Batch) -> torch.Tensor:
        return batch.ids.roll(2)


class ScoresTheFirst(Bigram):
    """The last token of one sequence scores the first of the next one that it is packed with."""

    def first(self, batch: Batch) -> torch.Tensor:
        return torch.zeros(batch.num_tokens, dtype=torch.bool)


class ReadsItsNeighbours(Bigram):
    """Attention is not kept within a sequence: everything before it in the micro-batch changes a token's logits."""

    def score(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        logprobs, entropies = super().score(batch)
        place = torch.arange(batch.num_tokens) / 1000
        return torch.where(self.first(batch), 0.0, logprobs - place), entropies


class EosUntrained(Bigram):
    """The last token of a sequence is left out of the update."""

    def weights(self, part: Batch, batch: Batch) -> torch.Tensor:
        kept = super().weights(part, batch).clone()
        kept[torch.tensor(part.lengths).cumsum(0) - 1] = 0
        return kept


class DenominatorOfTheMicroBatch(Bigram):
    """Each micro-batch is a mean of its own."""

    def weights(self, part: Batch, batch: Batch) -> torch.Tensor:
        return part.trained.float() * 1024 / part.trained.sum().clamp(min=1)


class MeanOfMicroBatches(Bigram):
    """Gradient accumulation divides by the number of micro-batches."""

    def divisor(self, num_parts: int) -> float:
        return float(num_parts)


class DenominatorOfTheShard(Bigram):
    """Each rank divides by what it has itself."""

    def weights(self, part: Batch, batch: Batch) -> torch.Tensor:
        return part.trained.float() * 1024 / batch.trained.sum().clamp(min=1)


class CountsMaskedRows(Bigram):
    """The denominator is a number of rows, those without a trained token among them."""

    def weights(self, part: Batch, batch: Batch) -> torch.Tensor:
        return super().weights(part, batch) * 8 / len(batch.lengths)


class CountsPadding(Bigram):
    """Rows are padded to the longest one, and the denominator counts what they are padded to."""

    def weights(self, part: Batch, batch: Batch) -> torch.Tensor:
        return super().weights(part, batch) * 8 / max(batch.lengths)


class WhitensUntrainedAdvantages(Bigram):
    """Advantages are normalised once more, over every token there is."""

    def tokens(self, batch: Batch) -> Tokens:
        tokens = super().tokens(batch)
        row = torch.nan_to_num(tokens.advantages, nan=0.0, posinf=1.0, neginf=-1.0).clamp(-2, 2)
        return replace(tokens, advantages=(row - row.mean()) / row.std())


class ForgetsOldLogprobs(Bigram):
    """The ratio is always 1: what the proximal policy was is not read."""

    def tokens(self, batch: Batch) -> Tokens:
        tokens = super().tokens(batch)
        return replace(tokens, old_logprobs=tokens.logprobs.detach())
