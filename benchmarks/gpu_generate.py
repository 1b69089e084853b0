"""Generation alone on one GPU: tokens per second of the native generator and of vLLM, and the bound of the bytes read.

Two workloads with random weights: the shape of Qwen3-0.6B with 256 responses of 512 tokens, and a model of 1.5 billion
parameters with 512 responses of log-normal lengths (median 250, at most 512). Each engine runs in its own process,
three times after a warm-up; the best counts. `python -m benchmarks.gpu_generate vllm-fp8 small` measures vLLM with
weights in eight bits alone.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import random
import subprocess
import sys
import tempfile
import time
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import typer

from benchmarks.gpu_model import ceilings, missing, qwen3
from benchmarks.result import Result
from roll.config.schema import Model
from roll.engines.base import Generator, Request
from roll.engines.native.decoder import Decoder, Geometry, geometry
from roll.engines.native.generator import NativeGeneratorSettings
from roll.engines.native.model_spec import ModelSpec
from roll.engines.native.paged_generator import PagedGenerator
from roll.engines.vllm.generator import VllmGenerator, VllmSettings
from roll.types import Sampling
from roll.weights.channel import Channel, Mailbox, Shared
from roll.weights.huggingface import write_model
from roll.weights.quantization import send_quantised

SHARE, TOKENS_PER_S = 0.55, 60_000
"""Goals: share of the byte bound for the first workload, tokens per second for the second."""
_LARGE = {
    "hidden_size": 1536,
    "intermediate_size": 8960,
    "num_attention_heads": 12,
    "num_key_value_heads": 2,
}
REPEATS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A model, and the prompts and lengths of its responses."""

    changes: dict[str, Any]
    prompt: int
    siblings: int
    lengths: tuple[int, ...]

    @property
    def requests(self) -> list[Request]:
        rng = random.Random(1)
        prompts = [
            tuple(rng.randrange(4, 150_000) for _ in range(self.prompt))
            for _ in range(len(self.lengths) // self.siblings)
        ]
        return [
            Request(
                id=str(number),
                ids=prompts[number // self.siblings],
                max_new_tokens=length,
                sampling=Sampling(),
                stop=frozenset(),
                key=number,
            )
            for number, length in enumerate(self.lengths)
        ]


def _log_normal(count: int) -> tuple[int, ...]:
    rng = random.Random(0)
    return tuple(max(16, min(512, round(rng.lognormvariate(5.5215, 0.5)))) for _ in range(count))


WORKLOADS = {
    "small": Workload(changes={}, prompt=128, siblings=8, lengths=(512,) * 256),
    "large": Workload(changes=_LARGE, prompt=128, siblings=8, lengths=_log_normal(512)),
}


def run() -> Result:
    """The worse of both goals: share of the byte bound over 0.55, and tokens per second over 60,000."""
    if reason := missing(vllm=False):
        return Result(name="gpu_generate", unit="of the goal", higher_is_better=True, skipped=reason)
    peak = ceilings()
    details: dict[str, Any] = {"bytes_per_s": peak.bytes_per_s}
    for name, workload in WORKLOADS.items():
        bound = len_tokens(workload) / (num_bytes(workload, geometry(qwen3(**workload.changes))) / peak.bytes_per_s)
        details[name] = {"bound": round(bound)}
        for engine in ("native", *(["vllm"] if importlib.util.find_spec("vllm") else [])):
            rate = _measure_apart(engine, name)
            details[name][engine] = round(rate)
            typer.echo(f"{name}: {engine} {rate:,.0f} tokens/s, {rate / bound:.2f} of the byte bound")
    ours = min(
        details["small"]["native"] / details["small"]["bound"] / SHARE, details["large"]["native"] / TOKENS_PER_S
    )
    return Result(name="gpu_generate", unit="of the goal", higher_is_better=True, ours=ours, bound=1.0, details=details)


def len_tokens(workload: Workload) -> int:
    """Tokens of all responses."""
    return sum(workload.lengths)


def num_bytes(workload: Workload, shape: Geometry) -> float:
    """Bytes that decoding must read: all weights for every step, and the keys and values of each running sequence."""
    heads, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    weights = shape.layers * (shape.hidden * (2 * heads + 2 * kv) + 3 * shape.hidden * shape.mlp)
    weights += shape.vocab * shape.hidden
    token = 2 * kv * shape.layers
    seen = sum(length * workload.prompt + length * (length - 1) // 2 for length in workload.lengths)
    return 2.0 * (max(workload.lengths) * weights + token * seen)


def _measure_apart(engine: str, workload: str) -> float:
    command = [sys.executable, "-m", "benchmarks.gpu_generate", engine, workload]
    process = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return float(json.loads(process.stdout.splitlines()[-1])["tokens_per_s"])


async def measure(engine: Generator, workload: Workload) -> list[float]:
    """Tokens per second of each repetition after the first."""
    await engine.start()
    if isinstance(engine, VllmGenerator) and engine.settings.quantization is not None:
        await engine.pause()
        await engine.receive(0)
    await engine.resume(0)
    rates: list[float] = []
    for _ in range(REPEATS + 1):
        began = time.perf_counter()
        await engine.submit(workload.requests)
        ended, tokens = 0, 0
        while ended < len(workload.lengths):
            for output in await engine.events(1.0):
                ended += output.finish is not None
                tokens += len(output.ids)
        assert tokens == len_tokens(workload), "no response can end early"
        rates.append(tokens / (time.perf_counter() - began))
        print(f"{rates[-1]:,.0f} tokens/s", file=sys.stderr)  # noqa: T201 - progress
    await engine.stop()
    return rates[1:]


def build(engine: str, workload: Workload, folder: Path) -> Any:
    """The engine `native`, `vllm`, `vllm-fp8` or `vllm-int8` with random weights."""
    config = qwen3(**workload.changes)
    most = workload.prompt + max(workload.lengths)
    numbers: dict[str, Any] = {
        "max_seq_len": most,
        "max_num_seqs": len(workload.lengths),
        "max_num_batched_tokens": 16_384,
    }
    with torch.device("cuda"):
        torch.manual_seed(0)
        decoder = Decoder(config)
        for parameter in decoder.parameters():
            if parameter.ndim == 2:
                torch.nn.init.normal_(parameter, 0, 0.02)
    if engine == "native":
        settings = NativeGeneratorSettings(
            **numbers, progress_interval=64, kv_cache_gib=None, device=torch.device("cuda"), dtype=torch.bfloat16
        )
        return PagedGenerator(decoder, settings, Shared())
    tensors = {name: each.bfloat16().cpu() for name, each in decoder.named_tensors()}
    write_model(folder, config, tensors)
    del decoder
    torch.cuda.empty_cache()
    backend, _, quantization = engine.partition("-")
    if backend != "vllm" or quantization not in ("", "fp8", "int8"):
        raise SystemExit(f"engine: unknown (got {engine!r}); choose native, vllm, vllm-fp8 or vllm-int8")
    numbers |= {
        "progress_interval": 64,
        "stream_interval": 16,
        "kv_cache_gib": 30,
        "quantization": quantization or None,
    }
    settings = VllmSettings(**numbers, dtype="bfloat16", per_request_seed=False)
    channel: Channel = Mailbox() if quantization else Shared()
    if settings.quantization is not None:
        send_quantised(channel, tensors.items(), settings.quantization, version=0)
    return VllmGenerator(ModelSpec(model=Model(path=str(folder))), settings, channel)


def main(engine: str, name: str) -> None:
    """Measure one engine, and print its number as the last line."""
    with tempfile.TemporaryDirectory() as folder, redirect_stdout(sys.stderr):
        workload = WORKLOADS[name]
        rates = asyncio.run(measure(build(engine, workload, Path(folder)), workload))
        memory = torch.cuda.max_memory_allocated() / 2**30
    sys.stdout.write(json.dumps({"tokens_per_s": max(rates), "peak_gib": memory}) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
