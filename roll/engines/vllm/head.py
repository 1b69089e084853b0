"""Logits of vLLM with 32 bits where its model has 16, as the trainer computes them.

Factors keep their 16 bits and only the sums of products are not rounded, so it costs next to nothing. Logits of a
trained model are large: rounded to 16 bits, they were most of what sampler and trainer differed by.
"""

from __future__ import annotations

import importlib
from typing import Any

import torch

from roll.engines.native.likelihood import wide_product

_LAYER = "LogitsProcessor"


def wide_logits(dtype: str) -> dict[str, Any]:
    """What the engine is to be told for it. Releases that have no word for it are given a layer of ours instead.

    That one is known to this process alone: with tensor parallelism, whose processes vLLM starts, they round as before.
    """
    if dtype == "float32" or importlib.import_module("vllm.platforms").current_platform.is_cpu():
        return {}
    layers: Any = importlib.import_module("vllm.model_executor.layers.logits_processor")
    if "head_dtype" in layers.LogitsProcessor.__init__.__code__.co_names:
        return {"hf_overrides": {"head_dtype": "float32"}}
    known: Any = importlib.import_module("vllm.model_executor.custom_op").op_registry_oot
    if _LAYER not in known:
        layers.LogitsProcessor.register_oot(_layer(layers.LogitsProcessor))
    return {}


def _layer(base: Any) -> Any:
    """The layer that vLLM makes in place of its own."""

    class WideLogits(base):
        def _get_logits(self, hidden_states: Any, lm_head: Any, embedding_bias: Any) -> Any:
            narrow = hidden_states.dtype in (torch.bfloat16, torch.float16)
            if not narrow or getattr(lm_head.weight, "dtype", None) != hidden_states.dtype:
                return super()._get_logits(hidden_states, lm_head, embedding_bias)
            logits = wide_product(hidden_states, lm_head.weight)
            if embedding_bias is not None:
                logits = logits + embedding_bias
            logits = self._gather_logits(logits)
            return logits if logits is None else logits[..., : self.org_vocab_size]

    return WideLogits
