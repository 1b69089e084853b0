"""The built-in trainer: one process, torch only, over the native decoder or a model of transformers."""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from roll.algorithms.objective import evaluate
from roll.algorithms.recipe import Objective
from roll.config.quantization import Quantization
from roll.config.router_losses import RouterLosses
from roll.config.schema import Optimizer
from roll.data.collate import pack
from roll.engines.base import Part
from roll.engines.hf.decoder import HuggingFaceDecoder
from roll.engines.hf.experts import ExpertLoad, load_metrics
from roll.engines.hf.router_losses import HuggingFaceRouterLosses
from roll.engines.native import adamw_state, lora, mixed
from roll.engines.native.attention import Ragged, sharing
from roll.engines.native.custom_optimizer import (
    blame_optimizer,
    build_custom,
    read_custom_state,
    write_custom_state,
)
from roll.engines.native.decoder import Decoder
from roll.engines.native.likelihood import likelihood
from roll.engines.native.mixed import Precision
from roll.engines.native.packed import PACKED, PackedAttention, to_device
from roll.engines.native.sampling import score
from roll.errors import ConfigError
from roll.types import Batch, Sampling, Tokens
from roll.weights.adapters import check_base, read_adapter, write_adapter
from roll.weights.channel import Channel
from roll.weights.digest import Digest, StreamingDigest, published_tensors
from roll.weights.huggingface import read_tensors, write_model
from roll.weights.optimizer_state import OptimizerState, write_optimizer_state
from roll.weights.quantization import send_quantised


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardOutput:
    """Outputs of a model: rows with one value per token."""

    logprobs: Tensor
    entropies: Tensor
    values: Tensor | None
    """From a critic, whose logprobs and entropies are 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogprobSettings:
    """Settings of a native model's forward pass."""

    tokens_per_microbatch: int
    sampling: Sampling
    """The distribution to compute logprobs under, equal to the generator's."""
    sampling_of: Mapping[str, Sampling] = field(default_factory=dict[str, Sampling])
    """Overrides by domain."""
    device: torch.device
    precision: Precision = field(default_factory=Precision)
    """Weights are rounded to its dtype where they are used, and therefore also where they are published."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeTrainerSettings(LogprobSettings):
    """Settings of a native trainer."""

    optimizer: Optimizer
    total_steps: int
    """Optimizer steps of the whole run, for the schedule."""
    base: str | None = None
    """Directory of the model under adapters, written into saved adapters."""
    router_losses: RouterLosses = field(default_factory=RouterLosses)
    """Of a model with experts."""
    quantization: Quantization | None = None
    """How published weights are quantised; None: they are not."""


class NativeLogprobModel:
    """`LogprobModel` and `Offloadable` over one decoder: logprobs from a language head, values from a score head."""

    router_losses: Any = None
    """Of a trainer of a model with experts; None if it has none."""

    def __init__(self, decoder: Decoder | HuggingFaceDecoder, settings: LogprobSettings) -> None:
        self.decoder, self.settings = decoder, settings

    async def start(self) -> None:
        self.decoder.to(self.settings.device)

    async def stop(self) -> None:
        """Nothing to release."""

    async def offload(self, parts: Sequence[Part]) -> None:
        self._move(parts, torch.device("cpu"))

    async def onload(self, parts: Sequence[Part]) -> None:
        self._move(parts, self.settings.device)

    def _move(self, parts: Sequence[Part], device: torch.device) -> None:
        if "weights" in parts:
            self._move_weights(device)

    def _move_weights(self, device: torch.device) -> None:
        for parameter in self.decoder.parameters():
            parameter.data = parameter.data.to(device)

    async def logprobs(self, batch: Batch, *, sampling: Sampling | None = None) -> Tensor:
        if self._scored:
            raise ConfigError("logprobs: this model has a score head and no language head; use another model")
        return await self._row(batch, lambda output: output.logprobs, sampling)

    async def logprobs_and_entropies(self, batch: Batch) -> Tensor:
        """Both rows, from one pass."""
        return await self._row(batch, lambda output: torch.stack([output.logprobs, output.entropies]), num_rows=2)

    async def values(self, batch: Batch) -> Tensor:
        if not self._scored:
            raise ConfigError("values: this model has no value head; choose a recipe that needs no critic")
        return await self._row(batch, lambda output: output.values)

    @property
    def _scored(self) -> bool:
        """Whether it has a score head."""
        return self.decoder.score is not None

    async def base_logprobs(self, batch: Batch) -> Tensor:
        """Logprobs with adapters disabled."""
        return await self._row(batch, lambda output: output.logprobs, base=True)

    async def _row(
        self,
        batch: Batch,
        select: Callable[[ForwardOutput], Tensor | None],
        sampling: Sampling | None = None,
        *,
        base: bool = False,
        num_rows: int | None = None,
    ) -> Tensor:
        """One value per token; `num_rows` of them where it is given."""
        shape = (batch.num_tokens,) if num_rows is None else (num_rows, batch.num_tokens)
        row = torch.zeros(shape, device=self.decoder.device)

        def read(rows: Sequence[int], output: ForwardOutput) -> None:
            values = select(output)
            assert values is not None
            if rows:  # an idle micro-batch of a rank has none
                row[..., to_device(torch.from_numpy(batch.positions(rows)), row.device)] = values

        await self._each_output(batch, read, sampling, base=base)
        return self._whole_row(row).cpu()

    async def _each_output(
        self,
        batch: Batch,
        read: Callable[[Sequence[int], ForwardOutput], None],
        sampling: Sampling | None,
        *,
        base: bool,
    ) -> None:
        """Call `read` with the rows and the output of each micro-batch."""
        for rows, part in self._microbatches(batch):
            with torch.no_grad(), lora.without_adapters(self.decoder) if base else nullcontext():
                read(rows, self._forward(part, torch.ones_like(part.trained), sampling=sampling))
            await asyncio.sleep(0)

    def _whole_row(self, row: Tensor) -> Tensor:
        """The row with the values of all ranks."""
        return row

    def _microbatches(self, batch: Batch) -> Iterator[tuple[list[int], Batch]]:
        shared = sharing(batch) if self._packed else None  # padded batches are grouped by length instead
        families = shared.leaders if shared and any(shared.lengths) else None
        for rows in pack(batch.lengths, self.settings.tokens_per_microbatch, families=families):
            yield rows, batch.select(rows)

    @property
    def _packed(self) -> bool:
        precision = self.settings.precision
        return self.decoder.device.type == "cuda" and precision.dtype in PACKED and not precision.exact

    def _forward(
        self, batch: Batch, needed: Tensor, *, sampling: Sampling | None = None, entropy_gradient: bool = False
    ) -> ForwardOutput:
        """Outputs at the needed tokens, 0 elsewhere; entry t belongs to token t."""
        device, precision = self.decoder.device, self.settings.precision
        if sampling is not None:  # compared with a generator's logprobs
            precision = replace(precision, fp8=None)
        ids, on_host, before = self._states(batch, needed, precision)
        at = to_device(on_host, device)
        zeros = torch.zeros(len(ids), device=device)
        if self.decoder.score is not None:
            values = zeros.index_copy(
                0, at, (before.to(self.decoder.score.dtype) @ self.decoder.score.t()).squeeze(-1).float()
            )
            return ForwardOutput(logprobs=zeros, entropies=zeros, values=values)
        logprobs = entropies = zeros
        for kind, chosen in self._samplings(batch, on_host) if sampling is None else [(sampling, None)]:
            positions, rows = (at, before) if chosen is None else (at[chosen], before[chosen])
            scores = self._score(rows, ids[positions], kind, entropy_gradient)
            logprobs, entropies = (
                row.index_copy(0, positions, part) for row, part in zip((logprobs, entropies), scores, strict=True)
            )
        return ForwardOutput(logprobs=logprobs, entropies=entropies, values=None)

    def _states(self, batch: Batch, needed: Tensor, precision: Precision) -> tuple[Tensor, Tensor, Tensor]:
        """All ids, the positions of the needed tokens on the host, and the hidden state before each of these.

        This is the only place where outputs are shifted by one token.
        """
        device = self.decoder.device
        layout, body = self._layout(batch, device, precision)
        ids = to_device(batch.ids, device)
        hidden = body(ids[layout.flat_tokens], layout.positions)
        at = (needed & ~first_tokens(batch)).nonzero().squeeze(-1)
        return ids, at, hidden.index_select(0, layout.flat_index(to_device(at, device) - 1))

    def _layout(
        self, batch: Batch, device: torch.device, precision: Precision
    ) -> tuple[Ragged | PackedAttention, Callable[[Tensor, Tensor], Tensor]]:
        """The layout of a batch's tokens, and a function from ids and positions to hidden states."""
        layout = (PackedAttention if self._packed else Ragged)(batch.lengths, device=device, shared=sharing(batch))
        if self.router_losses is not None:
            self.router_losses.enter(batch, layout)
        if isinstance(self.decoder, HuggingFaceDecoder):
            replayed = {} if self.decoder.score is not None else replay_arguments(batch, layout)
            return layout, partial(self.decoder.hidden, attend=layout.attend, precision=precision, **replayed)
        if precision == Precision():
            return layout, partial(self.decoder.hidden, attend=layout.attend)
        return layout, partial(mixed.hidden, self.decoder, attend=layout.attend, precision=precision)

    def _score(self, before: Tensor, ids: Tensor, kind: Sampling, entropy_gradient: bool) -> tuple[Tensor, Tensor]:
        """Logprobs and entropies of ids, each under the hidden state before it."""
        head, cap = self.settings.precision.round_weight(self.decoder.head), self.decoder.logit_cap
        if before.dtype == head.dtype and head.element_size() >= 4:
            return score(before, head, ids, kind, entropy_gradient=entropy_gradient, cap=cap)
        if kind.top_k or kind.top_p < 1.0 or cap is not None:
            return score(before, head.to(before.dtype), ids, kind, entropy_gradient=entropy_gradient, cap=cap)
        return likelihood(before, head, ids, kind.temperature or 1.0, entropy_gradient=entropy_gradient)

    def _samplings(self, batch: Batch, at: Tensor) -> list[tuple[Sampling, Tensor | None]]:
        """The distributions that tokens were sampled from, each with indices into `at`; None means all of them."""
        common, overrides = self.settings.sampling, self.settings.sampling_of
        kinds = [overrides.get(domain, common) for domain in batch.domains] or [common]
        if len(set(kinds)) == 1:
            return [(kinds[0], None)]
        owners = torch.repeat_interleave(batch.trajectory, torch.tensor(batch.lengths))[at].tolist()
        indices = {kind: [index for index, owner in enumerate(owners) if kinds[owner] == kind] for kind in set(kinds)}
        return [
            (kind, torch.tensor(indices[kind], dtype=torch.int64, device=self.decoder.device))
            for kind in sorted(indices, key=kinds.index)
            if indices[kind]
        ]


