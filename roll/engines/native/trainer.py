"""The trainer that comes with the library: one process, torch alone, any model the native decoder knows."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from roll.algorithms.objective import evaluate
from roll.algorithms.recipe import Objective
from roll.config.schema import Optimizer
from roll.data.packing import pack
from roll.engines.base import Part
from roll.engines.native import lora, mixed
from roll.engines.native.attention import Ragged, sharing
from roll.engines.native.decoder import Decoder
from roll.engines.native.likelihood import likelihood
from roll.engines.native.mixed import Reading
from roll.engines.native.packed import PACKED, Packed, there
from roll.engines.native.sampling import score
from roll.engines.native.schedule import lr_at
from roll.errors import ConfigError
from roll.types import Batch, Digest, Sampling, Tokens
from roll.weights.adapters import check_base, read_adapter, write_adapter, write_base
from roll.weights.digest import Folding
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
    reading: Reading = field(default_factory=Reading)
    """With another dtype than the weights' they are rounded where they are used, and so where they are published."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings(ScoreSettings):
    """How a native trainer trains."""

    optimizer: Optimizer
    total_steps: int
    """Optimizer steps of the whole run, for the schedule."""
    base: str | None = None
    """Where the model under adapters was read from, for whoever reads the adapters."""


class NativeScorer:
    """`Scorer` and `Resident` over one decoder: logprobs from one with a language head, values from a score."""

    def __init__(self, decoder: Decoder, settings: ScoreSettings) -> None:
        self.decoder, self.settings = decoder, settings

    async def start(self) -> None:
        self.decoder.to(self.settings.device)

    async def stop(self) -> None:
        """Nothing is held that outlives the object."""

    async def offload(self, parts: Sequence[Part]) -> None:
        self._move(parts, torch.device("cpu"))

    async def onload(self, parts: Sequence[Part]) -> None:
        self._move(parts, self.settings.device)

    def _move(self, parts: Sequence[Part], device: torch.device) -> None:
        if "weights" in parts:
            for parameter in self.decoder.parameters():
                parameter.data = parameter.data.to(device)

    async def logprobs(self, batch: Batch, *, sampling: Sampling | None = None) -> Tensor:
        if self.decoder.score is not None:
            raise ConfigError("logprobs: this model has a score instead of a language head; give another model")
        return await self._row(batch, lambda measured: measured.logprobs, sampling)

    async def values(self, batch: Batch) -> Tensor:
        if self.decoder.score is None:
            raise ConfigError("values: this model has no value head; choose a recipe that needs no critic")
        return await self._row(batch, lambda measured: measured.values)

    async def base_logprobs(self, batch: Batch) -> Tensor:
        """As if there were no adapters."""
        return await self._row(batch, lambda measured: measured.logprobs, base=True)

    async def _row(
        self,
        batch: Batch,
        chosen: Callable[[Measured], Tensor | None],
        sampling: Sampling | None = None,
        *,
        base: bool = False,
    ) -> Tensor:
        row = torch.zeros(batch.num_tokens)
        for rows, part in self._microbatches(batch):
            with torch.no_grad(), lora.without(self.decoder) if base else nullcontext():
                found = chosen(self._measure(part, torch.ones_like(part.trained), sampling=sampling))
            assert found is not None
            row[batch.places(rows)] = found.cpu()
            await asyncio.sleep(0)
        return row

    def _microbatches(self, batch: Batch) -> Iterator[tuple[list[int], Batch]]:
        shared = sharing(batch) if self._packed else None  # padded ones go by their lengths
        families = shared.leaders if shared and any(shared.lengths) else None
        for rows in pack(batch.lengths, self.settings.tokens_per_microbatch, families=families):
            yield rows, batch.select(rows)

    @property
    def _packed(self) -> bool:
        reading = self.settings.reading
        return self.decoder.device.type == "cuda" and reading.dtype in PACKED and not reading.exact

    def _measure(
        self, batch: Batch, wanted: Tensor, *, sampling: Sampling | None = None, entropy_gradient: bool = False
    ) -> Measured:
        """What the model says of the wanted tokens, 0 elsewhere, entry t about token t.

        This is where outputs are shifted, and nowhere else.
        """
        device = self.decoder.device
        ragged, body = self._laid_out(batch, device)
        ids = there(batch.ids, device)
        hidden = body(ids[ragged.kept], ragged.positions)
        here = (wanted & ~first_of_rows(batch)).nonzero().squeeze(-1)
        at = there(here, device)
        before = hidden.index_select(0, ragged.standing(at - 1))
        nothing = torch.zeros(len(ids), device=device)
        if self.decoder.score is not None:
            values = nothing.index_copy(
                0, at, (before.to(self.decoder.score.dtype) @ self.decoder.score.t()).squeeze(-1).float()
            )
            return Measured(logprobs=nothing, entropies=nothing, values=values)
        logprobs = entropies = nothing
        for kind, chosen in self._kinds(batch, here) if sampling is None else [(sampling, None)]:
            places, rows = (at, before) if chosen is None else (at[chosen], before[chosen])
            found = self._score(rows, ids[places], kind, entropy_gradient)
            logprobs, entropies = (
                row.index_copy(0, places, part) for row, part in zip((logprobs, entropies), found, strict=True)
            )
        return Measured(logprobs=logprobs, entropies=entropies, values=None)

    def _laid_out(
        self, batch: Batch, device: torch.device
    ) -> tuple[Ragged | Packed, Callable[[Tensor, Tensor], Tensor]]:
        """Where the tokens of a batch stand, and what reads ids at positions."""
        reading = self.settings.reading
        ragged = (Packed if self._packed else Ragged)(batch.lengths, device=device, shared=sharing(batch))
        if reading == Reading():
            return ragged, partial(self.decoder.hidden, attend=ragged.attend)
        return ragged, partial(mixed.hidden, self.decoder, attend=ragged.attend, reading=reading)

    def _score(self, before: Tensor, ids: Tensor, kind: Sampling, entropy_gradient: bool) -> tuple[Tensor, Tensor]:
        """Logprobs and entropies of ids after hidden states."""
        head = self.settings.reading.used(self.decoder.head)
        if before.dtype == head.dtype and head.element_size() >= 4:
            return score(before, head, ids, kind, entropy_gradient=entropy_gradient)
        if kind.top_k or kind.top_p < 1.0:
            return score(before, head.to(before.dtype), ids, kind, entropy_gradient=entropy_gradient)
        return likelihood(before, head, ids, kind.temperature or 1.0, entropy_gradient=entropy_gradient)

    def _kinds(self, batch: Batch, at: Tensor) -> list[tuple[Sampling, Tensor | None]]:
        """The distributions that tokens were drawn from, with which of `at` are theirs; None: all of them."""
        common, own = self.settings.sampling, self.settings.sampling_of
        kinds = [own.get(domain, common) for domain in batch.domains] or [common]
        if len(set(kinds)) == 1:
            return [(kinds[0], None)]
        owner = torch.repeat_interleave(batch.trajectory, torch.tensor(batch.lengths))[at].tolist()
        places = {kind: [place for place, which in enumerate(owner) if kinds[which] == kind] for kind in set(kinds)}
        return [
            (kind, torch.tensor(places[kind], dtype=torch.int64, device=self.decoder.device))
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
        knobs = self.settings.optimizer
        parameters = [parameter for parameter in self.decoder.parameters() if parameter.requires_grad]
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
        if self.decoder.lora is not None:  # what is frozen is with the generators already
            self.channel.send(lora.adapter_tensors(self.decoder), version=version)
            return lora.attested(self.decoder, self.settings.reading.dtype or torch.float32)
        with Folding() as folding:
            folding.add(tensor for _, tensor in self._served(self.decoder.named_parameters()))
            self.channel.send(self._served(self.decoder.named_tensors()), version=version)
            return folding.digest()

    def _served(self, tensors: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
        """Weights as they are used, which is how a generator needs them."""
        dtype = self.settings.reading.dtype
        for name, tensor in tensors:
            yield name, tensor if dtype is None else tensor.detach().to(dtype)

    async def save(self, path: Path, *, resumable: bool = True) -> None:
        """Of a model with adapters, what goes on is the adapters alone; the model itself is where it was read."""
        decoder, adapters = self.decoder, self.decoder.lora
        if adapters is None:
            write_model(path, decoder.config, dict(decoder.named_tensors()))
        elif resumable or adapters.export == "apart":
            write_adapter(path, adapters, lora.adapter_tensors(decoder), base=self.settings.base)
            write_base(path, lora.frozen_digest(decoder))
        else:
            pairs = dict(lora.adapter_tensors(decoder))
            write_model(path, decoder.config, dict(lora.merged(decoder.named_tensors(), pairs, adapters.scale)))
        if resumable:
            state = {"optimizer": self._optimizer.state_dict(), "num_updates": self._num_updates}
            torch.save(state, path / _STATE)

    async def load(self, path: Path) -> None:
        if self.decoder.lora is None:
            self.decoder.load(read_tensors(path), where=str(path))
        else:
            tensors = read_adapter(path, self.decoder.lora)
            check_base(path, lora.frozen_digest(self.decoder))
            lora.load_adapter(self.decoder, tensors, where=str(path))
        state = torch.load(path / _STATE, map_location=self.settings.device, weights_only=True)
        self._optimizer.load_state_dict(state["optimizer"])
        self._num_updates = state["num_updates"]

    def _move(self, parts: Sequence[Part], device: torch.device) -> None:
        super()._move(parts, device)
        if "optimizer" in parts:
            for state in self._optimizer.state.values():
                for name in state.keys() & {"exp_avg", "exp_avg_sq"}:
                    state[name] = state[name].to(device)

    def _accumulate(self, batch: Batch, objective: Objective, sums: Sums) -> None:
        """Add this micro-batch's gradient and its share of the metrics."""
        assert batch.weights is not None, "weigh comes before update"
        measured = self._measure(batch, batch.trained, entropy_gradient=objective.entropy > 0)
        tokens = _tokens(batch, measured)
        loss, metrics = evaluate(tokens, there(batch.weights, tokens.trained.device), objective)
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
        finite = bool(torch.isfinite(norm)) and bool(torch.isfinite(sums.loss))
        if finite:
            for group in self._optimizer.param_groups:
                group["lr"] = lr
            self._optimizer.step()
            self._num_updates += 1
        self._optimizer.zero_grad(set_to_none=True)
        return {**sums.means(), "loss/grad_norm": float(norm), "loss/lr": lr, "loss/refused": float(not finite)}


class Sums:
    """Numerators and denominators of a step's metrics, kept where they come from and read once at its end."""

    def __init__(self) -> None:
        self.loss = torch.zeros(())
        self._count = torch.zeros(())
        self._totals: dict[str, Tensor] = {}
        self._gap_max = torch.zeros(())

    @torch.no_grad()
    def add(self, loss: Tensor, trained: Tensor, rows: dict[str, Tensor]) -> None:
        """Rows of one number a token; only trained ones count."""
        self.loss = self.loss.to(loss.device) + loss.detach()
        self._count = self._count.to(loss.device) + trained.sum()
        for name, row in rows.items():
            total = row.detach().float().masked_fill(~trained, 0.0).sum()
            self._totals[name] = self._totals.get(name, torch.zeros((), device=total.device)) + total
        if "gap" in rows:
            largest = rows["gap"].masked_fill(~trained, 0.0).amax()
            self._gap_max = torch.maximum(self._gap_max.to(largest.device), largest)

    def means(self) -> dict[str, float]:
        """By metric name."""
        count = max(1.0, float(self._count))
        means = {f"loss/{name}": float(total) / count for name, total in self._totals.items()}
        gap = means.pop("loss/gap", None)
        unknown = gap is None or math.isnan(gap)  # of a sampler that was not asked for its logprobs
        measured = {} if unknown else {"gap/mean": gap, "gap/max": float(self._gap_max)}
        return {**means, "loss/policy": float(self.loss), **measured}


def first_of_rows(batch: Batch) -> Tensor:
    """[tokens] whether a token is the first of its sequence, which nothing scores."""
    first = torch.zeros(batch.num_tokens, dtype=torch.bool)
    first[torch.tensor(batch.lengths).cumsum(0) - torch.tensor(batch.lengths)] = True
    return first


def _tokens(batch: Batch, measured: Measured) -> Tokens:
    """With one update a batch the update's own logprobs are the proximal ones: nothing is recomputed."""
    device = measured.logprobs.device
    row = torch.repeat_interleave(torch.arange(len(batch.lengths)), torch.tensor(batch.lengths))
    given = {
        name: None if (found := getattr(batch, name)) is None else there(found, device)
        for name in ("old_logprobs", "ref_logprobs", "teacher_logprobs", "advantages", "returns")
    }
    old, advantages = given.pop("old_logprobs"), given.pop("advantages")
    return Tokens(
        logprobs=measured.logprobs,
        old_logprobs=measured.logprobs.detach() if old is None else old,
        sampler_logprobs=there(batch.sampler_logprobs, device),
        advantages=torch.zeros_like(measured.logprobs) if advantages is None else advantages,
        trained=there(batch.trained, device),
        row=there(row, device),
        trajectory=there(batch.trajectory[row], device),
        turn=there(batch.turn, device),
        values=measured.values,
        old_values=None if batch.values is None else there(batch.values, device),
        entropies=measured.entropies,
        **given,
    )
