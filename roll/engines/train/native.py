"""The trainer that comes with the library: one process, torch alone, any model the native decoder knows."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from roll.algorithms.aggregation import weighted_sum
from roll.config.schema import Optimizer
from roll.data.packing import pack
from roll.engines.attention import Ragged, sharing
from roll.engines.base import Part
from roll.engines.decoder import Decoder
from roll.engines.sampling import score
from roll.engines.train.schedule import lr_at
from roll.errors import ConfigError
from roll.registry import LOSSES
from roll.types import Batch, Call, Digest, Sampling, Tokens
from roll.weights.digest import digest
from roll.weights.huggingface import read_tensors, write_model
from roll.weights.plan import Channel, Plan

_STATE = "optimizer.pt"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How a native trainer trains."""

    optimizer: Optimizer
    total_steps: int
    """Optimizer steps of the whole run, for the schedule."""
    tokens_per_microbatch: int
    sampling: Sampling
    """The distribution whose logprobs are trained; the generator's own."""
    device: torch.device


class NativeTrainer:
    """`Trainer` and `Resident` over one decoder."""

    def __init__(self, decoder: Decoder, settings: Settings, channel: Channel) -> None:
        self.decoder, self.settings, self.channel = decoder, settings, channel
        self._num_updates = 0
        self._adam: Any = None

    async def start(self) -> None:
        self.decoder.to(self.settings.device)
        knobs = self.settings.optimizer
        self._adam = torch.optim.AdamW(
            self.decoder.parameters(),
            lr=knobs.lr,
            betas=knobs.betas,
            eps=knobs.eps,
            weight_decay=knobs.weight_decay,
            fused=True,
        )

    async def stop(self) -> None:
        self._adam = None

    async def logprobs(self, batch: Batch) -> Tensor:
        row = torch.zeros(batch.num_tokens)
        for rows, part in self._microbatches(batch):
            with torch.no_grad():
                found, _ = self._forward(part, torch.ones_like(part.trained))
            row[_places(batch, rows)] = found.cpu()
            await asyncio.sleep(0)
        return row

    async def values(self, batch: Batch) -> Tensor:
        raise ConfigError("actor_train: this model has no value head; choose a recipe that needs no critic")

    async def update(self, batch: Batch, loss: Call) -> dict[str, float]:
        function, sums = LOSSES[loss.name], Sums()
        for _, part in self._microbatches(batch):
            self._accumulate(part, function, loss.arguments, sums)
            await asyncio.sleep(0)
        return self._step(sums)

    async def send(self, plan: Plan, version: int) -> Digest:
        self.channel.send(self.decoder.named_tensors(), version=version)
        return digest(self.decoder.parameters())

    async def save(self, path: Path, *, resumable: bool = True) -> None:
        write_model(path, self.decoder.config, dict(self.decoder.named_tensors()))
        if resumable:
            torch.save({"adam": self._adam.state_dict(), "num_updates": self._num_updates}, path / _STATE)

    async def load(self, path: Path) -> None:
        self.decoder.load(read_tensors(path), where=str(path))
        state = torch.load(path / _STATE, map_location=self.settings.device, weights_only=True)
        self._adam.load_state_dict(state["adam"])
        self._num_updates = state["num_updates"]

    async def offload(self, parts: Sequence[Part]) -> None:
        self._move(parts, torch.device("cpu"))

    async def onload(self, parts: Sequence[Part]) -> None:
        self._move(parts, self.settings.device)

    def _move(self, parts: Sequence[Part], device: torch.device) -> None:
        if "weights" in parts:
            for parameter in self.decoder.parameters():
                parameter.data = parameter.data.to(device)
        if "optimizer" in parts:
            for state in self._adam.state.values():
                for name in ("exp_avg", "exp_avg_sq"):
                    state[name] = state[name].to(device)

    def _microbatches(self, batch: Batch) -> Iterator[tuple[list[int], Batch]]:
        for rows in pack(batch.lengths, self.settings.tokens_per_microbatch):
            yield rows, batch.select(rows)

    def _forward(self, batch: Batch, wanted: Tensor) -> tuple[Tensor, Tensor]:
        """Logprobs and entropies of the wanted tokens, 0 elsewhere, entry t about token t.

        This is where logits are shifted, and nowhere else.
        """
        device = self.decoder.device
        ragged = Ragged(batch.lengths, device=device, shared=sharing(batch))
        ids = batch.ids.to(device)
        hidden = self.decoder.hidden(ids[ragged.kept], ragged.positions, ragged.attend)
        at = (wanted.to(device) & (ragged.positions[ragged.flat] > 0)).nonzero().squeeze(-1)
        before = ragged.flat[at - 1]
        found = score(hidden.index_select(0, before), self.decoder.head, ids[at], self.settings.sampling)
        nothing = torch.zeros(len(ids), device=device)
        logprobs, entropies = (nothing.index_copy(0, at, row) for row in found)
        return logprobs, entropies

    def _accumulate(self, batch: Batch, function: Any, arguments: dict[str, Any], sums: Sums) -> None:
        """Add this micro-batch's gradient and its share of the metrics."""
        assert batch.advantages is not None and batch.weights is not None, "assign_credit comes before update"
        logprobs, entropies = self._forward(batch, batch.trained)
        tokens = _tokens(batch, logprobs, entropies)
        row, metrics = function(tokens, **arguments)
        loss = weighted_sum(row, batch.weights.to(row.device))
        loss.backward()
        gap = (tokens.logprobs - tokens.sampler_logprobs).detach().abs()
        sums.add(loss, tokens.trained, {**metrics, "entropy": entropies, "gap": gap})

    def _step(self, sums: Sums) -> dict[str, float]:
        """Clip, refuse what is not finite, and let AdamW move the weights."""
        knobs = self.settings.optimizer
        lr = lr_at(self._num_updates, self.settings.total_steps, knobs)
        norm = torch.nn.utils.clip_grad_norm_(self.decoder.parameters(), knobs.clip_norm)
        finite = bool(torch.isfinite(norm) & torch.isfinite(sums.loss))
        if finite:
            for group in self._adam.param_groups:
                group["lr"] = lr
            self._adam.step()
            self._num_updates += 1
        self._adam.zero_grad(set_to_none=True)
        return {**sums.means(), "loss/grad_norm": float(norm), "loss/lr": lr, "loss/refused": float(not finite)}


