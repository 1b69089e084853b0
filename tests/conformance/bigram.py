"""The smallest trainer: the logits of a token are a row of a table, selected by the token before it."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import safetensors.torch
import torch

from roll.algorithms.objective import evaluate
from roll.algorithms.recipe import Objective
from roll.data.collate import pack
from roll.engines.native.sampling import restrict
from roll.types import Batch, Sampling, Tokens
from roll.weights.digest import Digest

VOCAB = 12
PLAIN = Sampling()


class Bigram:
    """`Trainer` with plain SGD, learning rate 1 and no clipping; subclasses get one thing wrong."""

    def __init__(self, budget: int, max_norm: float = math.inf) -> None:
        self.budget, self.max_norm = budget, max_norm
        noise = torch.Generator().manual_seed(0)
        self.table = torch.randn(VOCAB, VOCAB, generator=noise).requires_grad_()

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    async def logprobs(self, batch: Batch, *, sampling: Sampling | None = None) -> torch.Tensor:
        result = torch.zeros(batch.num_tokens)
        for rows in pack(batch.lengths, self.budget):
            result[batch.positions(rows)] = self.score(batch.select(rows), self.sampling(sampling))[0].detach()
        return result

    def sampling(self, requested: Sampling | None) -> Sampling:
        """The distribution of logprobs."""
        return requested or PLAIN

    async def values(self, batch: Batch) -> torch.Tensor:
        raise AssertionError("a policy has no values")

    async def update(self, batch: Batch, objective: Objective) -> dict[str, float]:
        parts = [batch.select(rows) for rows in pack(batch.lengths, self.budget)]
        for part in parts:
            loss, _ = evaluate(self.tokens(part), self.weights(part, batch), objective)
            (loss / self.divisor(len(parts))).backward()
            self.after_part()
        refused = self.refuse()
        if not refused:
            self.clip()
            with torch.no_grad():
                self.table -= self.gradient
        self.table.grad = None
        return {"loss/refused": float(refused)}

    @property
    def gradient(self) -> torch.Tensor:
        assert self.table.grad is not None
        return self.table.grad

    def after_part(self) -> None:
        """Nothing happens between micro-batches."""

    def refuse(self) -> bool:
        """Whether the gradient is not finite."""
        return not bool(self.gradient.isfinite().all())

    def clip(self) -> None:
        torch.nn.utils.clip_grad_norm_([self.table], self.max_norm)

    async def send(self, version: int) -> Digest:
        raise AssertionError("nobody receives")

    async def save(self, path: Path, *, resumable: bool = True) -> None:
        path.mkdir(exist_ok=True)
        safetensors.torch.save_file({"table": self.table.detach().clone()}, path / "model.safetensors")

    async def load(self, path: Path) -> None:
        raise AssertionError("nothing to go on with")

    def score(self, batch: Batch, sampling: Sampling = PLAIN) -> tuple[torch.Tensor, torch.Tensor]:
        """Logprobs and entropies, 0 for the first token of a row."""
        scores = restrict(self.table[self.before(batch)], sampling, keep=batch.ids).log_softmax(-1)
        first = self.first(batch)
        logprobs = torch.where(first, 0.0, scores.gather(1, batch.ids[:, None]).squeeze(1))
        return logprobs, torch.where(first, 0.0, -(scores.exp() * scores.clamp(min=-1e9)).sum(-1))

    def before(self, batch: Batch) -> torch.Tensor:
        """The token whose row of the table scores each token."""
        return batch.ids.roll(1)

    def first(self, batch: Batch) -> torch.Tensor:
        lengths = torch.tensor(batch.lengths)
        result = torch.zeros(batch.num_tokens, dtype=torch.bool)
        result[(lengths.cumsum(0) - lengths)[lengths > 0]] = True
        return result

    def weights(self, part: Batch, batch: Batch) -> torch.Tensor:
        """The weights of a micro-batch, which include the denominator of the whole batch."""
        assert part.weights is not None
        return part.weights

    def divisor(self, num_parts: int) -> float:
        """Divisor of a micro-batch's gradient: 1, because the weights include the denominator."""
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
    """The last token of one sequence scores the first of the next one in the pack."""

    def first(self, batch: Batch) -> torch.Tensor:
        return torch.zeros(batch.num_tokens, dtype=torch.bool)


