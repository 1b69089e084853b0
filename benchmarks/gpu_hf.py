"""The update of a model of `transformers` (`engine: hf`) against the native decoder, on one GPU.

Both have the shape of Qwen3-0.6B with random weights and train 32 groups of 8 sequences in bf16: 128 tokens of a shared
prompt and 512 of a response.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from statistics import median
from typing import Any

import torch

from benchmarks.result import Result
from roll.algorithms.recipe import Objective
from roll.config.schema import Optimizer
from roll.data.collate import supervised
from roll.engines.hf.decoder import HuggingFaceDecoder, check_packing, empty_model
from roll.engines.native.decoder import Decoder
from roll.engines.native.mixed import Precision
from roll.engines.native.trainer import NativeTrainer, NativeTrainerSettings
from roll.types import Sampling, Spec
from roll.weights.channel import Shared

GROUPS, SIBLINGS, PROMPT, RESPONSE = 32, 8, 128, 512
SHAPE: dict[str, Any] = {
    "vocab_size": 151_936,
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": True,
}
REPEATS = 5
_CLIPPED = Objective(loss=Spec("clipped"))


def run() -> Result:
    """Seconds per update of `hf`, and of the native decoder as the peer."""
    if not torch.cuda.is_available():
        return Result(name="gpu_hf", unit="s per update", higher_is_better=False, skipped="no GPU")
    seconds = asyncio.run(_measure())
    ours, peer = (median(seconds[name]) for name in ("hf", "native"))
    return Result(
        name="gpu_hf", unit="s per update", higher_is_better=False, ours=ours, peer=peer, details={"seconds": seconds}
    )


async def _measure() -> dict[str, list[float]]:
    from transformers import AutoConfig

    config = AutoConfig.for_model("qwen3", **SHAPE)
    native = Decoder(config)
    native.initialise(0)
    other = HuggingFaceDecoder(empty_model(config))
    other.load(native.named_tensors(), where="native")
    check_packing(other)
    batch = _batch()
    trainers = {"native": _trainer(native), "hf": _trainer(other)}
    for trainer in trainers.values():
        await trainer.start()
        await trainer.update(batch, _CLIPPED)  # compiles
        await trainer.update(batch, _CLIPPED)
    seconds: dict[str, list[float]] = {name: [] for name in trainers}
    for _ in range(REPEATS):
        for name, trainer in trainers.items():
            torch.cuda.synchronize()
            start = time.perf_counter()
            await trainer.update(batch, _CLIPPED)
            torch.cuda.synchronize()
            seconds[name].append(time.perf_counter() - start)
    return seconds


def _trainer(decoder: Any) -> NativeTrainer:
    settings = NativeTrainerSettings(
        optimizer=Optimizer(lr=1e-6),
        total_steps=100,
        tokens_per_microbatch=20_480,
        sampling=Sampling(),
        device=torch.device("cuda"),
        precision=Precision(dtype=torch.bfloat16),
    )
    return NativeTrainer(decoder, settings, Shared())


def _batch() -> Any:
    noise = torch.Generator().manual_seed(0)

    def ids(count: int) -> list[int]:
        return torch.randint(0, 150_000, (count,), generator=noise).tolist()

    rows = [(prompt, ids(RESPONSE)) for prompt in (ids(PROMPT) for _ in range(GROUPS)) for _ in range(SIBLINGS)]
    batch = supervised(rows)
    return replace(batch, advantages=torch.randn(batch.num_tokens, generator=noise) * batch.trained)
