"""Families of models that vLLM loads or computes otherwise than `transformers`, and what makes both agree."""

from __future__ import annotations

import re

_WITHOUT_LOADER = re.compile(r"\.(sinks|experts\.(gate_up|down)_proj(_bias)?)$")


def is_lost_on_reload(name: str) -> bool:
    """Whether vLLM's `reload_weights` discards this tensor without an error.

    While it runs, parameters have no memory, and only weight loaders keep what they are called with. GPT-OSS copies
    attention sinks and the experts of a layer directly.
    """
    return _WITHOUT_LOADER.search(name) is not None