class Sums:
    """Numerators and denominators of a step's metrics, kept as tensors and read once at its end."""

    def __init__(self) -> None:
        self.loss = torch.zeros(())
        self._count = torch.zeros(())
        self._totals: dict[str, Tensor] = {}
        self._gap_max = torch.zeros(())

    @torch.no_grad()
    def add(self, loss: Tensor, trained: Tensor, rows: dict[str, Tensor]) -> None:
        """Rows of one number a token; only trained ones count."""
        self.loss = self.loss + loss.detach().cpu()
        self._count = self._count + trained.sum().cpu()
        for name, row in rows.items():
            total = row.detach().float().masked_fill(~trained, 0.0).sum().cpu()
            self._totals[name] = self._totals.get(name, torch.zeros(())) + total
        self._gap_max = torch.maximum(self._gap_max, rows["gap"].masked_fill(~trained, 0.0).amax().cpu())

    def means(self) -> dict[str, float]:
        """By metric name."""
        count = max(1.0, float(self._count))
        means = {f"loss/{name}": float(total) / count for name, total in self._totals.items()}
        gap = means.pop("loss/gap", 0.0)
        return {**means, "loss/policy": float(self.loss), "gap/mean": gap, "gap/max": float(self._gap_max)}


def _tokens(batch: Batch, logprobs: Tensor, entropies: Tensor) -> Tokens:
    """With one update a batch the update's own logprobs are the proximal ones: nothing is recomputed."""
    device = logprobs.device
    lengths = torch.tensor(batch.lengths)
    row = torch.repeat_interleave(torch.arange(len(batch.lengths)), lengths)
    assert batch.advantages is not None
    return Tokens(
        logprobs=logprobs,
        old_logprobs=logprobs.detach() if batch.old_logprobs is None else batch.old_logprobs.to(device),
        sampler_logprobs=batch.sampler_logprobs.to(device),
        advantages=batch.advantages.to(device),
        trained=batch.trained.to(device),
        row=row.to(device),
        trajectory=batch.trajectory[row].to(device),
        ref_logprobs=None if batch.ref_logprobs is None else batch.ref_logprobs.to(device),
        values=None if batch.values is None else batch.values.to(device),
        entropies=entropies,
    )


def _places(batch: Batch, rows: Sequence[int]) -> Tensor:
    """Where the tokens of these rows stand in the whole batch."""
    lengths = torch.tensor(batch.lengths)
    starts = lengths.cumsum(0) - lengths
    return torch.cat([torch.arange(int(starts[row]), int(starts[row] + lengths[row])) for row in rows])
