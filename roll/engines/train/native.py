"""The trainer that comes with the library: one process, torch alone, any model the native decoder knows."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from roll.algorithms.objective import evaluate
from roll.algorithms.recipe import Objective
from roll.config.schema import Optimizer
from roll.data.packing import pack
from roll.engines.attention import Ragged, sharing
from roll.engines.base import Part
from roll.engines.decoder import Decoder
from roll.engines.sampling import score
from roll.engines.train.schedule import lr_at
from roll.errors import ConfigError
from roll.types import Batch, Digest, Sampling, Tokens
from roll.weights.digest import digest
from roll.weights.huggingface import read_tensors, write_model
from roll.weights.plan import Channel, Plan

_STATE = "optimizer.pt"


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What a model says of tokens: rows of one number a token."""

    logprobs: Tensor
    entropies: Tensor
    values: Tensor | None
    """From a critic, whose logprobs and entropies are 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreSettings:
    """How a native model is read."""

    tokens_per_microbatch: int
    sampling: Sampling
    """The distribution whose logprobs are meant; the generator's own."""
    sampling_of: Mapping[str, Sampling] = field(default_factory=dict[str, Sampling])
    """By domain, for those that are sampled in their own way."""
    device: torch.device


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings(ScoreSettings):
    """How a native trainer trains."""

    optimizer: Optimizer
    total_steps: int
    """Optimizer steps of the whole run, for the schedule."""


class NativeScorer:
    """`Scorer` over one decoder: logprobs from one with a language head, values from one with a score."""

    def __init__(self, decoder: Decoder, settings: ScoreSettings) -> None:
        self.decoder, self.settings = decoder, settings

    async def start(self) -> None:
        self.decoder.to(self.settings.device)

    async def stop(self) -> None:
        """Nothing is held that outlives the object."""

    async def logprobs(self, batch: Batch, *, sampling: Sampling | None = None) -> Tensor:
        if self.decoder.score is not None:
            raise ConfigError("logprobs: this model has a score instead of a language head; give another model")
        return await self._row(batch, lambda measured: measured.logprobs, sampling)

    async def values(self, batch: Batch) -> Tensor:
        if self.decoder.score is None:
            raise ConfigError("values: this model has no value head; choose a recipe that needs no critic")
        return await self._row(batch, lambda measured: measured.values)

    async def _row(
        self, batch: Batch, chosen: Callable[[Measured], Tensor | None], sampling: Sampling | None = None
    ) -> Tensor:
        row = torch.zeros(batch.num_tokens)
        for rows, part in self._microbatches(batch):
            with torch.no_grad():
                found = chosen(self._measure(part, torch.ones_like(part.trained), sampling=sampling))
            assert found is not None
            row[batch.places(rows)] = found.cpu()
            await asyncio.sleep(0)
        return row

    def _microbatches(self, batch: Batch) -> Iterator[tuple[list[int], Batch]]:
        for rows in pack(batch.lengths, self.settings.tokens_per_microbatch):
            yield rows, batch.select(rows)

    def _measure(
        self, batch: Batch, wanted: Tensor, *, sampling: Sampling | None = None, entropy_gradient: bool = False
    ) -> Measured:
        """What the model says of the wanted tokens, 0 elsewhere, entry t about token t.

        This is where outputs are shifted, and nowhere else.
        """
        device = self.decoder.device
        ragged = Ragged(batch.lengths, device=device, shared=sharing(batch))
        ids = batch.ids.to(device)
        hidden = self.decoder.hidden(ids[ragged.kept], ragged.positions, ragged.attend)
        at = (wanted.to(device) & (ragged.positions[ragged.flat] > 0)).nonzero().squeeze(-1)
        before = hidden.index_select(0, ragged.flat[at - 1])
        nothing = torch.zeros(len(ids), device=device)
        if self.decoder.score is not None:
            values = nothing.index_copy(0, at, (before @ self.decoder.score.t()).squeeze(-1).float())
            return Measured(logprobs=nothing, entropies=nothing, values=values)
        logprobs = entropies = nothing
        for kind, chosen in self._kinds(batch, at) if sampling is None else [(sampling, None)]:
            found = score(
                before if chosen is None else before[chosen],
                self.decoder.head,
                ids[at] if chosen is None else ids[at[chosen]],
                kind,
                entropy_gradient=entropy_gradient,
            )
            places = at if chosen is None else at[chosen]
            logprobs, entropies = (
                row.index_copy(0, places, part) for row, part in zip((logprobs, entropies), found, strict=True)
            )
        return Measured(logprobs=logprobs, entropies=entropies, values=None)

    def _kinds(self, batch: Batch, at: Tensor) -> list[tuple[Sampling, Tensor | None]]:
        """The distributions that tokens were drawn from, with which of `at` are theirs; None: all of them."""
        common, own = self.settings.sampling, self.settings.sampling_of
        kinds = [own.get(domain, common) for domain in batch.domains] or [common]
        if len(set(kinds)) == 1:
            return [(kinds[0], None)]
        owner = torch.repeat_interleave(batch.trajectory, torch.tensor(batch.lengths))[at.cpu()].tolist()
        places = {kind: [place for place, which in enumerate(owner) if kinds[which] == kind] for kind in set(kinds)}
        return [
            (kind, torch.tensor(places[kind], dtype=torch.int64, device=at.device))
            for kind in sorted(places, key=kinds.index)
            if places[kind]
        ]


