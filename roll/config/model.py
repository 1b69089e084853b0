"""The section `model`: the initial weights of a run."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from roll.config.section import Section

SPECIAL_TOKENS = ("<pad>", "<eos>", "<bos>", "<unk>")
"""First tokens of a shape's tokenizer; its alphabet follows."""


class Shape(Section):
    """A small model with random weights and a tokenizer of one token per character."""

    architecture: Literal["llama", "qwen2", "qwen3"] = "qwen3"
    """Family of the decoder."""
    alphabet: str = Field(default="0123456789+-*/=() abcdefghijklmnopqrstuvwxyz.,?!:\n", min_length=1)
    """Characters of the tokenizer."""
    hidden: int = Field(default=128, gt=0)
    """Width of the hidden states."""
    layers: int = Field(default=4, gt=0)
    """Number of layers."""
    heads: int = Field(default=4, gt=0)
    """Attention heads per layer."""
    kv_heads: int = Field(default=2, gt=0)
    """Heads of keys and values; divides `heads`."""
    mlp: int = Field(default=384, gt=0)
    """Width of the feed-forward layer."""
    max_seq_len: int = Field(default=512, gt=1)
    """Longest sequence of the model, in tokens."""

    @model_validator(mode="after")
    def _heads_divide(self) -> Shape:
        if self.hidden % self.heads or (self.hidden // self.heads) % 2:
            raise ValueError(f"hidden ({self.hidden}) must be an even multiple of heads ({self.heads})")
        if self.heads % self.kv_heads:
            raise ValueError(f"heads ({self.heads}) must be a multiple of kv_heads ({self.kv_heads})")
        return self


class Model(Section):
    """Initial weights: a Hugging Face directory, or a shape to initialise."""

    path: str | None = None
    """A directory with config.json, *.safetensors and a tokenizer."""
    shape: Shape | None = None
    engine: Literal["auto", "native", "hf"] = "auto"
    """Code that computes the model: the built-in decoder (`native`: Llama, Mistral, Qwen2, Qwen3), or any causal
    language model of transformers (`hf`). `auto`: native where it knows the family."""
    trust_remote_code: bool = False
    """Run Python code from the model's directory, which transformers needs for models that it does not contain."""
    template: Literal["auto", "chat", "plain", "last"] = "auto"
    """Text of a conversation: the tokenizer's chat template (`chat`), the contents joined (`plain`), or only the last
    message (`last`, for environments whose every message shows the full state). `auto`: chat if there is a template."""

    @model_validator(mode="after")
    def _one_origin(self) -> Model:
        if (self.path is None) == (self.shape is None):
            raise ValueError("give exactly one of 'path' (a model directory) and 'shape' (a model to build)")
        return self
