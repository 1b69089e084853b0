"""What the benchmarks of one GPU share: a model of the shape of Qwen3-0.6B, and what the device does at best."""

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


def missing() -> str:
    """Why these benchmarks cannot run here; empty where they can."""
    if not torch.cuda.is_available():
        return "no GPU is to be seen"
    return "" if importlib.util.find_spec("vllm") else "vllm is not installed"


def alphabet() -> list[str]:
    """As many characters as make the vocabulary together with the special tokens."""
    points = (point for point in range(_FIRST, 0x110000) if point not in _SURROGATES)
    return [chr(point) for point, _ in zip(points, range(VOCAB - len(_SPECIAL)), strict=False)]


def write_qwen3(directory: Path) -> None:
    """A model directory of the shape of Qwen3-0.6B with random weights, and a tokenizer of one token a character."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    decoder = Decoder(qwen3())
    decoder.initialise(0)
    write_model(directory, decoder.config, {name: each.bfloat16() for name, each in decoder.named_tensors()})
    words = {token: index for index, token in enumerate((*_SPECIAL, *alphabet()))}
    tokenizer: Any = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.decoder = decoders.Fuse()
    names = {f"{token.strip('<>')}_token": token for token in _SPECIAL}
    whole: Any = PreTrainedTokenizerFast(tokenizer_object=tokenizer, clean_up_tokenization_spaces=False, **names)
    whole.save_pretrained(directory)


def qwen3(**changes: Any) -> Any:
    """The architecture of Qwen3-0.6B, or of one that differs in some numbers."""
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
    """What this device does at best, measured now."""

    bytes_per_s: float
    """Read and written by a copy from one place on the device to another."""
    flops: float
    """Of a large product of bf16 matrices with random numbers in them."""


def ceilings() -> Ceilings:
    """Each the best of five."""
    found = Ceilings(bytes_per_s=_copied(2**32), flops=_multiplied(8192))
    torch.cuda.empty_cache()
    return found


def _copied(size: int) -> float:
    source = torch.empty(size, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    return 2 * size / best(lambda: target.copy_(source))


def _multiplied(size: int) -> float:
    left, right = (torch.randn(size, size, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    return 2 * size**3 / best(lambda: left @ right)


def best(work: Callable[[], Any], repeats: int = 5) -> float:
    """Seconds of the quickest of several, after one that does not count."""
    found: list[float] = []
    for _ in range(repeats + 1):
        torch.cuda.synchronize()
        began = time.perf_counter()
        work()
        torch.cuda.synchronize()
        found.append(time.perf_counter() - began)
    return min(found[1:])