class ReadsItsNeighbours(Bigram):
    """Attention crosses sequences: all earlier tokens of the micro-batch change a token's logits."""

    def score(self, batch: Batch, sampling: Sampling = PLAIN) -> tuple[torch.Tensor, torch.Tensor]:
        logprobs, entropies = super().score(batch, sampling)
        place = torch.arange(batch.num_tokens) / 1000
        return torch.where(self.first(batch), 0.0, logprobs - place), entropies


class EosUntrained(Bigram):
    """The last token of a sequence is left out of the update."""

    def weights(self, part: Batch, batch: Batch) -> torch.Tensor:
        retained = super().weights(part, batch).clone()
        retained[torch.tensor(part.lengths).cumsum(0) - 1] = 0
        return retained


class DenominatorOfTheMicroBatch(Bigram):
    """Each micro-batch is averaged separately."""

    def weights(self, part: Batch, batch: Batch) -> torch.Tensor:
        return part.trained.float() * 1024 / part.trained.sum().clamp(min=1)


class MeanOfMicroBatches(Bigram):
    """Gradient accumulation divides by the number of micro-batches."""

    def divisor(self, num_parts: int) -> float:
        return float(num_parts)


class DenominatorOfTheShard(Bigram):
    """Each rank divides by its own count."""

    def weights(self, part: Batch, batch: Batch) -> torch.Tensor:
        return part.trained.float() * 1024 / batch.trained.sum().clamp(min=1)


class CountsMaskedRows(Bigram):
    """The denominator counts rows, including those without a trained token."""

    def weights(self, part: Batch, batch: Batch) -> torch.Tensor:
        return super().weights(part, batch) * 8 / len(batch.lengths)


class CountsPadding(Bigram):
    """Rows are padded to the longest one, and the denominator counts padding."""

    def weights(self, part: Batch, batch: Batch) -> torch.Tensor:
        return super().weights(part, batch) * 8 / max(batch.lengths)


class WhitensUntrainedAdvantages(Bigram):
    """Advantages are normalised a second time, over all tokens."""

    def tokens(self, batch: Batch) -> Tokens:
        tokens = super().tokens(batch)
        row = torch.nan_to_num(tokens.advantages, nan=0.0, posinf=1.0, neginf=-1.0).clamp(-2, 2)
        return replace(tokens, advantages=(row - row.mean()) / row.std())


class ForgetsOldLogprobs(Bigram):
    """The ratio is always 1: old logprobs are not read."""

    def tokens(self, batch: Batch) -> Tokens:
        tokens = super().tokens(batch)
        return replace(tokens, old_logprobs=tokens.logprobs.detach())


class IgnoresTemperature(Bigram):
    """Logprobs are always those at temperature 1."""

    def sampling(self, requested: Sampling | None) -> Sampling:
        return replace(super().sampling(requested), temperature=1.0)


class IgnoresTopP(Bigram):
    """Logprobs are always those of the whole vocabulary."""

    def sampling(self, requested: Sampling | None) -> Sampling:
        return replace(super().sampling(requested), top_p=1.0)


class EntropyDetached(Bigram):
    """The entropy bonus is part of the loss and not of the gradient."""

    def tokens(self, batch: Batch) -> Tokens:
        tokens = super().tokens(batch)
        assert tokens.entropies is not None
        return replace(tokens, entropies=tokens.entropies.detach())


class ClipsMicroBatches(Bigram):
    """The sum of gradients is clipped after every micro-batch."""

    def after_part(self) -> None:
        super().clip()

    def clip(self) -> None: ...


class NeverClips(Bigram):
    """The norm of the gradient has no bound."""

    def clip(self) -> None: ...


class NeverRefuses(Bigram):
    """A non-finite update is applied and not reported."""

    def refuse(self) -> bool:
        return False


class MovesOnRefusal(Bigram):
    """A non-finite gradient is replaced by 0 where it is not finite, applied, and reported as refused."""

    def refuse(self) -> bool:
        refused = super().refuse()
        if refused:
            with torch.no_grad():
                self.table -= self.gradient.nan_to_num(0.0, 0.0, 0.0) + 1e-3
        return refused