class NativeTrainer(NativeScorer):
    """`Trainer` and `Resident` over one decoder."""

    settings: Settings

    def __init__(self, decoder: Decoder, settings: Settings, channel: Channel) -> None:
        super().__init__(decoder, settings)
        self.channel = channel
        self._num_updates = 0
        self._optimizer: Any = None

    async def start(self) -> None:
        await super().start()
        knobs, parameters = self.settings.optimizer, self.decoder.parameters()
        if knobs.kind == "sgd":
            self._optimizer = torch.optim.SGD(parameters, lr=knobs.lr, weight_decay=knobs.weight_decay)
            return
        self._optimizer = torch.optim.AdamW(
            parameters, lr=knobs.lr, betas=knobs.betas, eps=knobs.eps, weight_decay=knobs.weight_decay, fused=True
        )

    async def stop(self) -> None:
        self._optimizer = None

    async def update(self, batch: Batch, objective: Objective) -> dict[str, float]:
        sums = Sums()
        for _, part in self._microbatches(batch):
            self._accumulate(part, objective, sums)
            await asyncio.sleep(0)
        return self._step(sums)

    async def send(self, plan: Plan, version: int) -> Digest:
        self.channel.send(self.decoder.named_tensors(), version=version)
        return digest(self.decoder.parameters())

    async def save(self, path: Path, *, resumable: bool = True) -> None:
        write_model(path, self.decoder.config, dict(self.decoder.named_tensors()))
        if resumable:
            state = {"optimizer": self._optimizer.state_dict(), "num_updates": self._num_updates}
            torch.save(state, path / _STATE)

    async def load(self, path: Path) -> None:
        self.decoder.load(read_tensors(path), where=str(path))
        state = torch.load(path / _STATE, map_location=self.settings.device, weights_only=True)
        self._optimizer.load_state_dict(state["optimizer"])
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
            for state in self._optimizer.state.values():
                for name in state.keys() & {"exp_avg", "exp_avg_sq"}:
                    state[name] = state[name].to(device)

    def _accumulate(self, batch: Batch, objective: Objective, sums: Sums) -> None:
        """Add this micro-batch's gradient and its share of the metrics."""
        assert batch.weights is not None, "weigh comes before update"
        measured = self._measure(batch, batch.trained, entropy_gradient=objective.entropy > 0)
        tokens = _tokens(batch, measured)
        loss, metrics = evaluate(tokens, batch.weights.to(tokens.trained.device), objective)
        loss.backward()
        if measured.values is None:
            gap = (tokens.old_logprobs - tokens.sampler_logprobs).abs()
            metrics = {**metrics, "entropy": measured.entropies, "gap": gap}
        sums.add(loss, tokens.trained, metrics)

    def _step(self, sums: Sums) -> dict[str, float]:
        """Clip, refuse what is not finite, and let AdamW move the weights."""
        knobs = self.settings.optimizer
        lr = lr_at(self._num_updates, self.settings.total_steps, knobs)
        norm = torch.nn.utils.clip_grad_norm_(self.decoder.parameters(), knobs.clip_norm or math.inf)
        finite = bool(torch.isfinite(norm) & torch.isfinite(sums.loss))
        if finite:
            for group in self._optimizer.param_groups:
                group["lr"] = lr
            self._optimizer.step()
            self._num_updates += 1
        self._optimizer.zero_grad(set_to_none=True)
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
        if "gap" in rows:
            self._gap_max = torch.maximum(self._gap_max, rows["gap"].masked_fill(~trained, 0.0).amax().cpu())

    def means(self) -> dict[str, float]:
        """By metric name."""
        count = max(1.0, float(self._count))
        means = {f"loss/{name}": float(total) / count for name, total in self._totals.items()}
        gap = means.pop("loss/gap", None)
        measured = {} if gap is None else {"gap/mean": gap, "gap/max": float(self._gap_max)}
        return {**means, "loss/policy": float(self.loss), **measured}


def _tokens(batch: Batch, measured: Measured) -> Tokens:
    """With one update a batch the update's own logprobs are the proximal ones: nothing is recomputed."""
    device = measured.logprobs.device
    row = torch.repeat_interleave(torch.arange(len(batch.lengths)), torch.tensor(batch.lengths))
    given = {
        name: None if (found := getattr(batch, name)) is None else found.to(device)
        for name in ("old_logprobs", "ref_logprobs", "teacher_logprobs", "advantages", "returns")
    }
    old, advantages = given.pop("old_logprobs"), given.pop("advantages")
    return Tokens(
        logprobs=measured.logprobs,
        old_logprobs=measured.logprobs.detach() if old is None else old,
        sampler_logprobs=batch.sampler_logprobs.to(device),
        advantages=torch.zeros_like(measured.logprobs) if advantages is None else advantages,
        trained=batch.trained.to(device),
        row=row.to(device),
        trajectory=batch.trajectory[row].to(device),
        turn=batch.turn.to(device),
        values=measured.values,
        old_values=None if batch.values is None else batch.values.to(device),
        entropies=measured.entropies,
        **given,
    )
