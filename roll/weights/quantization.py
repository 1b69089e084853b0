"""Weights in eight bits, quantised once per publication, by the trainer that sends them.

The layers' linear weights are quantised, each output row with a scale of its own; embeddings, norms, biases and the
output layer stay as they are. Quantised weights are what is sent, counted in the digest, and computed with.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

import torch

from roll.config.quantization import Quantization
from roll.weights.buckets import NamedTensor
from roll.weights.channel import Channel
from roll.weights.digest import Digest, combine, digest

SCALE = "_scale"
"""Suffix of the name of a weight's scales."""
DTYPES: dict[Quantization, torch.dtype] = {"fp8": torch.float8_e4m3fn, "int8": torch.int8}
_LARGEST: dict[Quantization, float] = {"fp8": 448.0, "int8": 127.0}
"""Largest number of the type; of int8 the same on both sides of zero."""
_QUANTISED = re.compile(r"\.layers\.\d+\.(self_attn\.[qkvo]|mlp\.(gate|up|down))_proj\.weight$")


def is_quantised(name: str) -> bool:
    """Whether the parameter of this Hugging Face name is quantised."""
    return _QUANTISED.search(name) is not None


def quantise(weight: torch.Tensor, kind: Quantization) -> tuple[torch.Tensor, torch.Tensor]:
    """`weight` [out, in] in eight bits, and the fp32 scales [out, 1] of its rows.

    scale = max |row| / 127 (fp8: 448), at least the smallest normal number; weight / scale is rounded half to even.
    Both divisions are by tensors: torch would replace that by a number on a GPU by a product, which rounds otherwise.
    """
    wide = weight.detach().float()
    largest = torch.full((), _LARGEST[kind], device=wide.device)
    scale = (wide.abs().amax(dim=1, keepdim=True) / largest).clamp(min=torch.finfo(torch.float32).tiny)
    scaled = (wide / scale).clamp(-largest, largest)
    return (scaled.round() if kind == "int8" else scaled).to(DTYPES[kind]), scale


def quantised(tensors: Iterable[NamedTensor], kind: Quantization) -> Iterator[NamedTensor]:
    """The tensors as they are served: each quantised weight is followed by its scales."""
    for name, tensor in tensors:
        if is_quantised(name):
            weight, scale = quantise(tensor, kind)
            yield name, weight
            yield name + SCALE, scale
        else:
            yield name, tensor


def send_quantised(channel: Channel, tensors: Iterable[NamedTensor], kind: Quantization, *, version: int) -> Digest:
    """Send the tensors as they are served; the digest of what was sent."""
    parts: list[Digest] = []

    def counted() -> Iterator[NamedTensor]:
        for name, tensor in quantised(tensors, kind):
            parts.append(digest([tensor]))
            yield name, tensor

    channel.send(counted(), version=version)
    return combine(parts)
