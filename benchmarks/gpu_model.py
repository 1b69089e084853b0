"""Shared by the GPU benchmarks: a model of the shape of Qwen3-0.6B, and the measured peak rates of the device."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from roll.engines.native.decoder import Decoder
from roll.weights.huggingface import write_model

VOCAB = 151_936
_SPECIAL = ("<pad>", "<eos>", "<bos>", "<unk>")
_FIRST = 0x100
_SURROGATES = range(0xD800, 0xE000)


def missing(*, vllm: bool = True) -> str:
    """The reason why these benchmarks cannot run here; empty if they can. `vllm`: whether they need vLLM."""
    if not torch.cuda.is_available():
        return "no GPU is visible"
    return "vllm is not installed" if vllm and not importlib.util.find_spec("vllm") else ""


def alphabet() -> list[str]:
    """Distinct characters that fill the vocabulary together with the special tokens."""
    points = (point for point in range(_FIRST, 0x110000) if point not in _SURROGATES)
    return [chr(point) for point, _ in zip(points, range(VOCAB - len(_SPECIAL)), strict=False)]


def write_qwen3(directory: Path) -> None:
    """Write a model of the shape of Qwen3-0.6B with random weights, and a tokenizer with one token per character."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    decoder = Decoder(qwen3())
    decoder.initialise(0)
    write_model(directory, decoder.config, {name: each.bfloat16() for name, each in decoder.named_tensors()})
    vocabulary = {token: index for index, token in enumerate((*_SPECIAL, *alphabet()))}
    tokenizer: Any = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.decoder = decoders.Fuse()
    names = {f"{token.strip('<>')}_token": token for token in _SPECIAL}
    fast_tokenizer: Any = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, clean_up_tokenization_spaces=False, **names
    )
    fast_tokenizer.save_pretrained(directory)


def qwen3(**changes: Any) -> Any:
    """The architecture of Qwen3-0.6B, with `changes` to its numbers."""
    from transformers import Qwen3Config

    numbers: dict[str, Any] = {
        "architectures": ["Qwen3ForCausalLM"],
        "vocab_size": VOCAB,
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "max_position_embeddings": 4096,
        "tie_word_embeddings": True,
        "pad_token_id": 0,
        "eos_token_id": 1,
        "bos_token_id": 2,
        "dtype": "bfloat16",
    }
    return Qwen3Config(**{**numbers, **changes})


@dataclass(frozen=True, slots=True, kw_only=True)
class Ceilings:
    """Peak rates of this device, as measured."""

    bytes_per_s: float
    """Bytes read and written by a copy on the device."""
    flops: float
    """Rate of a large product of random bf16 matrices."""


def ceilings() -> Ceilings:
    """Measure the peak rates, each as the best of five."""
    rates = Ceilings(bytes_per_s=_copy_rate(2**32), flops=_matmul_rate(8192))
    torch.cuda.empty_cache()
    return rates


def _copy_rate(size: int) -> float:
    source = torch.empty(size, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    return 2 * size / best(lambda: target.copy_(source))


def _matmul_rate(size: int) -> float:
    left, right = (torch.randn(size, size, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    return 2 * size**3 / best(lambda: left @ right)


def best(work: Callable[[], Any], repeats: int = 5) -> float:
    """Seconds of the fastest of `repeats` calls after a warm-up call."""
    times: list[float] = []
    for _ in range(repeats + 1):
        torch.cuda.synchronize()
        began = time.perf_counter()
        work()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - began)
    return min(times[1:])
