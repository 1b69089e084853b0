"""vLLM's logits in 32 bits for models in 16 bits, as the trainer computes them.

Factors stay in 16 bits and only the sums of products are not rounded, so the cost is negligible. Logits of a trained
model are large: rounding them to 16 bits caused most of the difference between sampler and trainer.
"""

from __future__ import annotations

import importlib
from typing import Any

import torch

from roll.engines.native.likelihood import wide_product

_LAYER = "LogitsProcessor"


def wide_logits(dtype: str) -> dict[str, Any]:
    """Config values for 32-bit logits; releases that do not read them get a replacement layer instead.

    The replacement is registered in this process only: with tensor parallelism, vLLM's processes still round.
    """
    if dtype == "float32" or importlib.import_module("vllm.platforms").current_platform.is_cpu():
        return {}
    layers: Any = importlib.import_module("vllm.model_executor.layers.logits_processor")
    if "head_dtype" in layers.LogitsProcessor.__init__.__code__.co_names:
        return {"head_dtype": "float32"}
    known: Any = importlib.import_module("vllm.model_executor.custom_op").op_registry_oot
    if _LAYER not in known:
        layers.LogitsProcessor.register_oot(_layer(layers.LogitsProcessor))
    return {}


def _layer(base: Any) -> Any:
    """The layer that vLLM creates in place of its `LogitsProcessor`."""

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
