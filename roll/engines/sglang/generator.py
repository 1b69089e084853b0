"""Generation by SGLang, whose scheduler runs in the worker's own thread; see `Engine`.

Samples depend only on a request's key, its position and the weights, up to rounding, as with the native generator: the
sampler is roll's own, and the logprobs are those of the distribution that it draws from.
"""

from __future__ import annotations

import gc
import os
import platform
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from itertools import chain, count
from pathlib import Path
from typing import Any

import torch

from roll.engines.base import ActiveRequest, Output, Request, Statistics, SteppedGenerator
from roll.engines.native.model_spec import ModelSpec, model_directory
from roll.engines.sglang.engine import Engine
from roll.errors import ConfigError, EngineFailed, RunStopped
from roll.registry import CHANNELS
from roll.types import Finish, Sampling, Spec
from roll.weights.channel import Channel
from roll.weights.digest import Digest, digest

RELEASE = (0, 5, 20)
"""The release that this backend was tested with. Its scheduler is no public interface, so others are refused."""
_SLACK = 8
"""Tokens by which SGLang's limit exceeds ours: it would cut a request that fills the context exactly."""
_ENVIRONMENT = {
    "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN": "1",  # for the slack; no position exceeds the model's
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SglangSettings:
    """Settings of an SGLang generator, named as SGLang's server arguments where one exists."""

    max_seq_len: int
    max_running_requests: int
    chunked_prefill_size: int
    progress_interval: int
    """Tokens of a request per partial output."""
    dtype: str = "float32"
    """Never SGLang's `auto`, which serves fp32 weights in 16 bits."""
    mem_fraction_static: float = 0.8
    max_total_tokens: int | None = None
    disable_radix_cache: bool = False
    disable_cuda_graph: bool = False


class SglangGenerator(SteppedGenerator):
    """`Generator`, `Probeable` and `HasStatistics` over one SGLang scheduler."""

    def __init__(self, model_spec: ModelSpec, settings: SglangSettings, channel: Channel) -> None:
        super().__init__(settings.max_seq_len)
        self.model_spec, self.settings, self.channel = model_spec, settings, channel
        self._engine: Engine | None = None
        self._running: dict[str, ActiveRequest] = {}
        """By the name that SGLang knows."""
        self._names: dict[str, str] = {}
        """That name by id."""
        self._numbers = count()

    @property
    def _busy(self) -> bool:
        return bool(self._running)

    @property
    def _started(self) -> Engine:
        assert self._engine is not None, "start it first"
        return self._engine

    async def start(self) -> None:
        check_release(_release())
        check_kernels(platform.machine(), has_kernels=find_spec("sgl_kernel") is not None)
        with model_directory(self.model_spec) as path:
            self._engine = _engine(path, self.settings, self.model_spec)

    async def stop(self) -> None:
        self._end_stepping()
        if self._engine is not None:
            self._engine.stop()
            self._engine = None
            gc.collect()  # its objects form reference cycles

    async def submit(self, requests: Sequence[Request]) -> None:
        self._check_lengths(requests)
        rows = [ActiveRequest(request=request, name=f"{next(self._numbers)}/") for request in requests]
        for number, row in enumerate(rows):
            if (refusal := self._started.add(row.name, row).to_finish) is not None:
                for before in rows[: number + 1]:
                    self._started.abort(before.name)
                raise EngineFailed(f"request {row.request.id}: SGLang refuses it ({refusal.message}); fix the request")
        self._running.update({row.name: row for row in rows})
        self._names.update({row.request.id: row.name for row in rows})
        self._changed.set()

    async def abort(self, ids: Sequence[str] | None = None) -> None:
        if ids is None:
            self._started.abort(None)
        names = list(self._running) if ids is None else [self._names[name] for name in ids if name in self._names]
        for name in names:
            if ids is not None:
                self._started.abort(name)
            self._end(self._running[name], Finish.ABORT)
        self._changed.set()

    async def receive(self, version: int) -> Digest:
        assert self._paused and not self._running, "weights change only while nothing is served"
        self._reset_prefix_cache(version)
        arriving = iter(self.channel.receive(version=version))
        if (first := next(arriving, None)) is not None:
            self._load(chain([first], arriving), version)
        with torch.no_grad():
            return digest(self._started.model.parameters())

    async def probe(self, ids: Sequence[int], num_new: int) -> Output:
        assert self._paused and not self._running, "probes run only while nothing is served"
        self._started.drain()
        sampled = self._run_alone(ids, num_new, prompt_logprobs=False)
        # Computes the prompt again: SGLang does not use its cache for prompt logprobs.
        read: list[float] = self._run_alone(ids, 1, prompt_logprobs=True).logprob.input_token_logprobs_val[1:]
        return Output.of(
            "probe",
            (*ids[1:], *sampled.output_ids),
            (*read, *sampled.logprob.output_token_logprobs_val),
            version=self._version,
            finish=Finish.LENGTH,
        )

    async def statistics(self) -> Statistics:
        return Statistics(preempted=self._started.num_preempted)

    def _advance(self) -> None:
        """Run one pass and collect its tokens."""
        for request in self._started.step(self._running):
            row = self._running.get(request.rid)
            if row is None:
                continue  # aborted before the step
            row.ids += request.output_ids[len(row.ids) :]
            row.logprobs += request.logprob.output_token_logprobs_val[len(row.logprobs) :]
            if request.finished():
                self._end(row, Finish.STOP if row.ids[-1] in row.request.stop else Finish.LENGTH)
            elif len(row.ids) - row.num_reported >= self.settings.progress_interval:
                self._report(row, None)

    def _end(self, row: ActiveRequest, finish: Finish) -> None:
        del self._running[row.name], self._names[row.request.id]
        self._report(row, finish)

    def _run_alone(self, ids: Sequence[int], num_new: int, *, prompt_logprobs: bool) -> Any:
        """SGLang's object of one greedy request, while the engine has no other."""
        greedy, never = Sampling(temperature=0), frozenset[int]()
        request = Request(id="probe", ids=tuple(ids), max_new_tokens=num_new, sampling=greedy, stop=never, key=0)
        name = f"{next(self._numbers)}/"
        row = ActiveRequest(request=request, name=name)
        served = self._started.add(name, row, prompt_logprobs=prompt_logprobs)
        while not served.finished():
            self._started.step({name: row})
        self._started.drain()
        return served

    def _load(self, tensors: Iterable[tuple[str, torch.Tensor]], version: int) -> None:
        """Copy tensors into the model, by their Hugging Face names."""
        model: Any = self._started.model
        try:
            with torch.no_grad():
                model.load_weights(tensors)
        except (RuntimeError, ValueError, KeyError, AssertionError) as error:
            raise RunStopped(
                f"version {version}: SGLang could not load it ({_reason(error)}); see the generator's log"
            ) from error

    def _reset_prefix_cache(self, version: int) -> None:
        if not self._started.reset_prefix_cache():
            raise RunStopped(
                f"version {version}: SGLang did not reset its prefix cache, so old keys would meet new weights; "
                "set actor_infer.disable_radix_cache to true"
            )


def generator(rank: int, *, model_spec: ModelSpec, settings: SglangSettings, channel: Spec) -> SglangGenerator:
    """A generator in a separate process, which receives its weights through `channel`."""
    engine = SglangGenerator(model_spec, settings, CHANNELS[channel.name](rank, **channel.kwargs))
    engine.continuous = True
    return engine


def check_release(release: str | None) -> None:
    """Raise `ConfigError` if SGLang is missing (None) or not the supported release."""
    supported = ".".join(map(str, RELEASE))
    fix = f"install sglang {supported}"
    if release is None:
        raise ConfigError(f"actor_infer: backend sglang needs a package that is not installed; {fix}")
    if release.split("+")[0] != supported:
        raise ConfigError(f"actor_infer: backend sglang does not support this release of SGLang (got {release}); {fix}")


def check_kernels(machine: str, *, has_kernels: bool) -> None:
    """Raise `ConfigError` if SGLang's compiled kernels are missing."""
    if has_kernels:
        return
    if machine in ("aarch64", "arm64"):
        raise ConfigError(
            f"actor_infer: backend sglang has no kernels for this machine ({machine}); set backend to vllm"
        )
    raise ConfigError("actor_infer: backend sglang needs the package sgl_kernel; install it, or set backend to vllm")


def _release() -> str | None:
    try:
        return version("sglang")
    except PackageNotFoundError:
        return None


def _engine(path: Path, settings: SglangSettings, model_spec: ModelSpec) -> Engine:
    """A running engine; raises `ConfigError` if SGLang does not start."""
    on_cpu = not torch.cuda.is_available()
    for name, value in {**_ENVIRONMENT, **({"SGLANG_USE_CPU_ENGINE": "1"} if on_cpu else {})}.items():
        os.environ.setdefault(name, value)
    arguments: dict[str, Any] = {
        "trust_remote_code": model_spec.model.trust_remote_code,
        "dtype": settings.dtype,
        "context_length": settings.max_seq_len + _SLACK,
        "max_running_requests": settings.max_running_requests,
        "chunked_prefill_size": settings.chunked_prefill_size,
        "mem_fraction_static": settings.mem_fraction_static,
        "max_total_tokens": _cached_tokens(settings, on_cpu=on_cpu),
        "disable_radix_cache": settings.disable_radix_cache,
        "disable_cuda_graph": settings.disable_cuda_graph or on_cpu,
        "enable_fp32_lm_head": settings.dtype != "float32",
        "log_level": "warning",
        **({"device": "cpu", "attention_backend": "torch_native"} if on_cpu else {}),
    }
    try:
        engine = Engine(path, arguments)
    except (ValueError, RuntimeError, OSError, ImportError, AssertionError) as error:
        raise ConfigError(f"actor_infer: SGLang does not start ({_reason(error)}); see its log above") from error
    fault = _fault(engine, settings)
    if fault:
        engine.stop()
        raise ConfigError(fault)
    return engine


def _fault(engine: Engine, settings: SglangSettings) -> str:
    """Why a running engine cannot serve; empty if it can."""
    if (packed := next(engine.packed(), None)) is not None:
        return f"actor_infer: SGLang packs {packed} for AMX, and new weights cannot be loaded; set backend to vllm"
    if engine.num_cached_tokens < (needed := settings.max_seq_len + _SLACK):
        return (
            f"actor_infer.max_total_tokens: the cache has {engine.num_cached_tokens} tokens and one sequence needs "
            f"{needed}; raise it, or actor_infer.mem_fraction_static"
        )
    return ""


def _cached_tokens(settings: SglangSettings, *, on_cpu: bool) -> int | None:
    """Tokens in the KV cache; without a GPU by default as many as the running requests can need."""
    if settings.max_total_tokens is None and on_cpu:
        return settings.max_running_requests * (settings.max_seq_len + _SLACK)
    return settings.max_total_tokens


def _reason(error: Exception) -> str:
    """The first line of an error."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