class NativeTrainer(NativeLogprobModel):
    """`Trainer` and `Offloadable` over one decoder."""

    settings: NativeTrainerSettings

    def __init__(
        self, decoder: Decoder | HuggingFaceDecoder, settings: NativeTrainerSettings, channel: Channel
    ) -> None:
        super().__init__(decoder, settings)
        self.channel = channel
        self._num_updates = 0
        self._optimizer: Any = None
        if settings.router_losses.enabled:
            self.router_losses = HuggingFaceRouterLosses(settings.router_losses, decoder)

    async def start(self) -> None:
        await super().start()
        parameters = [parameter for parameter in self.decoder.parameters() if parameter.requires_grad]
        self._optimizer = build_optimizer(parameters, self.settings.optimizer)

    async def stop(self) -> None:
        self._optimizer = None

    async def update(self, batch: Batch, objective: Objective) -> dict[str, float]:
        return await self._update(batch, lambda rows, part, sums: self._accumulate(part, objective, sums))

    async def _update(
        self, batch: Batch, accumulate: Callable[[Sequence[int], Batch, MetricSums], None]
    ) -> dict[str, float]:
        """One optimizer step; `accumulate` adds the gradient and the metrics of a micro-batch, given its rows."""
        sums = MetricSums()
        await self._prepare_router_losses(batch)
        for rows, part in self._microbatches(batch):
            if self.router_losses is not None:
                self.router_losses.idle = not rows
            accumulate(rows, part, sums)
            await asyncio.sleep(0)
        if self.router_losses is not None:
            self.router_losses.end()
        return self._step(sums)

    async def _prepare_router_losses(self, batch: Batch) -> None:
        """Count the experts of the whole batch, which the load-balancing loss needs."""
        losses: HuggingFaceRouterLosses | None = self.router_losses
        if losses is None:
            return
        losses.begin(batch)
        if losses.statistics.counting:
            for rows, part in self._microbatches(batch):
                losses.idle = not rows
                with torch.no_grad():
                    self._forward(part, torch.zeros_like(part.trained))
                await asyncio.sleep(0)
            losses.statistics.finish(self.decoder.device, self._whole_totals)

    async def send(self, version: int) -> Digest:
        if self.decoder.lora is not None:  # the generators already have the frozen weights
            self.channel.send(self.decoder.adapter_tensors(), version=version)
            return lora.digest_served(self.decoder, self.settings.precision.dtype or torch.float32)
        if (kind := self.settings.quantization) is not None:
            return send_quantised(self.channel, self._as_served(self.decoder.named_tensors()), kind, version=version)
        with StreamingDigest(self.decoder.device) as streaming:
            streaming.add(tensor for _, tensor in self._as_served(published_tensors(self.decoder)))
            self.channel.send(self._as_served(self.decoder.named_tensors()), version=version)
            return streaming.digest()

    def _as_served(self, tensors: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
        """Weights rounded as the forward pass uses them, which is how a generator needs them; buffers never are."""
        dtype, buffers = self.settings.precision.dtype, {id(buffer) for buffer in self.decoder.buffers()}
        for name, tensor in tensors:
            yield name, tensor if dtype is None or id(tensor) in buffers else tensor.detach().to(dtype)

    async def save(self, path: Path, *, resumable: bool = True) -> None:
        """For a model with adapters, a resumable save holds the adapters only; the base model is read again."""
        decoder, adapters = self.decoder, self.decoder.lora
        if adapters is None:
            write_model(path, decoder.config, dict(decoder.named_tensors()))
        elif resumable or adapters.export == "adapter":
            tensors, frozen = decoder.adapter_tensors(), lora.frozen_digest(decoder)
            write_adapter(path, adapters, tensors, base=self.settings.base, frozen=frozen)
        else:
            pairs = dict(decoder.adapter_tensors())
            write_model(path, decoder.config, dict(lora.merge(decoder.named_tensors(), pairs, adapters.scale)))
        if resumable:
            self._save_optimizer(path)

    def _save_optimizer(self, path: Path) -> None:
        config = self.settings.optimizer
        if config.custom is not None:
            write_custom_state(path, self._optimizer, self._num_updates)
            return
        entries = adamw_state.state_entries(self._optimizer, self._trained_tensors()) if config.kind == "adamw" else ()
        write_optimizer_state(path, entries, optimizer=config.kind, num_updates=self._num_updates)

    def _trained_tensors(self) -> Iterator[tuple[str, Tensor]]:
        return self.decoder.named_tensors() if self.decoder.lora is None else self.decoder.adapter_tensors()

    async def load(self, path: Path) -> None:
        config = self.settings.optimizer
        saved = None if config.custom is not None else OptimizerState(path, config.kind)
        if self.decoder.lora is None:
            self.decoder.load(read_tensors(path), where=str(path))
        else:
            tensors = read_adapter(path, self.decoder.lora)
            check_base(path, lora.frozen_digest(self.decoder))
            lora.load_adapter(self.decoder, tensors, where=str(path))
        if saved is None:
            self._num_updates = read_custom_state(path, self._optimizer, self.settings.device)
            return
        if config.kind == "adamw":
            adamw_state.read_state(self._optimizer, self._trained_tensors(), saved)
        self._num_updates = saved.num_updates

    def _move(self, parts: Sequence[Part], device: torch.device) -> None:
        super()._move(parts, device)
        if "optimizer" in parts:
            for state in self._optimizer.state.values():
                for name, value in state.items():
                    if isinstance(value, Tensor) and value.dim():  # a counter stays where the optimizer put it
                        state[name] = value.to(device)

    def _accumulate(self, batch: Batch, objective: Objective, sums: MetricSums) -> None:
        """Add this micro-batch's gradient and its part of the metrics."""
        load = self._expert_load if bool(batch.trained.any()) else None  # an idle micro-batch of a rank has none
        with nullcontext() if load is None else load.counting():
            output = self._forward(batch, batch.trained, entropy_gradient=objective.entropy > 0)
        self._backward(self._loss(batch, output, objective, sums))

    def _loss(self, batch: Batch, output: ForwardOutput, objective: Objective, sums: MetricSums) -> Tensor:
        """The loss of a micro-batch, whose metrics are added to `sums`."""
        assert batch.weights is not None, "call with_loss_weights before update"
        tokens = tokens_of(batch, output)
        loss, metrics = evaluate(tokens, to_device(batch.weights, tokens.trained.device), objective)
        if output.values is None:
            mismatch = (tokens.old_logprobs - tokens.sampler_logprobs).abs()
            metrics = {**metrics, "entropy": output.entropies, "mismatch": mismatch}
        sums.add(loss, tokens.trained, metrics)
        return loss

    def _backward(self, loss: Tensor) -> None:
        loss.backward()

    def _step(self, sums: MetricSums) -> dict[str, float]:
        """Clip the gradient and apply the optimizer step, unless loss or gradient is not finite."""
        config = self.settings.optimizer
        lr = lr_at(self._num_updates, self.settings.total_steps, config)
        by_layer = self._layer_norms() if config.layer_grad_norms else {}
        norm, finite = self._apply_gradient(lr, sums.loss)
        self._num_updates += finite
        step = {"loss/grad_norm": float(norm), "loss/lr": lr, "loss/refused": float(not finite)}
        return {**sums.means(), **self._expert_metrics(), **by_layer, **step}

    def _apply_gradient(self, lr: float, loss: Tensor) -> tuple[Tensor, bool]:
        """Apply the gradient if it and the loss are finite; returns its norm before clipping, and whether it was."""
        config = self.settings.optimizer
        norm = self._clip(config.max_grad_norm)
        finite = self._all_finite(norm, loss)
        if finite:
            for group in self._optimizer.param_groups:
                group["lr"] = lr
            with blame_optimizer(config):
                self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        return norm, finite

    @property
    def _expert_load(self) -> ExpertLoad | None:
        return self.decoder.expert_load if isinstance(self.decoder, HuggingFaceDecoder) else None

    def _expert_metrics(self) -> dict[str, float]:
        load = self._expert_load
        if load is None or (totals := load.totals()) is None:
            return {}
        return load_metrics(self._whole_totals(totals), self._whole_totals(load.take_replayed().to(totals.device)))

    def _whole_totals(self, totals: Tensor) -> Tensor:
        """The sums over all ranks."""
        return totals

    def _layer_norms(self) -> dict[str, float]:
        """The norm of the gradient of each layer, and of each group of parameters outside of the layers."""
        layers: dict[str, list[Tensor]] = {}
        for name, parameter in self.decoder.named_parameters():
            if parameter.grad is not None:
                layers.setdefault(layer_of(name), []).append(parameter)
        norms: list[float] = torch.stack([self._norm(parameters) for parameters in layers.values()]).tolist()
        return {f"loss/grad_norm/{layer}": norm for layer, norm in zip(layers, norms, strict=True)}

    def _norm(self, parameters: Iterable[Tensor]) -> Tensor:
        """The norm of the gradient of these parameters."""
        return torch.nn.utils.get_total_norm([parameter.grad for parameter in parameters if parameter.grad is not None])

    def _clip(self, most: float | None) -> Tensor:
        """The norm of the gradient, which is then scaled to at most `most`."""
        return torch.nn.utils.clip_grad_norm_(self.decoder.parameters(), most or math.inf)

    def _all_finite(self, *values: Tensor) -> bool:
        return all(bool(torch.isfinite(value)) for value in values)


class MetricSums:
    """Numerators and denominators of a step's metrics, accumulated on the device and read once at the end."""

    def __init__(self) -> None:
        self.loss = torch.zeros(())
        self._count = torch.zeros(())
        self._totals: dict[str, Tensor] = {}
        self._mismatch_max = torch.zeros(())

    @torch.no_grad()
    def add(self, loss: Tensor, trained: Tensor, rows: dict[str, Tensor]) -> None:
        """Add rows with one value per token; only trained tokens count."""
        self.loss = self.loss.to(loss.device) + loss.detach()
        self._count = self._count.to(loss.device) + trained.sum()
        for name, row in rows.items():
            total = row.detach().float().masked_fill(~trained, 0.0).sum()
            self._totals[name] = self._totals.get(name, torch.zeros((), device=total.device)) + total
        if "mismatch" in rows:
            largest = rows["mismatch"].masked_fill(~trained, 0.0).amax()
            self._mismatch_max = torch.maximum(self._mismatch_max.to(largest.device), largest)

    def on_host(self) -> MetricSums:
        """These sums as tensors on the host, which can be sent to other processes."""
        sums = MetricSums()
        sums.loss, sums._count, sums._mismatch_max = self.loss.cpu(), self._count.cpu(), self._mismatch_max.cpu()
        sums._totals = {name: total.cpu() for name, total in self._totals.items()}
        return sums

    @classmethod
    def combine(cls, parts: Sequence[MetricSums]) -> MetricSums:
        """The sums of disjoint sets of tokens, on the host."""
        sums = cls()
        for part in parts:
            sums.loss, sums._count = sums.loss + part.loss, sums._count + part._count
            sums._mismatch_max = torch.maximum(sums._mismatch_max, part._mismatch_max)
            for name, total in part._totals.items():
                sums._totals[name] = sums._totals.get(name, torch.zeros(())) + total
        return sums

    def means(self) -> dict[str, float]:
        """Means by metric name."""
        count = max(1.0, float(self._count))
        means = {f"loss/{name}": float(total) / count for name, total in self._totals.items()}
        mismatch = means.pop("loss/mismatch", None)
        unknown = mismatch is None or math.isnan(mismatch)  # NaN if the sampler returned no logprobs
        sampler = {"sampler_mismatch/mean": mismatch, "sampler_mismatch/max": float(self._mismatch_max)}
        return {**means, "loss/policy": float(self.loss), **({} if unknown else sampler)}


def build_optimizer(parameters: Any, config: Optimizer) -> Any:
    """The optimizer of parameters, or of groups of them."""
    if config.custom is not None:
        return build_custom(parameters, config.custom)
    if config.kind == "sgd":
        return torch.optim.SGD(parameters, lr=config.lr, weight_decay=config.weight_decay)
    return torch.optim.AdamW(
        parameters, lr=config.lr, betas=config.betas, eps=config.eps, weight_decay=config.weight_decay, fused=True
    )


def layer_of(name: str) -> str:
    """The layer of a parameter by its name, equal in all trainers: `layers.3`, `embed`, `norm`, `head` or `score`."""
    layer = re.search(r"layers\.\d+|embed|norm|head|score", name)
    return name if layer is None else layer[0]


def lr_at(step: int, total: int, optimizer: Optimizer) -> float:
    """The learning rate of optimizer step `step`, counted from 0, out of `total`."""
    if step < optimizer.warmup_steps:
        return optimizer.lr * (step + 1) / (optimizer.warmup_steps + 1)
    if optimizer.schedule == "constant":
        return optimizer.lr
    remaining = max(0.0, (total - step) / max(1, total - optimizer.warmup_steps))
    shape = remaining if optimizer.schedule == "linear" else (1 - math.cos(math.pi * remaining)) / 2
    return optimizer.lr * (optimizer.final_lr_ratio + (1 - optimizer.final_lr_ratio) * shape)


def first_tokens(batch: Batch) -> Tensor:
    """[tokens] bool: the first token of each sequence, which nothing scores."""
    first = torch.zeros(batch.num_tokens, dtype=torch.bool)
    first[torch.tensor(batch.lengths).cumsum(0) - torch.tensor(batch.lengths)] = True
    return first


def replay_arguments(batch: Batch, layout: Ragged | PackedAttention) -> dict[str, Tensor]:
    """The experts of each flat token, as an argument of a decoder: those of the pass before the next token."""
    if batch.experts is None:
        return {}
    ends = torch.tensor(batch.lengths).cumsum(0)
    experts = batch.experts.roll(-1, 0)
    experts[ends - 1] = -1
    return {"experts": to_device(experts, layout.positions.device)[layout.flat_tokens]}


def tokens_of(batch: Batch, output: ForwardOutput) -> Tokens:
    """Inputs of the loss. With one update per batch, the update's own logprobs are the old ones."""
    device = output.logprobs.device
    row = torch.repeat_interleave(torch.arange(len(batch.lengths)), torch.tensor(batch.lengths))
    optional = {
        name: None if (values := getattr(batch, name)) is None else to_device(values, device)
        for name in ("old_logprobs", "ref_logprobs", "teacher_logprobs", "advantages", "returns")
    }
    old, advantages = optional.pop("old_logprobs"), optional.pop("advantages")
    return Tokens(
        logprobs=output.logprobs,
        old_logprobs=output.logprobs.detach() if old is None else old,
        sampler_logprobs=to_device(batch.sampler_logprobs, device),
        advantages=torch.zeros_like(output.logprobs) if advantages is None else advantages,
        trained=to_device(batch.trained, device),
        row=to_device(row, device),
        trajectory=to_device(batch.trajectory[row], device),
        turn=to_device(batch.turn, device),
        values=output.values,
        old_values=None if batch.values is None else to_device(batch.values, device),
        entropies=output.entropies,
        **optional,
    )
